//! [`Agreement`]: the settings that all nodes must have alike, and those that stand in Redis.
//!
//! The first node writes its own; each later one compares. A difference in how the sets are kept makes Redis unusable
//! for a node; any other keeps a node from closing minutes and sending, but what it receives is good. With the settings
//! stands the format: what the keys and scripts mean.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::Utc;
use redis_link::Connection;

use super::division::{self, Division, Shared, Standing, field, written};
use super::fingerprint::Key;
use super::{Layout, fault};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::store::StoreError;

/// The formats that this version reads: what the names of the keys, their contents and the scripts mean. The last is
/// the one that it writes.
pub const FORMATS: RangeInclusive<u32> = 4..=4;
/// Beside the settings: the format, and the version that wrote it.
pub(super) const FORMAT: &str = "format";
pub(super) const FORMAT_BY: &str = "format_by";

/// Beside the settings, with the layout `log`: what fingerprints are made with, in hexadecimal.
const FINGERPRINT_KEY: &str = "fingerprint_key";

/// It says, with the division, how the sets are kept. Its field is older than the others, and named without a section.
pub(super) const LAYOUT: &str = "store.layout";
/// Which settings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// Those that say how the sets are kept.
    Kept,
    /// All.
    All,
}

/// What this node must agree on with all others.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The key in Redis.
    pub(super) key: String,
    /// Keys of the configuration, and their values on this node.
    pub(super) ours: Vec<(String, String)>,
    pub(super) division: Division,
    /// With the layout `log`: what fingerprints are made with, once that is known. Whoever is the first chooses it; who knows it
    /// writes it again into a Redis that lost it.
    fingerprint_key: Option<Mutex<Option<Key>>>,
    /// No event is as old.
    pub(super) retention: Duration,
}

impl Agreement {
    pub(super) fn new(
        key: String,
        division: Division,
        layout: Layout,
        retention: Duration,
    ) -> Self {
        let fingerprint_key = (layout == Layout::Log).then(Mutex::default);
        let layout = (LAYOUT, layout.name().to_owned());
        let kept = division::KEYS.into_iter().zip(division.values());
        let ours = kept.chain([layout]);
        Self {
            key,
            ours: ours.map(|(key, value)| (key.to_owned(), value)).collect(),
            division,
            fingerprint_key,
            retention,
        }
    }

    /// What fingerprints are made with, once this node agreed with all others.
    pub(super) fn fingerprint_key(&self) -> Option<Key> {
        *lock(self.fingerprint_key.as_ref()?)
    }

    /// Keeps what fingerprints are made with as it stands in Redis.
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

    /// Compares with what stands in Redis, and adds what does not stand there yet. A node that is new here must agree
    /// in everything, one that agreed before in how the sets are kept. Answers what stands there.
    pub(super) async fn check(
        &self,
        connection: &mut Connection,
        is_new: bool,
    ) -> Result<Shared, StoreError> {
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
        // Written only where some are missing: a Redis over its memory limit refuses writes, and a node that
        // connects to it then must be able to drain it.
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

    fn agreed(&self, shared: Shared, compared: Compared) -> Result<Shared, StoreError> {
        let difference = self.difference(&shared, compared);
        difference.map_or(Ok(shared), |found| Err(StoreError::Refused(found)))
    }

    async fn read(&self, connection: &mut Connection) -> Result<Shared, StoreError> {
        let read = redis::Cmd::hgetall(&self.key);
        let shared = read.query_async(connection).await;
        shared.map_err(|error| fault::store_error(&error))
    }

    /// Writes settings of this node, except those that another node wrote.
    async fn propose(
        &self,
        connection: &mut Connection,
        missing: &[(String, String)],
    ) -> Result<(), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for (key, value) in missing {
            pipeline.hset_nx(&self.key, field(key), value).ignore();
        }
        pipeline
            .hset_nx(&self.key, FORMAT, FORMATS.end())
            .ignore()
            .hset_nx(&self.key, FORMAT_BY, crate::BUILD)
            .ignore();
        let proposed = pipeline.exec_async(connection).await;
        proposed.map_err(|error| fault::store_error(&error))
    }

    /// How this node's division stands to that in Redis.
    pub(super) fn standing(&self, shared: &Shared) -> Standing {
        let retention = i64::try_from(self.retention.as_secs().div_ceil(60)).unwrap_or(i64::MAX);
        let oldest = now().epoch_minutes().saturating_sub(retention);
        match Division::read(shared) {
            None => Standing::Apart,
            Some(all) => {
                let oldest = Minute::from_epoch_minutes(oldest).unwrap_or(Minute::MIN);
                self.division.to(&all, oldest)
            }
        }
    }

    /// The difference in what is compared, with both values and what to do.
    pub(super) fn difference(&self, shared: &Shared, compared: Compared) -> Option<Diagnosis> {
        if let Some(reason) = unreadable(shared) {
            return Some(Diagnosis::new(Cause::SettingsFormat, reason));
        }
        let standing = self.standing(shared);
        match standing {
            Standing::Until(from) if compared == Compared::All && from <= now() => {
                return Some(self.outdated(from, shared));
            }
            _ => {}
        }
        let is_compared = |key: &str| match (division::KEYS.contains(&key), compared) {
            (true, _) => standing == Standing::Apart,
            (false, compared) => compared == Compared::All || key == LAYOUT,
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

    /// What is wrong with a node whose minutes are divided as those of all only before this one.
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

/// Why this version must not touch what is in Redis: both formats.
pub(super) fn unreadable(shared: &Shared) -> Option<String> {
    if shared.is_empty() {
        return None;
    }
    // The first builds wrote none.
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

/// The present minute, by this host's clock.
pub(super) fn now() -> Minute {
    let minutes = Utc::now().timestamp().div_euclid(60);
    Minute::from_epoch_minutes(minutes).unwrap_or(Minute::MAX)
}

/// A value as a configuration file has it.
fn shown(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}
