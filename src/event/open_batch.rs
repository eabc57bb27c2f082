//! [`OpenBatch`]: a batch that grows, event by event.
//!
//! What an event costs here is memory that is not in the processor's caches, so it touches little: the events stand one behind the
//! other as they arrive, and go into their groups all together, when the batch is closed. Which group that is, is noted
//! beside the series ([`Hint`]).

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::{Arrived, room_for};
use super::{Batch, Minute, Partition, Partitions};

/// Where the last event of a series went. The next one is likely to go there, too.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    /// The minute of what follows.
    minute: Minute,
    partition: Option<Partition>,
    group: u32,
    batch: u64,
}

impl Default for Hint {
    fn default() -> Self {
        Self { minute: Minute::MIN, partition: None, group: 0, batch: 0 }
    }
}

impl Hint {
    /// The partition of the series in a minute. The hint is used with these partitions only.
    pub fn partition(
        &mut self,
        partitions: &Partitions,
        series: &str,
        minute: Minute,
    ) -> Partition {
        match self.partition {
            Some(partition) if self.minute == minute => partition,
            _ => {
                let partition = partitions.of(series, minute);
                *self = Self { minute, partition: Some(partition), ..Self::default() };
                partition
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct OpenBatch {
    /// No other of this process has it, nor ever had.
    id: u64,
    /// The groups, without their users.
    batch: Batch,
    /// The names of the users of all events, one behind the other.
    users: Vec<u8>,
    /// The events that are not in their groups yet.
    arrived: Vec<Arrived>,
}

impl Default for OpenBatch {
    fn default() -> Self {
        Batch::default().into()
    }
}

impl From<Batch> for OpenBatch {
    fn from(mut batch: Batch) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            id: 1 + LAST.fetch_add(1, Ordering::Relaxed),
            users: batch.take_users(),
            batch,
            arrived: Vec::new(),
        }
    }
}

impl OpenBatch {
    /// Adds an event. The hint is that of the series, the user's name is UTF-8. Returns false, and adds nothing, when there is no
    /// room, as [`Batch::push`] does.
    pub fn push(
        &mut self,
        minute: Minute,
        (series, hint): (&str, &mut Hint),
        user: &[u8],
        timestamp: i64,
    ) -> bool {
        let Some(user_start) = room_for(self.users.len(), user.len()) else {
            return false;
        };
        if hint.batch != self.id || hint.minute != minute {
            let Some(group) = self.batch.group_of(minute, series) else {
                return false;
            };
            *hint = Hint {
                minute,
                partition: hint.partition.filter(|_| hint.minute == minute),
                group,
                batch: self.id,
            };
        }
        self.arrived.push(Arrived { timestamp, user_start, group: hint.group });
        self.users.extend_from_slice(user);
        self.batch.count(user.len());
        true
    }

    /// The batch, with all events in their groups.
    #[must_use]
    pub fn close(mut self) -> Batch {
        self.batch.sort_in(self.users, &self.arrived);
        self.batch
    }

    /// How many events there are.
    #[must_use]
    pub const fn events(&self) -> usize {
        self.batch.events()
    }

    /// How many groups there are.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.batch.groups().len()
    }

    /// The first minute of the events.
    #[must_use]
    pub const fn earliest(&self) -> Option<Minute> {
        self.batch.earliest()
    }

    /// The memory that they take, in bytes, roughly.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.batch.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(batch: &Batch) -> Vec<String> {
        let groups = batch.groups().iter().map(|group| {
            let events = group.occurrences.iter();
            let events: Vec<_> = events.map(|it| (batch.user(it), it.timestamp)).collect();
            format!("{} {} {events:?}", group.minute, group.series)
        });
        groups.collect()
    }

    proptest! {
        /// Hints are only hints: with those of any minutes and batches, some of which are closed and grow again, every batch holds
        /// what it holds without them.
        #[test]
        fn hints_change_nothing(
            events in prop::collection::vec((0..3_usize, 0..2_i64, 0..3_usize, "[a-cé]{0,2}", 0..12_u8), 0..60),
        ) {
            // A series has another partition in each of the minutes.
            let partitions = Partitions::new(std::num::NonZeroU16::new(5).unwrap());
            let partitions = partitions.with_before(Minute::from_epoch_minutes(1).unwrap(), &[5, 6]);
            let mut hints = [Hint::default(); 3];
            let mut open: [OpenBatch; 3] = Default::default();
            let mut expected: [Batch; 3] = Default::default();
            for (at, (series, minute, batch, user, what)) in (0..).zip(events) {
                let minute = Minute::from_epoch_minutes(minute).unwrap();
                let name = ["a=1", "a=2", "b=1"][series];
                let hint = &mut hints[series];
                if what > 1 {
                    prop_assert_eq!(hint.partition(&partitions, name, minute), partitions.of(name, minute));
                }
                prop_assert!(open[batch].push(minute, (name, hint), user.as_bytes(), at));
                prop_assert!(expected[batch].push(minute, name, &user, at));
                if what == 11 {
                    let closed = std::mem::take(&mut open[batch]).close();
                    prop_assert_eq!(seen(&closed), seen(&expected[batch]));
                    if at % 2 == 0 {
                        open[batch] = closed.into();
                    } else {
                        expected[batch] = Batch::default();
                    }
                }
                let of = (&open[batch], &expected[batch]);
                prop_assert_eq!((of.0.events(), of.0.bytes()), (of.1.events(), of.1.bytes()));
            }
            for (open, expected) in open.into_iter().zip(&expected) {
                prop_assert_eq!(open.earliest(), expected.groups().iter().map(|group| group.minute).min());
                let closed = open.close();
                prop_assert_eq!(seen(&closed), seen(expected));
            }
        }
    }
}
