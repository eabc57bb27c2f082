//! [`Division`]: the number of partitions of each minute.
//!
//! All nodes have one number, which changes at the beginning of a future minute, so that a node that does not know the
//! change works until then.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat};

use crate::event::{Minute, Partitions};

/// The cluster-wide settings in Redis, by field.
pub(in crate::store::redis) type Shared = BTreeMap<String, String>;

/// The field of a key of the configuration.
pub(in crate::store::redis) fn field(key: &str) -> &str {
    key.strip_prefix("store.").unwrap_or(key)
}

/// The keys of the configuration for the division.
pub(super) const KEYS: [&str; 3] =
    ["store.partitions", "store.partitions_before", "store.partitions_from"];

/// The number of partitions of all minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) count: u16,
    /// The former number, and the minute at which it changed.
    pub(super) before: Option<(u16, Minute)>,
}

/// The relation of a node's division to that of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Standing {
    /// Every minute that matters has the same number.
    Same,
    /// All minutes before this one have the same number.
    Until(Minute),
    /// The nodes must not work together.
    Apart,
}

impl Division {
    pub(super) fn of(partitions: &Partitions) -> Self {
        Self { count: partitions.count_in(Minute::MAX), before: partitions.before() }
    }

    /// Reads the division from the settings in Redis; `None`: missing or malformed.
    pub(super) fn read(shared: &Shared) -> Option<Self> {
        let [count, before, from] = KEYS.map(|key| shared.get(field(key)).map(String::as_str));
        let before = match (before.unwrap_or_default(), from.unwrap_or_default()) {
            ("", "") => None,
            (before, from) => {
                let from = DateTime::parse_from_rfc3339(from).ok()?.timestamp();
                let from = Minute::from_epoch_minutes(from.div_euclid(60))?;
                Some((before.parse().ok()?, from))
            }
        };
        Some(Self { count: count?.parse().ok()?, before })
    }

    /// The values of [`KEYS`].
    pub(super) fn values(&self) -> [String; 3] {
        let (before, from) = self
            .before
            .map(|(before, from)| (before.to_string(), written(from)))
            .unwrap_or_default();
        [self.count.to_string(), before, from]
    }

    /// The fence that `admit.lua` reads: the minute, the number before it, and the number from it on.
    pub(super) fn fence(&self) -> String {
        let (before, from) = self.before.unwrap_or((self.count, Minute::of_nanos(0)));
        format!("{}|{before}|{}", from.epoch_minutes(), self.count)
    }

    /// Returns the relation of this node's division to that of `all`. No minute before `oldest` gets more events.
    pub(super) fn to(&self, all: &Self, oldest: Minute) -> Standing {
        match (self.before, all.before) {
            _ if self == all => Standing::Same,
            (None, Some((before, from))) if before == self.count => Standing::Until(from),
            (Some((_, from)), None) if self.count == all.count && from <= oldest => Standing::Same,
            _ => Standing::Apart,
        }
    }
}

/// The beginning of a minute in the form of the configuration.
pub(super) fn written(minute: Minute) -> String {
    let at = DateTime::from_timestamp_nanos(minute.start_nanos());
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    fn division(count: u16, before: Option<(u16, i64)>) -> Division {
        let before = before.map(|(count, from)| (count, minute(from)));
        Division { count, before }
    }

    #[test]
    fn a_node_goes_on_as_long_as_its_minutes_are_divided_as_those_of_all() {
        use Standing::{Apart, Same, Until};

        let (thirty_two, sixty_four) = (division(32, None), division(64, None));
        let change = division(64, Some((32, 1000)));
        for (ours, all, expected) in [
            (thirty_two, thirty_two, Same),
            (thirty_two, sixty_four, Apart),
            (thirty_two, change, Until(minute(1000))),
            (change, change, Same),
            // The change was taken back, or Redis lost it.
            (change, thirty_two, Apart),
            // It has other partitions for older minutes.
            (sixty_four, change, Apart),
            (division(16, None), change, Apart),
            (division(64, Some((32, 1001))), change, Apart),
            (division(128, Some((64, 1000))), change, Apart),
        ] {
            assert_eq!(ours.to(&all, minute(0)), expected, "{ours:?} {all:?}");
        }
        // The change ends when no older event can come.
        assert_eq!(change.to(&sixty_four, minute(999)), Apart);
        assert_eq!(change.to(&sixty_four, minute(1000)), Same);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for division in [division(64, Some((32, 29_392_210))), division(1, None)] {
            let fields = KEYS.map(|key| field(key).to_owned());
            let shared: Shared = fields.into_iter().zip(division.values()).collect();
            assert_eq!(Division::read(&shared), Some(division));
        }
        assert_eq!(written(minute(29_392_210)), "2025-11-19T06:10:00Z");
        for (count, before, from) in
            [("", "", ""), ("64", "32", ""), ("64", "", "2025-11-19T10:10:00Z")]
        {
            let fields = KEYS.map(|key| field(key).to_owned());
            let shared = fields.into_iter().zip([count, before, from].map(str::to_owned));
            assert_eq!(Division::read(&shared.collect()), None);
        }
    }
}
