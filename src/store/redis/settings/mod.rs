//! The cluster-wide settings: configuration keys that must have the same value on all nodes, and are stored in Redis.
//!
//! The first node writes its values, and each later node compares its own. If a difference affects how events are stored,
//! the node cannot use Redis. Any other difference keeps it from closing minutes and sending counts, but not from recording.
//!
//! A change to the partition count takes effect at the start of a future minute. Until then, outdated nodes still work.

mod repartition;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use redis::{Pipeline, pipe};
use siphasher::sip::SipHasher13;

pub use self::repartition::ChangeError;
pub(super) use self::repartition::RESTS;
use super::{Layout, lock};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partitions};
use crate::store::{Result, StoreError};

/// The formats of keys and scripts that this version can read; it writes the newest.
pub const FORMATS: RangeInclusive<u32> = 5..=5;
const FORMAT: &str = "format";
/// The settings field with the version that wrote the format.
const FORMAT_BY: &str = "format_by";
/// The settings field with the fingerprint key in hexadecimal. It exists only with the `log` layout.
const FINGERPRINT_KEY: &str = "fingerprint_key";
/// The configuration key that determines, together with the division, how events are stored.
const LAYOUT: &str = "store.layout";

/// The configuration keys that determine the division, i.e. the partition count of each minute.
const DIVISION: [&str; 3] =
    ["store.partitions", "store.partitions_before", "store.partitions_from"];

/// The cluster-wide settings in Redis, by field.
pub(super) type Shared = BTreeMap<String, String>;

/// Returns the settings field for a configuration key.
pub(super) fn field(key: &str) -> &str {
    key.strip_prefix("store.").unwrap_or(key)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// The division and the layout.
    Kept,
    All,
}

/// The settings of this node, and how they differ from those in Redis.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The key of the cluster-wide settings in Redis.
    pub(super) key: String,
    /// The configuration keys that all nodes must agree on, with this node's values.
    pub(super) settings: Vec<(String, String)>,
    division: Division,
    has_fingerprints: bool,
    /// The fingerprint key of the `log` layout, once known. If Redis loses the key, any node that knows it writes it again.
    fingerprint_key: Mutex<Option<Key>>,
    /// A duration that exceeds the age of any accepted event.
    retention: Duration,
    /// The first minute whose windows each rollup has, by name, if the rollup was added or changed in a running cluster.
    rollups_from: Mutex<BTreeMap<String, Minute>>,
}

/// The key of the rollups in the settings, each in its canonical form, separated by `; `.
const ROLLUPS: &str = "rollups";
/// The prefix of the fields with the first minute of a rollup's windows.
const ROLLUP_FROM: &str = "rollup_from:";

impl Agreement {
    pub(super) fn new(
        key: String,
        partitions: &Partitions,
        layout: Layout,
        retention: Duration,
    ) -> Self {
        let division = Division::of(partitions);
        let kept = DIVISION.into_iter().zip(division.values());
        let settings = kept.chain([(LAYOUT, layout.name().to_owned())]);
        Self {
            key,
            settings: settings.map(|(key, value)| (key.to_owned(), value)).collect(),
            division,
            has_fingerprints: layout == Layout::Log || partitions.rollups().next().is_some(),
            fingerprint_key: Mutex::default(),
            retention,
            rollups_from: Mutex::default(),
        }
    }

    /// Returns the first minute whose windows this rollup has.
    pub(super) fn rollup_from(&self, name: &str) -> Minute {
        lock(&self.rollups_from).get(name).copied().unwrap_or(Minute::MIN)
    }

    pub(super) fn learn_rollups(&self, shared: &Shared) {
        let from = shared.iter().filter_map(|(field, minute)| {
            let name = field.strip_prefix(ROLLUP_FROM)?.to_owned();
            Some((name, Minute::from_epoch_minutes(minute.parse().ok()?)?))
        });
        *lock(&self.rollups_from) = from.collect();
    }

    /// Returns the fingerprint key, or None if this node has not read it from Redis yet.
    pub(super) fn fingerprint_key(&self) -> Option<Key> {
        *lock(&self.fingerprint_key)
    }

    pub(super) fn learn_fingerprint_key(&self, shared: &Shared) {
        let found = shared.get(FINGERPRINT_KEY);
        let Some(found) = found.and_then(|key| u128::from_str_radix(key, 16).ok()).map(Key) else {
            return;
        };
        if lock(&self.fingerprint_key).replace(found).is_some_and(|before| before != found) {
            tracing::warn!(
                "Redis lost the fingerprint key and has a new one; counts for open minutes may be too high"
            );
        }
    }

    /// Returns the commands that add the settings missing in Redis. Returns None if none are missing, because a server over
    /// its memory limit rejects writes but can still be drained, or if this version cannot read the format in Redis.
    pub(super) fn proposal(&self, shared: &Shared) -> Option<Pipeline> {
        let is_missing = |(key, _): &&(String, String)| !shared.contains_key(field(key));
        let mut missing: Vec<_> = self.settings.iter().filter(is_missing).cloned().collect();
        if self.has_fingerprints && !shared.contains_key(FINGERPRINT_KEY) {
            let key = self.fingerprint_key().unwrap_or_else(|| Key(rand::random()));
            missing.push((FINGERPRINT_KEY.to_owned(), format!("{:032x}", key.0)));
        }
        if missing.is_empty() || unreadable(shared).is_some() {
            return None;
        }
        let format = [(FORMAT, FORMATS.end().to_string()), (FORMAT_BY, crate::BUILD.to_owned())];
        let format = format.map(|(key, value)| (key.to_owned(), value));
        let mut pipeline = pipe();
        pipeline.atomic();
        for (key, value) in missing.into_iter().chain(format) {
            pipeline.hset_nx(&self.key, field(&key), value).ignore();
        }
        Some(pipeline)
    }

    /// Returns [`StoreError::Refused`] if the compared settings differ.
    pub(super) fn check(&self, shared: &Shared, compared: Compared) -> Result<()> {
        self.difference(shared, compared).map_or(Ok(()), |found| Err(StoreError::Refused(found)))
    }

    /// Returns how this node's division relates to the one in Redis.
    pub(super) fn standing(&self, shared: &Shared) -> Standing {
        let retention = i64::try_from(self.retention.as_secs().div_ceil(60)).unwrap_or(i64::MAX);
        let oldest = now().epoch_minutes().saturating_sub(retention);
        let oldest = Minute::from_epoch_minutes(oldest).unwrap_or(Minute::MIN);
        Division::read(shared).map_or(Standing::Apart, |all| self.division.to(&all, oldest))
    }

    /// Returns a diagnosis with both values if any of the compared settings differ, or None if they agree.
    pub(super) fn difference(&self, shared: &Shared, compared: Compared) -> Option<Diagnosis> {
        if let Some(reason) = unreadable(shared) {
            return Some(Diagnosis::new(Cause::SettingsFormat, reason));
        }
        let standing = self.standing(shared);
        if let Standing::Until(from) = standing
            && compared == Compared::All
            && from <= now()
        {
            return Some(self.outdated(from, shared));
        }
        let is_compared = |key: &str| {
            if DIVISION.contains(&key) {
                standing == Standing::Apart
            } else {
                compared == Compared::All || key == LAYOUT
            }
        };
        let differs = self.settings.iter().filter_map(|(key, own)| {
            let stored = shared.get(field(key))?;
            (stored != own && is_compared(key)).then_some((key, stored, own))
        });
        let differs: Vec<_> = differs.collect();
        if differs.is_empty() {
            return None;
        }
        let each = differs.iter().map(|(key, stored, own)| {
            format!("{key} = {}, but this node uses {}", shown(stored), shown(own))
        });
        let reason = each.collect::<Vec<_>>().join("; ");
        let is_divided = differs.iter().any(|(key, ..)| DIVISION.contains(&key.as_str()));
        let cause = if is_divided { Cause::SettingsDivision } else { Cause::Settings };
        let why = format!("the nodes on this Redis use {reason}");
        Some(Diagnosis::new(cause, why))
    }

    /// Returns the diagnosis for a node whose division matches that of all nodes only before this minute.
    pub(super) fn outdated(&self, from: Minute, shared: &Shared) -> Diagnosis {
        let why = format!(
            "minutes from {} on use store.partitions = {}, but this node uses {}",
            written(from),
            shared.get("partitions").map_or("?", String::as_str),
            self.division.count,
        );
        Diagnosis::new(Cause::SettingsOutdated, why)
    }
}

/// Returns why this version must not use the keys in Redis, naming both formats; `None` if it may.
fn unreadable(shared: &Shared) -> Option<String> {
    if shared.is_empty() {
        return None;
    }
    // The first builds did not write a format.
    let format = shared.get(FORMAT).map_or("1", String::as_str);
    let is_read = format.parse().is_ok_and(|format| FORMATS.contains(&format));
    let (first, last) = (FORMATS.start(), FORMATS.end());
    let readable = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let by = shared.get(FORMAT_BY).map_or("an unknown version", String::as_str);
    (!is_read).then(|| {
        format!("the keys in Redis have format {format}, written by {by}, but this version, {}, reads format {readable}", crate::BUILD)
    })
}

/// The partition count of every minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    count: u16,
    /// The previous count, and the minute at which it changed.
    before: Option<(u16, Minute)>,
}

/// How a node's division relates to that of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Both use the same partition count for every minute that can still receive events.
    Same,
    /// Both use the same partition count only for minutes before this one.
    Until(Minute),
    /// The divisions do not match, so this node must not work together with the others.
    Apart,
}

/// Returns the fields that let each rollup that is new or changed in `wanted` begin with the first whole window.
fn rollups_from(shared: &Shared, wanted: &str) -> Vec<(String, String)> {
    let before = shared.get(ROLLUPS).map_or("", String::as_str);
    let is_new = |rollup: &&str| !rollup.is_empty() && before.split("; ").all(|one| one != *rollup);
    let new = wanted.split("; ").filter(is_new);
    let from = |rollup: &str| {
        let name = rollup.split(' ').next().unwrap_or_default();
        (format!("{ROLLUP_FROM}{name}"), (now().epoch_minutes() + 1).to_string())
    };
    new.map(from).collect()
}

impl Division {
    fn of(partitions: &Partitions) -> Self {
        Self { count: partitions.count_in(Minute::MAX), before: partitions.before() }
    }

    /// Reads the division from the settings in Redis; `None` if it is missing or malformed.
    fn read(shared: &Shared) -> Option<Self> {
        let [count, before, from] = DIVISION.map(|key| shared.get(field(key)).map(String::as_str));
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

    /// Returns the values of the configuration keys in [`DIVISION`].
    fn values(&self) -> [String; 3] {
        let (before, from) = self
            .before
            .map(|(before, from)| (before.to_string(), written(from)))
            .unwrap_or_default();
        [self.count.to_string(), before, from]
    }

    /// Returns the fence that `admit.lua` reads: the minute of the change, the count before it, and the count from it on.
    fn fence(&self) -> String {
        let (before, from) = self.before.unwrap_or((self.count, Minute::of_nanos(0)));
        format!("{}|{before}|{}", from.epoch_minutes(), self.count)
    }

    /// Returns how this node's division relates to `all`. Minutes before `oldest` get no more events.
    fn to(&self, all: &Self, oldest: Minute) -> Standing {
        match (self.before, all.before) {
            _ if self == all => Standing::Same,
            (None, Some((before, from))) if before == self.count => Standing::Until(from),
            (Some((_, from)), None) if self.count == all.count && from <= oldest => Standing::Same,
            _ => Standing::Apart,
        }
    }
}

/// Returns the start of a minute in the format used in the configuration.
fn written(minute: Minute) -> String {
    let at = DateTime::from_timestamp_nanos(minute.start_nanos());
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn now() -> Minute {
    let minutes = Utc::now().timestamp().div_euclid(60);
    Minute::from_epoch_minutes(minutes).unwrap_or(Minute::MAX)
}

/// Returns a value in the format of a configuration file.
fn shown(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}

/// The key for the fingerprints of users and series, shared by all nodes and unknown to senders.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) u128);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0.to_le_bytes())
    }

    pub(super) fn user(self, user: &str) -> u64 {
        self.hasher().hash(user.as_bytes())
    }

    /// Returns the fingerprint of a series, from its unkeyed fingerprint.
    pub(super) fn series(self, series: u128) -> u64 {
        self.hasher().hash(&series.to_le_bytes())
    }
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
    fn node_works_while_its_division_agrees() {
        use Standing::{Apart, Same, Until};

        let (thirty_two, sixty_four) = (division(32, None), division(64, None));
        let change = division(64, Some((32, 1000)));
        for (own, all, expected) in [
            (thirty_two, thirty_two, Same),
            (thirty_two, sixty_four, Apart),
            (thirty_two, change, Until(minute(1000))),
            (change, change, Same),
            // The change was reverted, or Redis has lost it.
            (change, thirty_two, Apart),
            // This node has different partitions for older minutes.
            (sixty_four, change, Apart),
            (division(16, None), change, Apart),
            (division(64, Some((32, 1001))), change, Apart),
            (division(128, Some((64, 1000))), change, Apart),
        ] {
            assert_eq!(own.to(&all, minute(0)), expected, "{own:?} {all:?}");
        }
        // The change ends once no older events can arrive.
        assert_eq!(change.to(&sixty_four, minute(999)), Apart);
        assert_eq!(change.to(&sixty_four, minute(1000)), Same);
    }

    #[test]
    fn division_round_trips() {
        for division in [division(64, Some((32, 29_392_210))), division(1, None)] {
            let fields = DIVISION.map(|key| field(key).to_owned());
            let shared: Shared = fields.into_iter().zip(division.values()).collect();
            assert_eq!(Division::read(&shared), Some(division));
        }
        assert_eq!(written(minute(29_392_210)), "2025-11-19T06:10:00Z");
        for (count, before, from) in
            [("", "", ""), ("64", "32", ""), ("64", "", "2025-11-19T10:10:00Z")]
        {
            let fields = DIVISION.map(|key| field(key).to_owned());
            let shared = fields.into_iter().zip([count, before, from].map(str::to_owned));
            assert_eq!(Division::read(&shared.collect()), None);
        }
    }
}
