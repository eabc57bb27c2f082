//! [`Part`]: a part of a group that fits into one transaction.

use hashbrown::HashSet;

use crate::event::{Batch, Group, Minute, Occurrence};
use crate::ingest::dedup::{Dedup, Fingerprint};
use crate::store::{REQUEST_BYTES_MAX, RecordRequest};

/// The limits of a transaction, and the size of its parts.
#[derive(Debug)]
pub(super) struct Bounds {
    /// The maximum number of events.
    events: usize,
    /// The number of times that a user's name is sent.
    user_times: usize,
    /// The bytes of an event without the user's name.
    event_bytes: usize,
}

/// For a store that is told the new users. A transaction blocks it for a few ms.
pub(super) const TOLD: Bounds = Bounds { events: 8192, user_times: 2, event_bytes: 44 };
/// For a store that finds new users itself.
pub(super) const APPENDED: Bounds = Bounds { events: 16_384, user_times: 0, event_bytes: 13 };

impl Bounds {
    fn bytes(&self, event: &Occurrence) -> usize {
        self.event_bytes + self.user_times * Batch::user_bytes(event)
    }

    /// Returns the bytes of a part: its events, and the name of its series, which counts again up to the bytes of its events.
    fn part_bytes(&self, series: &str, events: usize) -> usize {
        let again = (self.user_times * series.len()).min(events);
        series.len() + again + events
    }
}

/// Splits a batch into the parts of transactions within the limits.
pub(super) fn transactions<'a>(batch: &'a Batch, bounds: &Bounds) -> Vec<Vec<Part<'a>>> {
    let mut all = Vec::new();
    let mut parts: Vec<Part<'a>> = Vec::new();
    let (mut events, mut bytes) = (0, 0);
    for group in batch.groups() {
        let (mut from, mut of_events) = (0, 0);
        for (at, event) in group.occurrences.iter().enumerate() {
            let more = of_events + bounds.bytes(event);
            let with = bytes + bounds.part_bytes(&group.series, more);
            if events > 0 && (events == bounds.events || with > REQUEST_BYTES_MAX) {
                if at > from {
                    parts.push(Part { group, from, to: at });
                }
                all.push(std::mem::take(&mut parts));
                (from, of_events, events, bytes) = (at, 0, 0, 0);
            }
            of_events += bounds.bytes(event);
            events += 1;
        }
        bytes += bounds.part_bytes(&group.series, of_events);
        let to = group.occurrences.len();
        parts.push(Part { group, from, to });
    }
    if events > 0 {
        all.push(parts);
    }
    all
}

/// The origin of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From a listener: its events are in the ledger's queue.
    Queue,
    /// From the disk: its events are in the queue, too, and on the disk until they are recorded.
    Spool,
    /// Recorded before: its events have left the ledger.
    Replay,
}

/// Consecutive events of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) group: &'a Group,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl<'a> Part<'a> {
    pub(super) const fn events(&self) -> usize {
        self.to - self.from
    }

    /// Returns the minute and the series of its events.
    pub(super) fn key(&self) -> (Minute, &'a str) {
        (self.group.minute, &self.group.series)
    }

    /// Returns the request to record its events under their own series, or under the overflow series, without known users; and the
    /// fingerprints of the new users. Without `dedup` the store finds new users itself.
    pub(super) fn request(
        &self,
        batch: &'a Batch,
        overflow: Option<&'a str>,
        dedup: Option<&Dedup>,
    ) -> (RecordRequest<'a>, Vec<Fingerprint>) {
        let (minute, own) = self.key();
        let series = overflow.unwrap_or(own);
        let occurrences = &self.group.occurrences[self.from..self.to];
        let new = dedup.map(|dedup| {
            let (fingerprinter, is_known) = (dedup.fingerprinter(series), dedup.known_in(minute));
            let fingerprints = occurrences.iter().map(|event| fingerprinter.of(batch.user(event)));
            // All fingerprints first: the processor then does their look-ups, which wait for memory, in parallel.
            let fingerprints: Vec<_> = fingerprints.collect();
            let most = fingerprints.len();
            let mut seen = HashSet::with_capacity(most);
            let (mut users, mut new) = (Vec::with_capacity(most), Vec::with_capacity(most));
            for (event, user) in occurrences.iter().zip(fingerprints) {
                if !is_known(user) && seen.insert(user) {
                    users.push(batch.user(event));
                    new.push(user);
                }
            }
            (users, new)
        });
        let (new_users, fingerprints) = new.unzip();
        let request = RecordRequest {
            minute,
            series,
            overflowed_from: overflow.map(|_| own),
            new_users,
            occurrences,
            batch,
        };
        (request, fingerprints.unwrap_or_default())
    }

    /// Adds its events to another batch. Returns the number of events without room.
    pub(super) fn copy(&self, from: &Batch, to: &mut Batch) -> usize {
        let (minute, series) = self.key();
        let mut lost = 0;
        for event in &self.group.occurrences[self.from..self.to] {
            if !to.push(minute, series, from.user(event), event.timestamp) {
                lost += 1;
            }
        }
        lost
    }

    /// Returns its parts without the events of these users.
    pub(super) fn without(&self, batch: &Batch, users: &HashSet<&str>) -> Vec<Self> {
        let mut left: Vec<Self> = Vec::new();
        for at in self.from..self.to {
            if users.contains(batch.user(&self.group.occurrences[at])) {
                continue;
            }
            match left.last_mut() {
                Some(last) if last.to == at => last.to += 1,
                _ => left.push(Self { group: self.group, from: at, to: at + 1 }),
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_bounded_by_events_and_by_bytes_and_no_event_is_left_out() {
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
                    let events: usize = parts.iter().map(Part::events).sum();
                    let part_bytes = |part: &Part<'_>| {
                        let events = part.events() * (bounds.event_bytes + bounds.user_times * 4);
                        bounds.part_bytes(&part.group.series, events)
                    };
                    let bytes: usize = parts.iter().map(part_bytes).sum();
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
    fn a_transaction_may_be_as_large_as_a_request_and_an_event_beyond_that_has_its_own() {
        // Two events of this series fit exactly.
        let fits = REQUEST_BYTES_MAX - 2 * APPENDED.event_bytes;
        for (bytes, expected) in
            [(fits, vec![2]), (fits + 1, vec![1, 1]), (REQUEST_BYTES_MAX + 1, vec![1, 1])]
        {
            let (mut batch, series) = (Batch::default(), "s".repeat(bytes));
            for at in [1, 2] {
                assert!(batch.push(Minute::of_nanos(0), &series, "user", at));
            }
            let all = transactions(&batch, &APPENDED);
            let events = |parts: &Vec<Part<'_>>| parts.iter().map(Part::events).sum::<usize>();
            assert_eq!(all.iter().map(events).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn the_name_of_a_series_counts_again_as_far_as_there_are_other_bytes() {
        assert_eq!(TOLD.part_bytes("s=1234", 1000), 6 + 2 * 6 + 1000);
        assert_eq!(TOLD.part_bytes("s=1234", 5), 6 + 5 + 5);
        assert_eq!(APPENDED.part_bytes("s=1234", 1000), 6 + 1000);
    }

    #[test]
    fn a_part_without_some_users_keeps_the_events_of_all_others() {
        let mut batch = Batch::default();
        for (at, user) in ["a", "b", "b", "c", "a", "c"].into_iter().enumerate() {
            assert!(batch.push(Minute::of_nanos(0), "s=1", user, i64::try_from(at).unwrap()));
        }
        let group = &batch.groups()[0];
        let (from, to) = (0, 6);
        let part = Part { group, from, to };
        let left = |users: &[&str]| -> Vec<_> {
            let left = part.without(&batch, &users.iter().copied().collect());
            left.iter().map(|part| (part.from, part.to)).collect()
        };
        assert_eq!(left(&["b"]), [(0, 1), (3, 6)]);
        assert_eq!(left(&["a"]), [(1, 4), (5, 6)]);
        assert_eq!(left(&["a", "b", "c"]), []);
    }
}
