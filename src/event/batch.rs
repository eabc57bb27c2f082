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

impl Batch {
    /// Adds an event. Returns false, and adds nothing, when the batch has no room for another user's name: it holds at
    /// most 4 GiB of them.
    pub fn push(&mut self, minute: Minute, series: &str, user: &str, timestamp: i64) -> bool {
        let keyed = self.hasher.hash_one(series);
        self.push_hashed(minute, (series, keyed), user, timestamp)
    }

    /// The same for a series with its hash, which is keyed at random and the same for all events of the batch.
    pub fn push_hashed(
        &mut self,
        minute: Minute,
        (series, keyed): (&str, u64),
        user: &str,
        timestamp: i64,
    ) -> bool {
        let (Ok(user_start), Ok(user_len)) =
            (u32::try_from(self.users.len()), u32::try_from(user.len()))
        else {
            return false;
        };
        let Some(group) = self.group_mut(minute, series, keyed) else {
            return false;
        };
        group.occurrences.push(Occurrence {
            timestamp,
            user_start,
            user_len,
        });
        self.users.push_str(user);
        self.events += 1;
        self.bytes += OCCURRENCE_BYTES + user.len();
        true
    }

    fn group_mut(&mut self, minute: Minute, series: &str, keyed: u64) -> Option<&mut Group> {
        let Self { groups, index, .. } = self;
        let minutes = minute.epoch_minutes().cast_unsigned();
        let hash = keyed ^ minutes.wrapping_mul(MINUTE_STEP);
        let same = |&place: &u32| {
            groups
                .get(place as usize)
                .is_some_and(|group| group.minute == minute && *group.series == *series)
        };
        if let Some(&place) = index.find(hash, same) {
            return self.groups.get_mut(place as usize);
        }
        let place = u32::try_from(groups.len()).ok()?;
        groups.push(Group {
            minute,
            series: series.into(),
            hash,
            occurrences: Vec::new(),
        });
        index.insert_unique(hash, place, |&place| {
            groups.get(place as usize).map_or(0, |group| group.hash)
        });
        self.bytes += GROUP_BYTES + series.len();
        self.groups.last_mut()
    }

    /// The groups, in order of their first event.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The user of an event of this batch.
    #[must_use]
    pub fn user(&self, occurrence: &Occurrence) -> &str {
        let start = occurrence.user_start as usize;
        self.users
            .get(start..start + occurrence.user_len as usize)
            .unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn events_are_grouped_by_minute_and_series_in_order_of_arrival() {
        let mut batch = Batch::default();
        for (number, series, user, timestamp) in [
            (1, "a=1", "x", 10),
            (1, "a=2", "y", 11),
            (2, "a=1", "x", 12),
            (1, "a=1", "z", 13),
        ] {
            assert!(batch.push(minute(number), series, user, timestamp));
        }
        let seen: Vec<_> = batch
            .groups()
            .iter()
            .map(|group| {
                let events: Vec<_> = group
                    .occurrences
                    .iter()
                    .map(|o| (batch.user(o), o.timestamp))
                    .collect();
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
}
