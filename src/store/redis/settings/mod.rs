//! The cluster-wide settings: keys of the configuration that have the same value on all nodes, and in Redis.
//!
//! The first node writes its values; each later node compares. A difference in how events are kept makes Redis unusable
//! for a node; any other keeps a node from closing minutes and sending, but not from recording. With the settings Redis keeps
//! the format of keys and scripts.

mod division;
mod leftovers;
mod repartition;

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::Utc;
use redis::{Cmd, pipe};
use redis_link::Connection;
use siphasher::sip::SipHasher13;

use self::division::{Division, written};
pub(super) use self::division::{Shared, Standing, field};
pub(super) use self::leftovers::RESTS;
pub use self::repartition::ChangeError;
use super::{Layout, fault};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partitions};
use crate::store::{Result, StoreError};

/// The formats that this version reads: the meaning of key names, their contents and the scripts. This version writes the last one.
pub const FORMATS: RangeInclusive<u32> = 4..=4;
/// A field of the settings: the format.
const FORMAT: &str = "format";
/// A field of the settings: the version that wrote the format.
const FORMAT_BY: &str = "format_by";
/// A field of the settings, with the layout `log`: the key of fingerprints, in hexadecimal.
const FINGERPRINT_KEY: &str = "fingerprint_key";
/// The key of the configuration that says, with the division, how events are kept.
const LAYOUT: &str = "store.layout";

/// Which settings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// The division and the layout.
    Kept,
    /// All.
    All,
}

/// The settings of this node, and how they differ from those in Redis.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The key in Redis.
    pub(super) key: String,
    /// Keys of the configuration with the values of this node.
    pub(super) ours: Vec<(String, String)>,
    division: Division,
    /// With the layout `log`: the key of fingerprints, once it is known. The first node chooses it; a node that knows it
    /// writes it again into a Redis that lost it.
    fingerprint_key: Option<Mutex<Option<Key>>>,
    /// Every event is younger.
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
        let kept = division::KEYS.into_iter().zip(division.values());
        let ours = kept.chain([(LAYOUT, layout.name().to_owned())]);
        Self {
            key,
            ours: ours.map(|(key, value)| (key.to_owned(), value)).collect(),
            division,
            fingerprint_key: (layout == Layout::Log).then(Mutex::default),
            retention,
        }
    }

    /// The key of fingerprints, once this node agreed with all others.
    pub(super) fn fingerprint_key(&self) -> Option<Key> {
        *lock(self.fingerprint_key.as_ref()?)
    }

    /// Keeps the key of fingerprints in Redis.
    pub(super) fn learn_fingerprint_key(&self, shared: &Shared) {
        let stands = shared.get(FINGERPRINT_KEY);
        let stands = stands.and_then(|key| u128::from_str_radix(key, 16).ok());
        if let (Some(known), Some(stands)) = (&self.fingerprint_key, stands.map(Key)) {
            let before = lock(known).replace(stands);
            if before.is_some_and(|before| before != stands) {
                tracing::warn!(
                    "another key of fingerprints stands in Redis, which had lost it; the counts of the minutes that are open now \
                     may be too high"
                );
            }
        }
    }

    /// Compares with the settings in Redis, and adds missing ones. A node that is new here must agree
    /// in everything, a node that agreed before in the division and the layout. Returns the settings in Redis.
    pub(super) async fn check(&self, connection: &mut Connection, is_new: bool) -> Result<Shared> {
        let mut shared = self.read(connection).await?;
        let compared = if is_new { Compared::All } else { Compared::Kept };
        if unreadable(&shared).is_some() {
            return self.agreed(shared, compared);
        }
        let is_missing = |(key, _): &&(String, String)| !shared.contains_key(field(key));
        let mut missing: Vec<_> = self.ours.iter().filter(is_missing).cloned().collect();
        if self.fingerprint_key.is_some() && !shared.contains_key(FINGERPRINT_KEY) {
            let key = self.fingerprint_key().unwrap_or_else(|| Key(rand::random()));
            missing.push((FINGERPRINT_KEY.to_owned(), format!("{:032x}", key.0)));
        }
        // Written only when settings are missing: a Redis over its memory limit refuses writes, and a node that
        // connects to it must be able to drain it.
        if !missing.is_empty() {
            match self.propose(connection, &missing).await {
                Err(StoreError::Full(_)) if !shared.is_empty() => {}
                proposed => {
                    proposed?;
                    shared = self.read(connection).await?;
                }
            }
        }
        self.agreed(shared, compared)
    }

    fn agreed(&self, shared: Shared, compared: Compared) -> Result<Shared> {
        let difference = self.difference(&shared, compared);
        difference.map_or(Ok(shared), |found| Err(StoreError::Refused(found)))
    }

    async fn read(&self, connection: &mut Connection) -> Result<Shared> {
        let read = Cmd::hgetall(&self.key);
        read.query_async(connection).await.map_err(|error| fault::store_error(&error))
    }

    /// Writes settings of this node, except fields that exist.
    async fn propose(
        &self,
        connection: &mut Connection,
        missing: &[(String, String)],
    ) -> Result<()> {
        let mut pipeline = pipe();
        pipeline.atomic();
        for (key, value) in missing {
            pipeline.hset_nx(&self.key, field(key), value).ignore();
        }
        pipeline
            .hset_nx(&self.key, FORMAT, FORMATS.end())
            .ignore()
            .hset_nx(&self.key, FORMAT_BY, crate::BUILD)
            .ignore();
        pipeline.exec_async(connection).await.map_err(|error| fault::store_error(&error))
    }

    /// The relation of this node's division to that in Redis.
    pub(super) fn standing(&self, shared: &Shared) -> Standing {
        let retention = i64::try_from(self.retention.as_secs().div_ceil(60)).unwrap_or(i64::MAX);
        let oldest = now().epoch_minutes().saturating_sub(retention);
        let oldest = Minute::from_epoch_minutes(oldest).unwrap_or(Minute::MIN);
        Division::read(shared).map_or(Standing::Apart, |all| self.division.to(&all, oldest))
    }

    /// The difference in the compared settings, with both values and a remedy.
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
            if division::KEYS.contains(&key) {
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
        let each = differs.iter().map(|(key, theirs, ours)| {
            format!("{key} = {}, and this one {}", shown(theirs), shown(ours))
        });
        let reason = each.collect::<Vec<_>>().join("; ");
        if differs.is_empty() {
            return None;
        }
        let is_divided = differs.iter().any(|(key, ..)| division::KEYS.contains(&key.as_str()));
        let cause = if is_divided { Cause::SettingsDivision } else { Cause::Settings };
        let why = format!("the nodes of this Redis use {reason}");
        Some(Diagnosis::new(cause, why))
    }

    /// The diagnosis of a node that divides the minutes as all nodes only before this one.
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

/// Why this version must not use the keys in Redis: both formats.
fn unreadable(shared: &Shared) -> Option<String> {
    if shared.is_empty() {
        return None;
    }
    // The first builds wrote no format.
    let format = shared.get(FORMAT).map_or("1", String::as_str);
    let is_read = format.parse().is_ok_and(|format| FORMATS.contains(&format));
    let (first, last) = (FORMATS.start(), FORMATS.end());
    let ours = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let by = shared.get(FORMAT_BY).map_or("an unknown version", String::as_str);
    (!is_read).then(|| {
        format!("its keys have format {format}, written by {by}, and this version, {}, reads format {ours}", crate::BUILD)
    })
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The present minute by this host's clock.
fn now() -> Minute {
    let minutes = Utc::now().timestamp().div_euclid(60);
    Minute::from_epoch_minutes(minutes).unwrap_or(Minute::MAX)
}

/// A value in the form of a configuration file.
fn shown(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}

/// The key of the fingerprints of users and series, shared by all nodes and unknown to senders.
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
