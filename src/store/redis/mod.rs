//! The store of a cluster of nodes: sets or logs in Redis. A call goes through the `gateway` to the server of its slot, if
//! `fault` finds the server usable for events. `life` has the steps that both layouts, `sets` and `log`, share.

mod counted;
mod fault;
mod gateway;
mod keys;
mod layout;
mod life;
mod log;
mod rights;
mod scripts;
mod sets;
mod settings;
mod survey;
mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis_link::{Address, SettingsError};

use self::gateway::Gateway;
pub use self::keys::partitions;
use self::layout::RecordedMinutes;
pub use self::life::{Dropped, Quarantined};
pub use self::settings::{ChangeError, FORMATS};
use self::settings::{RESTS, field};
pub use self::survey::Register;
use super::{Capabilities, Registry as _, Result, Store};
use crate::diagnosis::Diagnosis;
use crate::event::{Partition, Partitions};

fn sources() -> impl Iterator<Item = &'static scripts::Source> {
    let sources = gateway::sources().chain(life::sources()).chain(survey::sources());
    let sources = sources.chain(sets::sources()).chain(log::sources());
    sources.chain(counted::sources()).chain(windows::sources())
}

/// Returns the SHA1 hash by which Redis knows each script, by file name.
#[must_use]
pub fn scripts() -> BTreeMap<&'static str, &'static str> {
    sources().map(|source| (source.file, source.script.get_hash())).collect()
}

/// How the users and events of a minute are stored until the minute is sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Two sets per series: its users and its events.
    #[default]
    Sets,
    /// Logs of 64-bit fingerprints, one per process: cheaper under heavy load, and exact except for collisions.
    Log,
}

impl Layout {
    /// Returns the name of this layout in the configuration and in Redis.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sets => "sets",
            Self::Log => "log",
        }
    }
}

/// The settings of a Redis store.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Settings {
    pub redis: redis_link::Settings,
    /// The prefix of all key names.
    pub prefix: String,
    pub partitions: Partitions,
    pub layout: Layout,
    /// How long sent counts are kept, and closed minutes are remembered: twice the maximum age of an event.
    pub retention: Duration,
    /// The maximum number of sent counts that are kept, over all partitions. If there are more, they expire sooner.
    pub counts_max: u64,
    /// This node's name. Two nodes with the same name do not interfere with each other.
    pub node: String,
}

/// Sets or logs in Redis, shared by all nodes.
#[derive(Debug)]
pub struct RedisStore {
    gateway: Gateway,
    layout: Box<dyn RecordedMinutes>,
    windows: windows::Windows,
    /// The reports and losses, which operators can access in any state of the servers.
    register: Arc<Register>,
    is_cluster: bool,
    left: Mutex<Option<Diagnosis>>,
    /// The [`Store::warnings`] that have been logged and still apply.
    warned: Mutex<Vec<Diagnosis>>,
}

impl RedisStore {
    /// Creates a store with these settings. Connects on the first call.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let (redis, prefix) = (settings.redis.clone(), &settings.prefix);
        let register = Register::new(redis, prefix, "nodes", &settings.node)?;
        Ok(Self {
            gateway: Gateway::new(settings, register.identity().to_owned())?,
            layout: match settings.layout {
                Layout::Sets => Box::new(sets::Sets::new()),
                Layout::Log => Box::new(log::Logs::new(settings.redis.timeouts.response)),
            },
            windows: windows::Windows::new(),
            register: Arc::new(register),
            is_cluster: matches!(settings.redis.address, Address::Cluster(_)),
            left: Mutex::default(),
            warned: Mutex::default(),
        })
    }

    /// Adds these configuration keys and values to the settings that must be the same on all nodes.
    #[must_use]
    pub fn alike_in(mut self, settings: &[(&str, String)]) -> Self {
        let known = &mut self.gateway.agreement.settings;
        for (key, value) in settings {
            if !known.iter().any(|(name, _)| name == key) {
                known.push(((*key).to_owned(), value.clone()));
            }
        }
        self
    }

    /// Returns the values of these configuration keys in Redis, whether or not this store agrees with them.
    pub async fn shared<'a>(
        &self,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Option<String>>> {
        let mut shared = self.gateway.shared().await?;
        Ok(keys.map(|key| shared.remove(field(key))).collect())
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn check(&self) -> Result<()> {
        let checked = self.gateway.check().await;
        let warnings = self.warnings();
        let mut warned = lock(&self.warned);
        for warning in warnings.iter().filter(|warning| !warned.contains(warning)) {
            tracing::warn!("{warning}");
        }
        *warned = warnings;
        checked
    }

    async fn difference(&self) -> Result<Option<Diagnosis>> {
        self.gateway.difference().await
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { finds_new_users: self.layout.user_sets().is_none(), ..Capabilities::SHARED }
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.gateway.generation(partition)
    }

    fn warnings(&self) -> Vec<Diagnosis> {
        self.gateway.warnings().into_iter().chain(lock(&self.left).clone()).collect()
    }

    async fn look_for_leftovers(&self) -> Result<()> {
        let left = self.leftovers(RESTS).await?;
        *lock(&self.left) = left;
        Ok(())
    }

    fn describe(&self) -> String {
        self.gateway.redis.describe()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a duration in whole milliseconds for scripts, capped at 2^42, which Lua represents exactly.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(1 << 42)
}

#[cfg(test)]
mod format_tests;
