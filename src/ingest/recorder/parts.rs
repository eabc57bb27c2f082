//! [`Part`]: a part of a group that fits into one transaction, and where it comes from.

use hashbrown::HashSet;

use crate::event::{Batch, Group, Minute};
use crate::ingest::dedup::{Dedup, Fingerprint};
use crate::store::RecordRequest;

/// Where a batch comes from.
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

    /// The minute and the own series of its events.
    pub(super) fn key(&self) -> (Minute, &'a str) {
        (self.group.minute, &self.group.series)
    }

    /// The request to record its events under their own series, or under the overflow series, without the users that
    /// the store is known to have; and the fingerprints of the others. Without `dedup` the store finds out who is new.
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
            let (of, is_known) = (dedup.fingerprinter(series), dedup.known_in(minute));
            let fingerprints = occurrences.iter().map(|event| of.of(batch.user(event)));
            // First all of them: the looks for them, which wait for memory, then go on side by side in the processor.
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

    /// Adds its events to another batch. Returns for how many there was no room.
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

    /// What is left of it without the events of these users.
    pub(super) fn without(&self, batch: &Batch, users: &HashSet<&str>) -> Vec<Self> {
        let mut left: Vec<Self> = Vec::new();
        for at in self.from..self.to {
            if users.contains(batch.user(&self.group.occurrences[at])) {
                continue;
            }
            match left.last_mut() {
                Some(last) if last.to == at => last.to += 1,
                _ => left.push(Self {
                    group: self.group,
                    from: at,
                    to: at + 1,
                }),
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
