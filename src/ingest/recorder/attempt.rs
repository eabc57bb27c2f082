//! One attempt to record: what has a place of its own, what is rejected, and the transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;
use tokio::time::Instant;

use super::Recorder;
use crate::event::{Batch, Minute, OverflowSeries, Rejection};
use crate::ingest::dedup::{Fingerprint, KnownUser};
use crate::ingest::line_batcher::beginning;
use crate::ingest::parts::{Origin, Part};
use crate::store::{Recording, Store, StoreError};

impl Recorder {
    /// Asks what has a place of its own, rejects the users for whom there is none, and records the rest. Answers what was
    /// recorded, how much of it the store had already, and the users to remember; `None`: what was asked may be another store than the one that is there now.
    pub(super) async fn attempt<'a>(
        &mut self,
        batch: &'a Batch,
        overflow: &'a OverflowSeries,
        parts: &mut Vec<Part<'a>>,
        origin: Origin,
        generation: u64,
    ) -> Result<Option<(Vec<Recording<'a>>, u64, Vec<KnownUser>)>, StoreError> {
        let store = Arc::clone(&self.store);
        let keys = parts.iter().map(Part::key);
        self.caps.ask(&*store, keys, Instant::now()).await?;
        let recording = |part: &Part<'a>| {
            let (minute, series) = part.key();
            let refuses = self.caps.refuses(minute, series);
            let overflow = refuses.then(|| overflow.of(minute));
            part.recording(batch, overflow, &self.dedup)
        };
        let wanted: Vec<_> = parts.iter().map(recording).collect();
        let not_gathered = self.not_gathered(&*store, &wanted).await?;
        let nobody = HashSet::new();
        let mut recordings = Vec::with_capacity(wanted.len());
        let mut learnt: Vec<KnownUser> = Vec::new();
        let mut at = 0;
        for (recording, fingerprints) in wanted {
            let mut take = |recording: Recording<'a>, users: Vec<Fingerprint>| {
                learnt.extend(users.into_iter().map(|user| (recording.minute, user)));
                recordings.push(recording);
            };
            let (minute, users) = (recording.minute, &recording.new_users);
            let own;
            let refused = if recording.gathered_from.is_some() {
                not_gathered.get(&minute).unwrap_or(&nobody)
            } else {
                let asked = self
                    .caps
                    .users_refused(&*store, minute, recording.series, users);
                own = asked.await?;
                &own
            };
            if !users.iter().any(|user| refused.contains(user)) {
                take(recording, fingerprints);
                at += 1;
                continue;
            }
            let part = parts[at];
            let left = part.without(batch, refused);
            let events = part.events() - left.iter().map(Part::events).sum::<usize>();
            if origin != Origin::Replay {
                self.rejected(Rejection::TooManyUsers, events, recording.series);
            }
            let overflow = recording.gathered_from.map(|_| overflow.of(minute));
            for part in &left {
                let (recording, users) = part.recording(batch, overflow, &self.dedup);
                take(recording, users);
            }
            let next = at + left.len();
            parts.splice(at..=at, left);
            at = next;
        }
        if self.store.generation(self.partition) != generation {
            return Ok(None);
        }
        let mut repeated = 0;
        if !recordings.is_empty() {
            // The overflow series' recordings next to each other, which makes them one command.
            recordings.sort_by_key(|recording| recording.gathered_from.is_some());
            repeated = store
                .record(self.partition, generation, &recordings)
                .await?;
        }
        Ok(Some((recordings, repeated, learnt)))
    }

    /// Events that were queued are not counted after all. Where they came from is not known any more.
    pub(super) fn rejected(&self, reason: Rejection, events: usize, series: &str) {
        self.node.ledger.rejected(reason, events);
        if events > 0
            && let Some(lines) = self.node.ledger.is_time_to_show(reason)
        {
            let (label, series) = (reason.label(), beginning(series.as_bytes()));
            tracing::warn!(reason = label, lines, %series, "rejected events that were queued: {reason}");
        }
    }

    /// The users for whom the overflow series of their minute has no room. Its recordings may be thousands, of a user
    /// each, so they are asked for together.
    async fn not_gathered<'a>(
        &mut self,
        store: &dyn Store,
        wanted: &[(Recording<'a>, Vec<Fingerprint>)],
    ) -> Result<BTreeMap<Minute, HashSet<&'a str>>, StoreError> {
        let mut gathered: BTreeMap<Minute, (Vec<&'a str>, HashSet<&'a str>)> = BTreeMap::new();
        let recordings = wanted.iter().map(|(recording, _)| recording);
        for recording in recordings.filter(|it| it.gathered_from.is_some()) {
            let (users, seen) = gathered.entry(recording.minute).or_default();
            let new = recording.new_users.iter().copied();
            users.extend(new.filter(|user| seen.insert(user)));
        }
        let overflow = self.caps.overflow.clone();
        let mut refused = BTreeMap::new();
        for (minute, (users, _)) in gathered {
            let overflow = overflow.of(minute);
            let asked = self.caps.users_refused(store, minute, overflow, &users);
            refused.insert(minute, asked.await?);
        }
        Ok(refused)
    }

    /// Counts what the store has confirmed, and what of it the store had already.
    pub(super) fn confirmed(
        &mut self,
        recordings: &[Recording<'_>],
        repeated: u64,
        origin: Origin,
    ) {
        let events: usize = recordings
            .iter()
            .map(|recording| recording.occurrences.len())
            .sum();
        let users: usize = recordings
            .iter()
            .map(|recording| recording.new_users.len())
            .sum();
        if origin != Origin::Replay {
            self.node.ledger.recorded(events);
            self.node.confirmed.record(self.partition, events as u64);
            self.metrics.events_repeated.inc_by(repeated);
            let mut stamps = recordings.iter().flat_map(|it| it.occurrences);
            if stamps.all(|it| it.timestamp % 1_000_000_000 == 0) {
                let rounded = &self.node.rounded;
                rounded.recorded(events as u64, repeated, Instant::now().into());
            }
            let gathered = recordings.iter().filter(|it| it.gathered_from.is_some());
            self.node
                .ledger
                .overflowed(gathered.map(|it| it.occurrences.len()).sum());
        }
        self.metrics.dedup_hits.inc_by((events - users) as u64);
    }
}
