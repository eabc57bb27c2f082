//! The cluster-wide settings: configuration keys that must have the same value on all nodes, and are stored in Redis.
//!
//! The first node writes its values, and each later node compares its own. If they differ in how events are stored, the node
//! cannot use Redis. Any other difference keeps the node from closing minutes and sending, but not from recording. The format
//! of keys and scripts is stored along with the settings.
//!
//! The partition count is the same for all nodes. It changes at the start of a future minute, so that a node that does not
//! know about the change works until then.

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

/// The formats that this version can read: the meaning of key names, their contents and the scripts. It writes the last one.
pub const FORMATS: RangeInclusive<u32> = 4..=4;
/// Settings field: the format.
const FORMAT: &str = "format";
/// Settings field: the version that wrote the format.
const FORMAT_BY: &str = "format_by";
/// Settings field with the `log` layout: the fingerprint key, in hexadecimal.
const FINGERPRINT_KEY: &str = "fingerprint_key";
/// The configuration key that determines, together with the division, how events are stored.
const LAYOUT: &str = "store.layout";

/// The configuration keys for the division.
const DIVISION: [&str; 3] =
    ["store.partitions", "store.partitions_before", "store.partitions_from"];

/// The cluster-wide settings in Redis, by field.
pub(super) type Shared = BTreeMap<String, String>;

/// Returns the settings field for a configuration key.
pub(super) fn field(key: &str) -> &str {
    key.strip_prefix("store.").unwrap_or(key)
}

/// Which settings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// The division and the layout.
    Kept,
    /// All settings.
    All,
}

/// The settings of this node, and how they differ from those in Redis.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The key in Redis.
    pub(super) key: String,
    /// Configuration keys with this node's values.
    pub(super) ours: Vec<(String, String)>,
    division: Division,
    has_logs: bool,
    /// With the `log` layout: the fingerprint key, once it is known. The first node chooses it. If Redis loses the key, any
    /// node that knows it writes it again.
    fingerprint_key: Mutex<Option<Key>>,
    /// Every event is younger than this.
    retention: Duration,
}

impl Agreement {
    pub(super) fn new(
        key: String,
        partitions: &Partitions,
        layout: Layout,
        retention: Duration,
    ) -> Self {
        let division = Division::of(partitions);
        let kept = DIVISION.into_iter().zip(division.values());
        let ours = kept.chain([(LAYOUT, layout.name().to_owned())]);
        Self {
            key,
            ours: ours.map(|(key, value)| (key.to_owned(), value)).collect(),
            division,
            has_logs: layout == Layout::Log,
            fingerprint_key: Mutex::default(),
            retention,
        }
    }

    /// Returns the fingerprint key, once this node has agreed with all others.
    pub(super) fn fingerprint_key(&self) -> Option<Key> {
        *lock(&self.fingerprint_key)
    }

    /// Remembers the fingerprint key found in Redis.
    pub(super) fn learn_fingerprint_key(&self, shared: &Shared) {
        let found = shared.get(FINGERPRINT_KEY);
        let Some(found) = found.and_then(|key| u128::from_str_radix(key, 16).ok()).map(Key) else {
            return;
        };
        if lock(&self.fingerprint_key).replace(found).is_some_and(|before| before != found) {
            tracing::warn!(
                "Redis lost the key of fingerprints and has a new one; the counts of open minutes may be too high"
            );
        }
    }

    /// Returns the commands that add the settings missing in Redis, or `None` if it has all of them or a different format. A
    /// Redis over its memory limit rejects writes, and a node that connects to it must still be able to drain it.
    pub(super) fn proposal(&self, shared: &Shared) -> Option<Pipeline> {
        let is_missing = |(key, _): &&(String, String)| !shared.contains_key(field(key));
        let mut missing: Vec<_> = self.ours.iter().filter(is_missing).cloned().collect();
        if self.has_logs && !shared.contains_key(FINGERPRINT_KEY) {
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

    /// Rejects a difference in the compared settings.
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

    /// Returns the difference in the compared settings, with both values and a remedy.
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
        let differs = self.ours.iter().filter_map(|(key, ours)| {
            let theirs = shared.get(field(key))?;
            (theirs != ours && is_compared(key)).then_some((key, theirs, ours))
        });
        let differs: Vec<_> = differs.collect();
        if differs.is_empty() {
            return None;
        }
        let each = differs.iter().map(|(key, theirs, ours)| {
            format!("{key} = {}, and this node {}", shown(theirs), shown(ours))
        });
        let reason = each.collect::<Vec<_>>().join("; ");
        let is_divided = differs.iter().any(|(key, ..)| DIVISION.contains(&key.as_str()));
        let cause = if is_divided { Cause::SettingsDivision } else { Cause::Settings };
        let why = format!("the nodes of this Redis use {reason}");
        Some(Diagnosis::new(cause, why))
    }

    /// The diagnosis of a node whose division matches that of all nodes only before this minute.
    pub(super) fn outdated(&self, from: Minute, shared: &Shared) -> Diagnosis {
        let why = format!(
            "from {} on the minutes are divided into store.partitions = {}, and this node divides them into {}",
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
    let ours = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let by = shared.get(FORMAT_BY).map_or("an unknown version", String::as_str);
    (!is_read).then(|| {
        format!("its keys have format {format}, written by {by}, and this version, {}, reads format {ours}", crate::BUILD)
    })
}

/// The partition count of all minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    count: u16,
    /// The previous count, and the minute at which it changed.
    before: Option<(u16, Minute)>,
}

/// How a node's division relates to that of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Every minute that matters has the same partition count.
    Same,
    /// All minutes before this one have the same partition count.
    Until(Minute),
    /// The nodes must not work together.
    Apart,
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

    /// The values of [`DIVISION`].
    fn values(&self) -> [String; 3] {
        let (before, from) = self
            .before
            .map(|(before, from)| (before.to_string(), written(from)))
            .unwrap_or_default();
        [self.count.to_string(), before, from]
    }

    /// The fence that `admit.lua` reads: the minute, the count before it, and the count from it on.
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

/// The start of a minute in the format of the configuration.
fn written(minute: Minute) -> String {
    let at = DateTime::from_timestamp_nanos(minute.start_nanos());
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The current minute on this host's clock.
fn now() -> Minute {
    let minutes = Utc::now().timestamp().div_euclid(60);
    Minute::from_epoch_minutes(minutes).unwrap_or(Minute::MAX)
}

/// A value in the format of a configuration file.
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

    /// The fingerprint of a user.
    pub(super) fn user(self, user: &str) -> u64 {
        self.hasher().hash(user.as_bytes())
    }

    /// The fingerprint of a series that events came with.
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
        for (ours, all, expected) in [
            (thirty_two, thirty_two, Same),
            (thirty_two, sixty_four, Apart),
            (thirty_two, change, Until(minute(1000))),
            (change, change, Same),
            // The change was reverted, or Redis has lost it.
            (change, thirty_two, Apart),
            // It has different partitions for older minutes.
            (sixty_four, change, Apart),
            (division(16, None), change, Apart),
            (division(64, Some((32, 1001))), change, Apart),
            (division(128, Some((64, 1000))), change, Apart),
        ] {
            assert_eq!(ours.to(&all, minute(0)), expected, "{ours:?} {all:?}");
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
