//! [`SeriesCount`]: how many series a node brings to a minute of one partition.

use hashbrown::{HashMap, HashSet};

use crate::event::{Group, Minute};

/// The minutes whose series are counted against the limit.
const COUNTED_MINUTES: usize = 4;

/// The distinct series of the last few minutes, by hash: a collision lets one more in, no more.
#[derive(Debug, Default)]
pub(super) struct SeriesCount {
    minutes: HashMap<Minute, HashSet<u64>>,
}

impl SeriesCount {
    /// Whether the group's series is among the first `series_max` of its minute.
    pub(super) fn admits(&mut self, group: &Group, series_max: usize) -> bool {
        let hash = xxhash_rust::xxh3::xxh3_64(group.series.as_bytes());
        if !self.minutes.contains_key(&group.minute) && self.minutes.len() >= COUNTED_MINUTES {
            // The lowest is the least likely to go on.
            if let Some(&oldest) = self.minutes.keys().min() {
                self.minutes.remove(&oldest);
            }
        }
        let seen = self.minutes.entry(group.minute).or_default();
        if seen.len() >= series_max && !seen.contains(&hash) {
            return false;
        }
        seen.insert(hash);
        true
    }
}
