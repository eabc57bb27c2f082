//! One attempt to record: admission of series, rejection of users, and the transaction.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use tokio::time::Instant;

use super::parts::{Origin, Part};
use super::{Known, Recorder};
use crate::event::{Batch, Minute, Rejection};
use crate::ingest::dedup::{Fingerprint, KnownUser};
use crate::node::{Example, Found};
use crate::store::{RecordRequest, Records, StoreError};

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The store has all of the transaction.
    Done,
    /// Everything was rejected.
    Emptied,
    /// The store was replaced during the attempt: try again.
    Replaced,
}

impl Recorder {
    /// Rejects events that are too old and users for whom there is no room, which leave `parts`, and records the others.
    pub(super) async fn attempt<'a>(
        &'a self,
        known: &mut Known,
        batch: &'a Batch,
        parts: &mut Vec<Part<'a>>,
        origin: Origin,
    ) -> Result<Outcome, StoreError> {
        // The batch may have waited for the one before it, or for the store; and counts expire, so events that are too old could
        // be counted twice.
        self.reject_too_old(parts, origin);
        if parts.is_empty() {
            return Ok(Outcome::Emptied);
        }
        let generation = self.store.generation(self.partition);
        let is_same_store = || self.store.generation(self.partition) == generation;
        known.follow(generation);
        let (mut requests, users) = self.admitted(known, batch, parts, origin).await?;
        if !is_same_store() {
            return Ok(Outcome::Replaced);
        }
        if requests.is_empty() {
            return Ok(Outcome::Emptied);
        }
        // Requests of the overflow series next to each other become one command.
        requests.sort_by_key(|request| request.overflowed_from.is_some());
        let before = origin == Origin::Replay;
        let (seen, brought) = known.coverage.with(&requests, before, Instant::now());
        let records = Records { generation, requests: &requests, seen: &seen };
        let repeated = self.store.record(self.partition, &records).await?;
        // A replaced store may lack the users that dedup left out.
        let left_out = known.dedup.as_ref().is_some_and(|dedup| !dedup.is_empty());
        if !is_same_store() && left_out {
            return Ok(Outcome::Replaced);
        }
        let now = Instant::now();
        known.coverage.confirmed(&seen, now);
        self.metrics.events_seen.inc_by(brought);
        self.confirmed(&requests, repeated, origin);
        if let Some(dedup) = &mut known.dedup {
            dedup.insert(&users, now);
            for request in &requests {
                dedup.touch(request.minute, now);
            }
        }
        Ok(Outcome::Done)
    }

    fn reject_too_old(&self, parts: &mut Vec<Part<'_>>, origin: Origin) {
        let now = self.node.clock.now_nanos();
        parts.retain(|part| {
            let last_instant = part.group.minute.end_millis().saturating_mul(1_000_000);
            let keep = self.settings.window.judge(last_instant, now) != Err(Rejection::TooOld);
            if !keep {
                let series = &part.group.series;
                self.rejected(Rejection::TooOld, part.events(), series, origin);
            }
            keep
        });
    }

    /// Asks which series and users are admitted, and rejects the other users. Returns the requests, and their new users.
    async fn admitted<'a>(
        &'a self,
        known: &mut Known,
        batch: &'a Batch,
        parts: &mut Vec<Part<'a>>,
        origin: Origin,
    ) -> Result<(Vec<RecordRequest<'a>>, Vec<KnownUser>), StoreError> {
        let Known { caps, dedup, .. } = known;
        let keys = parts.iter().map(Part::key);
        caps.ask(&*self.store, keys, Instant::now()).await?;
        let wanted = parts.iter().map(|part| {
            let (minute, series) = part.key();
            let is_refused = caps.refuses(minute, series);
            let overflow = is_refused.then(|| self.overflow.of(minute));
            part.request(batch, overflow, dedup.as_ref())
        });
        let wanted: Vec<_> = wanted.collect();
        let refused_of_overflow = self.refused_of_overflow(known, &wanted).await?;
        let Known { caps, dedup, .. } = known;
        let nobody = HashSet::new();
        let mut requests = Vec::with_capacity(wanted.len());
        let mut all_users: Vec<KnownUser> = Vec::new();
        let mut at = 0;
        for (request, fingerprints) in wanted {
            let mut add = |request: RecordRequest<'a>, users: Vec<Fingerprint>| {
                all_users.extend(users.into_iter().map(|user| (request.minute, user)));
                requests.push(request);
            };
            let minute = request.minute;
            let own;
            let refused = if request.overflowed_from.is_some() {
                refused_of_overflow.get(&minute).unwrap_or(&nobody)
            } else if caps.has_room(minute, request.series, new_most(&request)) {
                &nobody
            } else {
                let users = distinct(users(&request));
                let asked = caps.users_refused(&*self.store, minute, request.series, &users);
                own = asked.await?;
                &own
            };
            if refused.is_empty() {
                add(request, fingerprints);
                at += 1;
                continue;
            }
            let part = parts[at];
            let left = part.without(batch, refused);
            let events = part.events() - left.iter().map(Part::events).sum::<usize>();
            self.rejected(Rejection::TooManyUsers, events, request.series, origin);
            let overflow = request.overflowed_from.map(|_| self.overflow.of(minute));
            for part in &left {
                let (request, users) = part.request(batch, overflow, dedup.as_ref());
                add(request, users);
            }
            let next = at + left.len();
            parts.splice(at..=at, left);
            at = next;
        }
        Ok((requests, all_users))
    }

    /// Returns the users for whom the overflow series of their minute has no room. It may have thousands of requests with a user each,
    /// so it asks for all users together.
    async fn refused_of_overflow<'a>(
        &self,
        known: &mut Known,
        wanted: &[(RecordRequest<'a>, Vec<Fingerprint>)],
    ) -> Result<BTreeMap<Minute, HashSet<&'a str>>, StoreError> {
        let mut of_minutes: BTreeMap<Minute, Vec<&RecordRequest<'a>>> = BTreeMap::new();
        for (request, _) in wanted.iter().filter(|(request, _)| request.overflowed_from.is_some()) {
            of_minutes.entry(request.minute).or_default().push(request);
        }
        let mut refused = BTreeMap::new();
        for (minute, requests) in of_minutes {
            let overflow = self.overflow.of(minute);
            let most = requests.iter().map(|request| new_most(request)).sum();
            if !known.caps.has_room(minute, overflow, most) {
                let users = distinct(requests.iter().flat_map(|request| users(request)));
                let asked = known.caps.users_refused(&*self.store, minute, overflow, &users);
                refused.insert(minute, asked.await?);
            }
        }
        Ok(refused)
    }

    /// Moves queued events to the rejected ones. Their sources are not known here.
    fn rejected(&self, reason: Rejection, events: usize, series: &str, origin: Origin) {
        if origin == Origin::Replay {
            return;
        }
        self.node.ledger.rejected(reason, events);
        if events > 0 {
            let rejected = self.node.ledger.totals().rejected[reason.index()];
            self.node.notices.rejected(reason, rejected, Example::new(None, series.as_bytes()));
        }
    }

    /// Counts confirmed events, and those that the store had before.
    fn confirmed(&self, requests: &[RecordRequest<'_>], repeated: u64, origin: Origin) {
        let count = |request: &RecordRequest<'_>| request.occurrences.len();
        let events: usize = requests.iter().map(count).sum();
        let users: u64 = requests.iter().map(new_most).sum();
        self.metrics.dedup_hits.inc_by(events as u64 - users);
        if origin != Origin::Replay {
            self.metrics.events_repeated.inc_by(repeated);
            for request in requests {
                self.look_at_stamps(request);
            }
            let overflowed = requests.iter().filter(|request| request.overflowed_from.is_some());
            // Last: a reader who sees them recorded finds all other counters updated.
            let recorded = events as u64;
            self.node.partitions.change(self.partition, |state| state.recorded += recorded);
            self.node.ledger.recorded(events, overflowed.map(count).sum());
        }
    }

    /// Finds timestamps by which events of a user become one.
    fn look_at_stamps(&self, request: &RecordRequest<'_>) {
        let events = request.occurrences;
        let user = |place: usize| events.get(place).map(|event| request.batch.user(event));
        let is_same_user = |place: usize| user(place) == user(place.wrapping_sub(1));
        let stamps = events.iter().map(|event| event.timestamp);
        let (found, unit) = Found::look(stamps, is_same_user, self.settings.precision);
        self.metrics.events_rounded.inc_by(found.rounded);
        self.metrics.events_coinciding.inc_by(found.coinciding);
        self.node.rounded.add(found, unit, request.series);
    }
}

/// Returns the users that may be new, some of them several times if the store finds new users itself.
fn users<'a>(request: &RecordRequest<'a>) -> impl Iterator<Item = &'a str> {
    let (new, batch) = (request.new_users.as_deref(), request.batch);
    let occurrences = new.is_none().then_some(request.occurrences);
    let all = occurrences.into_iter().flatten().map(|event| batch.user(event));
    new.into_iter().flatten().copied().chain(all)
}

/// Returns each user once, in order.
fn distinct<'a>(users: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    users.filter(|user| seen.insert(*user)).collect()
}

/// Returns the maximum number of new users.
fn new_most(request: &RecordRequest<'_>) -> u64 {
    let new = request.new_users.as_ref().map(Vec::len);
    new.unwrap_or(request.occurrences.len()) as u64
}
