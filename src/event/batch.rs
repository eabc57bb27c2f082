//! [`Batch`]: events of one partition, by minute and series.
//!
//! A command costs the store more than an event, so a batch is the cheaper the more events it has per series.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::Minute;

/// The bytes of a group beside its text and its events, roughly.
const GROUP_BYTES: usize = 128;
/// The bytes of an event beside its user's name.
const OCCURRENCE_BYTES: usize = size_of::<Occurrence>();
/// Sets the hashes of a series in two minutes apart, in all their bits.
const MINUTE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Events of one partition. Kept in one piece of text and one list a group, so that an event costs no
/// allocation of its own.
#[derive(Debug, Default)]
pub struct Batch {
    groups: Vec<Group>,
    /// Indexes into `groups`, by minute and series. Keyed at random: the series come from strangers.
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
    /// The minute.
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
    /// Nanoseconds since the epoch.
    pub timestamp: i64,
    user_start: u32,
    user_len: u32,
}

/// An event that is not in its group yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) timestamp: i64,
    /// Its user's name ends where that of the next event begins.
    pub(super) user_start: u32,
    /// The place of its group.
    pub(super) group: u32,
}

impl Batch {
    /// Adds an event. Returns false, and adds nothing, when the batch has no room for another user's name: it holds at
    /// most 4 GiB of them.
    pub fn push(&mut self, minute: Minute, series: &str, user: &str, timestamp: i64) -> bool {
        let place = room_for(self.users.len(), user.len()).zip(self.group_of(minute, series));
        let Some((user_start, group)) = place else {
            return false;
        };
        self.users.push_str(user);
        self.count(user.len());
        let arrived = Arrived { timestamp, user_start, group };
        self.put(arrived, self.users_end());
        true
    }

    /// Where the names end. [`room_for`] bounds it.
    fn users_end(&self) -> u32 {
        u32::try_from(self.users.len()).unwrap_or(u32::MAX)
    }

    /// Counts an event with a user's name of so many bytes.
    pub(super) const fn count(&mut self, user: usize) {
        self.events += 1;
        self.bytes += OCCURRENCE_BYTES + user;
    }

    /// The place of a group, which may be new.
    pub(super) fn group_of(&mut self, minute: Minute, series: &str) -> Option<u32> {
        let Self { groups, index, .. } = self;
        let minutes = minute.epoch_minutes().cast_unsigned();
        let hash = self.hasher.hash_one(series) ^ minutes.wrapping_mul(MINUTE_STEP);
        let same = |&place: &u32| {
            groups
                .get(place as usize)
                .is_some_and(|group| group.minute == minute && *group.series == *series)
        };
        if let Some(&place) = index.find(hash, same) {
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

    /// Gives up the users' names, until they and more are [put back](Self::sort_in).
    pub(super) fn take_users(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.users).into_bytes()
    }

    /// Puts the last events that were counted into their groups. These are the names of all users, in UTF-8.
    pub(super) fn sort_in(&mut self, users: Vec<u8>, events: &[Arrived]) {
        let users = String::from_utf8(users);
        debug_assert!(users.is_ok(), "the parser gives only UTF-8");
        self.users = users.unwrap_or_default();
        let mut more = vec![0; self.groups.len()];
        for event in events {
            more[event.group as usize] += 1;
        }
        for (group, more) in self.groups.iter_mut().zip(more) {
            group.occurrences.reserve_exact(more);
        }
        let ends = events.iter().skip(1).map(|next| next.user_start);
        let ends = ends.chain([self.users_end()]);
        for (&event, end) in events.iter().zip(ends) {
            self.put(event, end);
        }
    }

    fn put(&mut self, event: Arrived, user_end: u32) {
        let Arrived { timestamp, user_start, group } = event;
        self.groups[group as usize].occurrences.push(Occurrence {
            timestamp,
            user_start,
            user_len: user_end - user_start,
        });
    }

    /// The groups, in order of their first event.
    #[must_use]
    pub const fn groups(&self) -> &[Group] {
        self.groups.as_slice()
    }

    /// The first minute of the events.
    pub(super) const fn earliest(&self) -> Option<Minute> {
        self.earliest
    }

    /// Returns the bytes of a user's name.
    #[must_use]
    pub const fn user_bytes(occurrence: &Occurrence) -> usize {
        occurrence.user_len as usize
    }

    /// The user of an event of this batch.
    #[must_use]
    pub fn user(&self, occurrence: &Occurrence) -> &str {
        let start = occurrence.user_start as usize;
        self.users.get(start..start + occurrence.user_len as usize).unwrap_or_default()
    }

    /// How many events there are.
    #[must_use]
    pub const fn events(&self) -> usize {
        self.events
    }

    /// The memory that they take, in bytes, roughly.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events == 0
    }
}

/// Where behind so many bytes of names another one begins, if there is room for it.
pub(super) fn room_for(names: usize, name: usize) -> Option<u32> {
    let end = u32::try_from(names + name);
    end.and(u32::try_from(names)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn events_are_grouped_by_minute_and_series_in_order_of_arrival() {
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
    fn groups_of_one_minute_and_of_one_series_are_spread_over_the_index() {
        let mut batch = Batch::default();
        for number in 0..1000 {
            assert!(batch.push(minute(0), &format!("a={number}"), "u", 0));
            assert!(batch.push(minute(1 + number), "a", "u", 0));
        }
        let hashes: HashSet<_> = batch.groups().iter().map(|group| group.hash).collect();
        assert_eq!(hashes.len(), 2000);
    }
}
