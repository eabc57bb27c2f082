//! Attempts to record batches in transactions, after asking which series are admitted and rejecting users beyond the cap.

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::known::Known;
use super::{Origin, Recorder};
use crate::event::{Batch, Group, Minute, Occurrence, Rejection};
use crate::node::{Example, Found};
use crate::store::{REQUEST_BYTES_MAX, RecordRequest, Records, StoreError};

#[derive(Debug)]
pub(super) struct Bounds {
    events: usize,
    /// How many times a request contains the name of a user.
    user_times: usize,
    /// The size of an event in a request, in bytes, excluding the user's name.
    event_bytes: usize,
}

/// The bounds for a store that needs a list of the new users. A transaction of this size blocks the store for a few ms.
pub(super) const TOLD: Bounds = Bounds { events: 8192, user_times: 2, event_bytes: 44 };
/// The bounds for a store that finds new users itself.
pub(super) const APPENDED: Bounds = Bounds { events: 16_384, user_times: 0, event_bytes: 13 };

impl Bounds {
    /// Returns the size of a request with `events` bytes of events. Repeated series names add at most that many bytes again.
    fn request_bytes(&self, series: &str, events: usize) -> usize {
        let again = (self.user_times * series.len()).min(events);
        series.len() + again + events
    }
}

#[derive(Default)]
struct Open<'a> {
    requests: Vec<RecordRequest<'a>>,
    events: usize,
    bytes: usize,
}

/// Splits a batch into transactions, and returns the requests of each. Only a transaction of one event may exceed `bounds`.
pub(super) fn transactions<'a>(batch: &'a Batch, bounds: &Bounds) -> Vec<Vec<RecordRequest<'a>>> {
    let request = |group: &'a Group, occurrences: &'a [Occurrence]| RecordRequest {
        occurrences,
        ..RecordRequest::new(batch, group)
    };
    let mut all = Vec::new();
    let mut open = Open::default();
    for group in batch.groups() {
        let (mut from, mut event_bytes) = (0, 0);
        for (at, event) in group.occurrences.iter().enumerate() {
            let of_event = bounds.event_bytes + bounds.user_times * Batch::user_bytes(event);
            let bytes = open.bytes + bounds.request_bytes(&group.series, event_bytes + of_event);
            if open.events > 0 && (open.events == bounds.events || bytes > REQUEST_BYTES_MAX) {
                if at > from {
                    open.requests.push(request(group, &group.occurrences[from..at]));
                }
                all.push(std::mem::take(&mut open).requests);
                (from, event_bytes) = (at, 0);
            }
            event_bytes += of_event;
            open.events += 1;
        }
        open.bytes += bounds.request_bytes(&group.series, event_bytes);
        open.requests.push(request(group, &group.occurrences[from..]));
    }
    if open.events > 0 {
        all.push(open.requests);
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// All events were rejected, so nothing was sent to the store.
    Emptied,
    /// The store was replaced during the attempt, so the attempt must be repeated.
    Replaced,
}

impl Recorder {
    /// Attempts to record `requests` in one transaction. Removes events that are too old or have a user beyond the cap.
    pub(super) async fn attempt<'a>(
        &'a self,
        known: &mut Known,
        requests: &mut Vec<RecordRequest<'a>>,
        origin: Origin,
    ) -> Result<Outcome, StoreError> {
        // Events may be too old by now. They must not be recorded, because their counts may have expired in the store.
        self.reject_too_old(requests, origin);
        if requests.is_empty() {
            return Ok(Outcome::Emptied);
        }
        let generation = self.store.generation(self.partition);
        let is_same_store = || self.store.generation(self.partition) == generation;
        known.follow(generation);
        let began = Instant::now();
        self.admit(known, requests, began).await?;
        self.reject_users(known, requests, origin).await?;
        if !is_same_store() {
            return Ok(Outcome::Replaced);
        }
        if requests.is_empty() {
            return Ok(Outcome::Emptied);
        }
        let before = origin == Origin::Replay;
        let (seen, brought) = match origin {
            Origin::Request => Default::default(),
            _ => known.coverage.with(requests, before, Instant::now()),
        };
        let records = Records { generation, requests, seen: &seen };
        let repeated = self.store.record(self.partition, &records).await?;
        // The requests leave out known users, but a store that has been replaced may not have them.
        if !is_same_store() && known.has_users() {
            return Ok(Outcome::Replaced);
        }
        known.coverage.confirmed(&seen, Instant::now());
        self.metrics.events_seen.inc_by(brought);
        self.confirmed(requests, repeated, origin);
        known.confirmed(began);
        Ok(Outcome::Done)
    }

    fn reject_too_old(&self, requests: &mut Vec<RecordRequest<'_>>, origin: Origin) {
        let now = self.node.clock.now_nanos();
        requests.retain(|request| {
            let last_instant = request.minute.end_millis().saturating_mul(1_000_000);
            let keep = self.settings.window.judge(last_instant, now) != Err(Rejection::TooOld);
            if !keep {
                self.rejected(
                    Rejection::TooOld,
                    request.occurrences.len(),
                    own_series(request),
                    origin,
                );
            }
            keep
        });
    }

    /// Determines which series the store admits, and redirects requests for other series to the overflow series. Sorts
    /// the requests so that those for the same overflow series are adjacent and become one command.
    async fn admit<'a>(
        &'a self,
        known: &mut Known,
        requests: &mut [RecordRequest<'a>],
        now: Instant,
    ) -> Result<(), StoreError> {
        let wanted = requests.iter().map(|request| (request.minute, own_series(request)));
        known.ask(&*self.store, wanted, now).await?;
        for request in requests.iter_mut() {
            let series = own_series(request);
            let is_refused = known.refuses(request.minute, series);
            request.overflowed_from = is_refused.then_some(series);
            request.series = if is_refused { self.overflow.of(request.minute) } else { series };
        }
        requests.sort_by_key(|request| request.overflowed_from.map(|_| request.minute));
        known.set_new_users(requests);
        Ok(())
    }

    /// Removes events of users beyond the cap from `requests`. Asks the store once per series, not once per request.
    async fn reject_users(
        &self,
        known: &mut Known,
        requests: &mut Vec<RecordRequest<'_>>,
        origin: Origin,
    ) -> Result<(), StoreError> {
        let mut refused = HashMap::new();
        for of_series in requests.chunk_by(|a, b| target(a) == target(b)) {
            let (minute, series) = target(&of_series[0]);
            if !known.has_room(minute, series, of_series.iter().map(new_most).sum()) {
                let users = distinct(of_series.iter().flat_map(users));
                let users = known.users_refused(&*self.store, minute, series, &users).await?;
                if !users.is_empty() {
                    refused.insert((minute, series), users);
                }
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        // There must be no await from here on: an abort would spool or drop only the events in `requests` at that moment.
        for request in std::mem::take(requests) {
            let Some(users) = refused.get(&target(&request)) else {
                requests.push(request);
                continue;
            };
            let first = requests.len();
            requests.extend(without(&request, users));
            let left = requests[first..].iter().map(|request| request.occurrences.len());
            let events = request.occurrences.len() - left.sum::<usize>();
            self.rejected(Rejection::TooManyUsers, events, request.series, origin);
        }
        known.set_new_users(requests);
        Ok(())
    }

    /// Counts queued events as rejected, with their series as an example. Replayed events have already been counted.
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
            // Recorded events are counted last, so that a reader who sees them finds all other counters updated.
            let recorded = events as u64;
            if origin == Origin::Request {
                self.metrics.events_by_http.inc_by(recorded);
            }
            self.node.partitions.change(self.partition, |state| state.recorded += recorded);
            self.node.ledger.recorded(events, overflowed.map(count).sum());
        }
    }

    /// Looks for timestamps that are so coarse that distinct events by the same user count as one.
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

/// Returns the series that a request's events belong to, even if they are recorded under the overflow series.
pub(super) fn own_series<'a>(request: &RecordRequest<'a>) -> &'a str {
    request.overflowed_from.unwrap_or(request.series)
}

/// Returns the minute and series under which a request is recorded.
const fn target<'a>(request: &RecordRequest<'a>) -> (Minute, &'a str) {
    (request.minute, request.series)
}

fn without<'a>(
    request: &RecordRequest<'a>,
    users: &HashSet<&str>,
) -> impl Iterator<Item = RecordRequest<'a>> {
    let RecordRequest { minute, series, overflowed_from, occurrences, batch, .. } = *request;
    let left = occurrences.split(|event| users.contains(batch.user(event)));
    let left = left.filter(|occurrences| !occurrences.is_empty());
    left.map(move |occurrences| RecordRequest {
        minute,
        series,
        overflowed_from,
        new_users: None,
        occurrences,
        batch,
    })
}

/// Returns the users in a request that may be new to the store: those of all events if the store finds new users itself.
fn users<'a>(request: &RecordRequest<'a>) -> impl Iterator<Item = &'a str> {
    let (new, batch) = (request.new_users.as_deref(), request.batch);
    let occurrences = new.is_none().then_some(request.occurrences);
    let all = occurrences.into_iter().flatten().map(|event| batch.user(event));
    new.into_iter().flatten().copied().chain(all)
}

fn distinct<'a>(users: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    users.filter(|user| seen.insert(*user)).collect()
}

fn new_most(request: &RecordRequest<'_>) -> u64 {
    let new = request.new_users.as_ref().map(Vec::len);
    new.unwrap_or(request.occurrences.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_some_users_keeps_the_events_of_all_others() {
        let mut batch = Batch::default();
        for (at, user) in (0..).zip(["a", "b", "b", "c", "a", "c"]) {
            assert!(batch.push(Minute::of_nanos(0), "s=1", user, at));
        }
        let request = RecordRequest::new(&batch, &batch.groups()[0]);
        let left = |users: &[&str]| -> Vec<Vec<i64>> {
            let users = users.iter().copied().collect();
            let stamps = |left: RecordRequest<'_>| {
                left.occurrences.iter().map(|event| event.timestamp).collect()
            };
            without(&request, &users).map(stamps).collect()
        };
        assert_eq!(left(&["b"]), [vec![0], vec![3, 4, 5]]);
        assert_eq!(left(&["a"]), [vec![1, 2, 3], vec![5]]);
        assert!(left(&["a", "b", "c"]).is_empty());
    }

    #[test]
    fn transactions_are_bounded_and_complete() {
        let name = |number: usize, bytes: usize| format!("s={number:0bytes$}");
        for (series, events, bytes) in
            [(1, 20_000, 8), (1000, 1, 1000), (40, 500, 60_000), (3, 2, 8)]
        {
            let mut batch = Batch::default();
            for number in 0..series * events {
                let at = i64::try_from(number).unwrap();
                let series = name(number % series, bytes);
                assert!(batch.push(Minute::of_nanos(0), &series, "user", at));
            }
            for bounds in [TOLD, APPENDED] {
                let all = transactions(&batch, &bounds);
                let mut seen = 0;
                for parts in &all {
                    let events: usize = parts.iter().map(|request| request.occurrences.len()).sum();
                    let request_bytes = |request: &RecordRequest<'_>| {
                        let events = request.occurrences.len()
                            * (bounds.event_bytes + bounds.user_times * 4);
                        bounds.request_bytes(request.series, events)
                    };
                    let bytes: usize = parts.iter().map(request_bytes).sum();
                    assert!((1..=bounds.events).contains(&events) && bytes <= REQUEST_BYTES_MAX);
                    seen += events;
                }
                assert_eq!(seen, batch.events());
                let least = batch.events().div_ceil(bounds.events);
                assert!(all.len() >= least);
            }
        }
    }

    #[test]
    fn a_transaction_has_at_most_the_bytes_of_a_request_or_one_event() {
        // Exactly two events for this series fit.
        let fits = REQUEST_BYTES_MAX - 2 * APPENDED.event_bytes;
        for (bytes, expected) in
            [(fits, vec![2]), (fits + 1, vec![1, 1]), (REQUEST_BYTES_MAX + 1, vec![1, 1])]
        {
            let (mut batch, series) = (Batch::default(), "s".repeat(bytes));
            for at in [1, 2] {
                assert!(batch.push(Minute::of_nanos(0), &series, "user", at));
            }
            let all = transactions(&batch, &APPENDED);
            let events = |parts: &Vec<RecordRequest<'_>>| -> usize {
                parts.iter().map(|request| request.occurrences.len()).sum()
            };
            assert_eq!(all.iter().map(events).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn the_name_of_a_series_counts_again_up_to_the_bytes_of_its_events() {
        assert_eq!(TOLD.request_bytes("s=1234", 1000), 6 + 2 * 6 + 1000);
        assert_eq!(TOLD.request_bytes("s=1234", 5), 6 + 5 + 5);
        assert_eq!(APPENDED.request_bytes("s=1234", 1000), 6 + 1000);
    }
}
