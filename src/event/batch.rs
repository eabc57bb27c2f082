//! Batches of events, grouped by minute and series because the store's cost depends mainly on the number of commands.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{Minute, Partition, Partitions};

/// Approximate size of a group in bytes, excluding its series and events.
const GROUP_BYTES: usize = 128;
/// Size of an event in bytes, excluding the user's name.
const OCCURRENCE_BYTES: usize = size_of::<Occurrence>();
/// The maximum size of each buffer of a new batch, in bytes. If events queue up, batches become much larger than usual.
const ROOM_BYTES_MAX: usize = 256 * 1024;
/// Multiplier for the minute number. It spreads consecutive minutes over all bits of the hash of a series.
const MINUTE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The events of one partition. All user names share one string, so that no event needs its own allocation.
#[derive(Debug, Default)]
pub struct Batch {
    groups: Vec<Group>,
    /// Indexes into `groups`, by minute and series. The hasher has random keys because senders choose the series.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    users: String,
    events: usize,
    bytes: usize,
    earliest: Option<Minute>,
}

/// The events of one series in one minute.
#[derive(Debug)]
pub struct Group {
    /// The minute of the events.
    pub minute: Minute,
    /// The canonical series.
    pub series: Box<str>,
    hash: u64,
    /// The events, in order of arrival.
    pub occurrences: Vec<Occurrence>,
}

/// One event of a group.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence {
    /// The timestamp, in nanoseconds since the epoch.
    pub timestamp: i64,
    user_start: u32,
    user_len: u32,
}

/// An event of an open batch, which has not been moved to its group yet.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    timestamp: i64,
    /// Where the user's name begins. It ends where the user's name in the next event begins.
    user_start: u32,
    group: u32,
}

impl Batch {
    /// Adds an event. Returns false and adds nothing if there is no room: a batch holds at most 4 GiB of user names.
    pub fn push(&mut self, minute: Minute, series: &str, user: &str, timestamp: i64) -> bool {
        let Some(user_start) = room_for(self.users.len(), user.len()) else {
            return false;
        };
        let Some(group) = self.group_of(minute, series) else {
            return false;
        };
        self.users.push_str(user);
        self.count(user.len());
        self.put(Arrived { timestamp, user_start, group }, self.users_end());
        true
    }

    fn users_end(&self) -> u32 {
        u32::try_from(self.users.len()).unwrap_or(u32::MAX)
    }

    const fn count(&mut self, user_bytes: usize) {
        self.events += 1;
        self.bytes += OCCURRENCE_BYTES + user_bytes;
    }

    /// Returns the index of a group, creating the group if necessary, or `None` if there are too many groups.
    fn group_of(&mut self, minute: Minute, series: &str) -> Option<u32> {
        let Self { groups, index, .. } = self;
        let minutes = minute.epoch_minutes().cast_unsigned();
        let hash = self.hasher.hash_one(series) ^ minutes.wrapping_mul(MINUTE_STEP);
        let is_same = |&place: &u32| {
            groups
                .get(place as usize)
                .is_some_and(|group| group.minute == minute && *group.series == *series)
        };
        if let Some(&place) = index.find(hash, is_same) {
            return Some(place);
        }
        let place = u32::try_from(groups.len()).ok()?;
        groups.push(Group { minute, series: series.into(), hash, occurrences: Vec::new() });
        index.insert_unique(hash, place, |&place| {
            groups.get(place as usize).map_or(0, |group| group.hash)
        });
        self.bytes += GROUP_BYTES + series.len();
        self.earliest = Some(self.earliest.map_or(minute, |earliest| earliest.min(minute)));
        Some(place)
    }

    fn put(&mut self, event: Arrived, user_end: u32) {
        let Arrived { timestamp, user_start, group } = event;
        self.groups[group as usize].occurrences.push(Occurrence {
            timestamp,
            user_start,
            user_len: user_end - user_start,
        });
    }

    /// Returns the groups, in the order in which their first events were added.
    #[must_use]
    pub const fn groups(&self) -> &[Group] {
        self.groups.as_slice()
    }

    pub(crate) const fn user_bytes(occurrence: &Occurrence) -> usize {
        occurrence.user_len as usize
    }

    /// Returns the user of an event, which must be from this batch.
    #[must_use]
    pub fn user(&self, occurrence: &Occurrence) -> &str {
        let start = occurrence.user_start as usize;
        self.users.get(start..start + occurrence.user_len as usize).unwrap_or_default()
    }

    /// Returns the number of events.
    #[must_use]
    pub const fn events(&self) -> usize {
        self.events
    }

    /// Returns the approximate memory used by the batch, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no events.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events == 0
    }
}

/// The partition and the group of the last event of a series. The next event probably belongs to the same group.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
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
    /// Returns the partition of the hint's series in a minute. All calls must pass the same series and partitions.
    pub(crate) fn partition(
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

/// A batch that is being filled. To reduce cache misses, events are moved to their groups only when the batch is closed.
#[derive(Debug)]
pub struct OpenBatch {
    /// Identifies the batch in hints. Unique within the process.
    id: u64,
    /// The groups, without their users and events.
    batch: Batch,
    /// The user names of all events, without separators.
    users: Vec<u8>,
    arrived: Vec<Arrived>,
}

impl Default for OpenBatch {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = 1 + LAST.fetch_add(1, Ordering::Relaxed);
        Self { id, batch: Batch::default(), users: Vec::new(), arrived: Vec::new() }
    }
}

impl OpenBatch {
    /// Takes the batch, and leaves an empty one with room for as many events, unless there were exceptionally many.
    pub(crate) fn take(&mut self) -> Self {
        let next = Self {
            users: Vec::with_capacity(self.users.len().min(ROOM_BYTES_MAX)),
            arrived: Vec::with_capacity(
                self.arrived.len().min(ROOM_BYTES_MAX / size_of::<Arrived>()),
            ),
            ..Self::default()
        };
        std::mem::replace(self, next)
    }

    /// Adds an event and updates its series' hint. `user` must be UTF-8. Returns false, adding nothing, if there is no room.
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
            let partition = hint.partition.filter(|_| hint.minute == minute);
            *hint = Hint { minute, partition, group, batch: self.id };
        }
        self.arrived.push(Arrived { timestamp, user_start, group: hint.group });
        self.users.extend_from_slice(user);
        self.batch.count(user.len());
        true
    }

    /// Moves every event to its group, and returns the batch.
    #[must_use]
    pub fn close(self) -> Batch {
        let Self { mut batch, users, arrived, .. } = self;
        let users = String::from_utf8(users);
        debug_assert!(users.is_ok(), "the parser returns only UTF-8");
        batch.users = users.unwrap_or_default();
        let mut events = vec![0; batch.groups.len()];
        for event in &arrived {
            events[event.group as usize] += 1;
        }
        for (group, events) in batch.groups.iter_mut().zip(events) {
            group.occurrences.reserve_exact(events);
        }
        let ends = arrived.iter().skip(1).map(|next| next.user_start);
        let ends = ends.chain([batch.users_end()]);
        for (&event, end) in arrived.iter().zip(ends) {
            batch.put(event, end);
        }
        batch
    }

    pub(crate) const fn events(&self) -> usize {
        self.batch.events
    }

    /// Returns the approximate memory used by the batch, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.batch.bytes
    }

    pub(crate) const fn groups(&self) -> usize {
        self.batch.groups.len()
    }

    pub(crate) const fn earliest(&self) -> Option<Minute> {
        self.batch.earliest
    }
}

/// Returns the offset at which `name` bytes are appended to `names` bytes of other names, or `None` if there is no room.
fn room_for(names: usize, name: usize) -> Option<u32> {
    let end = u32::try_from(names + name);
    end.and(u32::try_from(names)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn events_are_grouped_by_minute_and_series() {
        let mut batch = Batch::default();
        for (number, series, user, timestamp) in
            [(1, "a=1", "x", 10), (1, "a=2", "y", 11), (2, "a=1", "x", 12), (1, "a=1", "z", 13)]
        {
            assert!(batch.push(minute(number), series, user, timestamp));
        }
        let seen: Vec<_> = batch
            .groups()
            .iter()
            .map(|group| {
                let events: Vec<_> =
                    group.occurrences.iter().map(|o| (batch.user(o), o.timestamp)).collect();
                (group.minute.epoch_minutes(), &*group.series, events)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (1, "a=1", vec![("x", 10), ("z", 13)]),
                (1, "a=2", vec![("y", 11)]),
                (2, "a=1", vec![("x", 12)]),
            ]
        );
        assert_eq!(batch.events(), 4);
    }

    #[test]
    fn a_new_batch_has_the_room_that_the_last_one_needed_up_to_a_limit() {
        let mut open = OpenBatch::default();
        for (events, room) in [(100, 100), (20_000, 16_384), (0, 0)] {
            for _ in 0..events {
                let series = ("a=1", &mut Hint::default());
                assert!(open.push(minute(0), series, b"0123456789abcdef", 0));
            }
            assert_eq!(open.take().events(), events);
            assert_eq!((open.arrived.capacity(), open.users.capacity()), (room, 16 * room));
        }
    }

    #[test]
    fn groups_are_spread_over_the_index() {
        let mut batch = Batch::default();
        for number in 0..1000 {
            assert!(batch.push(minute(0), &format!("a={number}"), "u", 0));
            assert!(batch.push(minute(1 + number), "a", "u", 0));
        }
        let hashes: HashSet<_> = batch.groups().iter().map(|group| group.hash).collect();
        assert_eq!(hashes.len(), 2000);
    }

    fn seen(batch: &Batch) -> Vec<String> {
        let groups = batch.groups().iter().map(|group| {
            let events = group.occurrences.iter();
            let events: Vec<_> = events.map(|event| (batch.user(event), event.timestamp)).collect();
            format!("{} {} {events:?}", group.minute, group.series)
        });
        groups.collect()
    }

    proptest! {
        /// Hints never change the result: no matter which minutes and batches they are from, the batches have the same
        /// events as without hints.
        #[test]
        fn hints_change_nothing(
            events in prop::collection::vec((0..3_usize, 0..2_i64, 0..3_usize, "[a-cé]{0,2}", 0..12_u8), 0..60),
        ) {
            // The series has a different partition in each minute.
            let partitions = Partitions::new(std::num::NonZeroU16::new(5).unwrap());
            let partitions = partitions.with_before(Minute::from_epoch_minutes(1).unwrap(), &[5, 6]);
            let mut hints = [Hint::default(); 3];
            let mut open: [OpenBatch; 3] = Default::default();
            let mut expected: [Batch; 3] = Default::default();
            for (at, (series, minute, batch, user, action)) in (0..).zip(events) {
                let minute = Minute::from_epoch_minutes(minute).unwrap();
                let name = ["a=1", "a=2", "b=1"][series];
                let hint = &mut hints[series];
                if action > 1 {
                    prop_assert_eq!(hint.partition(&partitions, name, minute), partitions.of(name, minute));
                }
                prop_assert!(open[batch].push(minute, (name, hint), user.as_bytes(), at));
                prop_assert!(expected[batch].push(minute, name, &user, at));
                if action == 11 {
                    let closed = open[batch].take().close();
                    prop_assert_eq!(seen(&closed), seen(&expected[batch]));
                    expected[batch] = Batch::default();
                }
                let (grown, whole) = (&open[batch], &expected[batch]);
                prop_assert_eq!((grown.events(), grown.bytes()), (whole.events(), whole.bytes()));
            }
            for (open, expected) in open.into_iter().zip(&expected) {
                prop_assert_eq!(open.earliest(), expected.groups().iter().map(|group| group.minute).min());
                let closed = open.close();
                prop_assert_eq!(seen(&closed), seen(expected));
            }
        }
    }
}
