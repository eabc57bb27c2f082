//! The store of a cluster of nodes: sets or logs in Redis.
//!
//! `keys` names them, `recording` fills them, the scripts drain them; `log` is the other layout. A command goes through the `gateway`, by the crate
//! `redis-link`, to the server of its slot; `fault` looks whether that can be trusted with them.

mod agreement;
mod backlog;
mod division;
mod draining;
mod fault;
mod fingerprint;
#[cfg(test)]
mod format_tests;
mod gateway;
mod keys;
mod leftovers;
mod log;
mod quarantine;
mod reading;
mod recording;
mod repartition;
mod rights;
mod step;
mod survey;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::redis::{FromRedisValue, RedisError, ScriptInvocation};
use async_trait::async_trait;
use redis_link::{Address, Attempts, Connection, Redis, SettingsError};

use self::agreement::Agreement;
pub use self::agreement::FORMATS;
use self::division::{Division, field};
use self::gateway::{DRAINING, Gateway};
pub use self::keys::partitions;
use self::keys::{Keys, PartitionKeys};
use self::log::Logs;
pub use self::repartition::ChangeError;
pub use self::survey::RelayRegister;
use super::{Capabilities, Store, StoreError};
use crate::diagnosis::Diagnosis;
use crate::event::{Partition, Partitions};

/// The Lua scripts. Each is atomic and works on one slot. Those that drain run also when Redis is over its memory
/// limit; `admit.lua`, with which recording begins, does not.
pub mod scripts {
    use std::sync::LazyLock;

    use redis::Script;

    /// With what the scripts share, behind the line that has the flags.
    fn script(text: &str) -> Script {
        let (flags, code) = text.split_once('\n').unwrap_or((text, ""));
        Script::new(&format!("{flags}\n{}{code}", include_str!("ending.lua")))
    }

    macro_rules! scripts {
        ($($name:ident, $sha1:ident => $file:literal;)*) => {$(
            pub(super) static $name: LazyLock<Script> =
                LazyLock::new(|| script(include_str!($file)));

            #[doc = concat!("The SHA1 by which Redis knows `", $file, "`.")]
            #[must_use]
            pub fn $sha1() -> &'static str {
                $name.get_hash()
            }
        )*};
    }

    scripts! {
        ADMIT, admit_sha1 => "admit.lua";
        ATTEST, attest_sha1 => "attest.lua";
        CHECK_IN, check_in_sha1 => "check_in.lua";
        CLAIM, claim_sha1 => "claim.lua";
        COMPACT, compact_sha1 => "compact.lua";
        PAGE, page_sha1 => "page.lua";
        RECORD, record_sha1 => "record.lua";
        APPEND, append_sha1 => "append.lua";
        CUT, cut_sha1 => "cut.lua";
        SEAL, seal_sha1 => "seal.lua";
        ACKNOWLEDGE, acknowledge_sha1 => "acknowledge.lua";
        ANNOUNCE, announce_sha1 => "announce.lua";
        EXTEND, extend_sha1 => "extend.lua";
        QUARANTINE, quarantine_sha1 => "quarantine.lua";
        REQUEUE, requeue_sha1 => "requeue.lua";
        DISCARD, discard_sha1 => "discard.lua";
        DROP_OUTPUT, drop_output_sha1 => "drop_output.lua";
        BACKLOG, backlog_sha1 => "backlog.lua";
        REPORT, report_sha1 => "report.lua";
        REPORTS, reports_sha1 => "reports.lua";
        LOSE, lose_sha1 => "lose.lua";
        ACKNOWLEDGE_LOSSES, acknowledge_losses_sha1 => "acknowledge_losses.lua";
    }
}

/// How users and events of a minute are kept until it is sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// Two sets for each series, of the users and of the events, by their names.
    #[default]
    Sets,
    /// Logs of fingerprints, one for each process: cheaper where there is much, and exact up to a collision of 64 bits.
    Log,
}

impl Layout {
    /// As it stands in the configuration and in Redis.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sets => "sets",
            Self::Log => "log",
        }
    }
}

/// Where Redis is, and what is kept there.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it is and how to reach it.
    pub redis: redis_link::Settings,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// How the series are spread.
    pub partitions: Partitions,
    /// How users and events are kept; the same for all nodes.
    pub layout: Layout,
    /// How long the counts of a minute are kept after it is done, and for how long before the newest one it is known which
    /// minutes are closed: twice the greatest age of an event, so that no event meets a minute that is forgotten.
    pub retention: Duration,
    /// The most counts that are kept after they are sent, over all partitions; where there are more they go sooner.
    pub counts_max: u64,
    /// This node's name, unique among the nodes. Two of one name do each other no harm.
    pub node: String,
}

/// Sets or logs in Redis, shared by all nodes.
#[derive(Debug)]
pub struct RedisStore {
    name: String,
    /// The name, and a number by chance: another process of the same name, or an earlier one, is another node.
    node: String,
    /// Whether this node has said in Redis that it lives.
    registered: AtomicBool,
    partitions: Partitions,
    keys: Keys,
    /// `None`: in sets.
    logs: Option<Logs>,
    /// What was found that no partition of this node's has.
    left: Mutex<Option<Diagnosis>>,
    /// What was logged of [`Store::warnings`], as long as it holds.
    warned: Mutex<Vec<Diagnosis>>,
    retention: Duration,
    /// The counts that a partition keeps after they are sent.
    counts_max: u64,
    gateway: Gateway,
    is_cluster: bool,
    /// For those who look at the whole, whatever state the servers are in.
    surveyed: Redis,
}

impl RedisStore {
    /// A store by these settings. Connects with the first call.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let keys = Keys::new(&settings.prefix, &settings.partitions);
        let division = Division::of(&settings.partitions);
        let agreement =
            Agreement::new(keys.settings(), division, settings.layout, settings.retention);
        Ok(Self {
            name: settings.node.clone(),
            node: format!("{}#{:08x}", settings.node, rand::random::<u32>()),
            registered: AtomicBool::new(false),
            retention: settings.retention,
            counts_max: settings.counts_max / u64::from(settings.partitions.count()),
            gateway: Gateway::new(settings, agreement)?,
            is_cluster: matches!(settings.redis.address, Address::Cluster { .. }),
            surveyed: Redis::new(settings.redis.clone(), survey::LANES, survey::any())?,
            partitions: settings.partitions.clone(),
            left: Mutex::default(),
            warned: Mutex::default(),
            logs: (settings.layout == Layout::Log)
                .then(|| Logs::new(settings.redis.timeouts.response)),
            keys,
        })
    }

    /// The same, but all nodes must be alike in these keys of the configuration, too.
    #[must_use]
    pub fn alike_in(mut self, settings: &[(&str, String)]) -> Self {
        let ours = &mut self.gateway.agreement.ours;
        for (key, value) in settings {
            if !ours.iter().any(|(known, _)| known == key) {
                ours.push(((*key).to_owned(), value.clone()));
            }
        }
        self
    }

    /// The values that stand in Redis for these keys of the configuration; `None`: none yet. For operators: it does
    /// not matter whether this store agrees with them.
    pub async fn shared<'a>(
        &self,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Option<String>>, StoreError> {
        let mut shared = self.gateway.shared().await?;
        Ok(keys.map(|key| shared.remove(field(key))).collect())
    }

    /// What the name of a minute's key ends with that has something while there is something to seal.
    const fn to_seal(&self) -> &'static str {
        match self.logs {
            None => "event_types",
            Some(_) => "logs",
        }
    }

    fn keys(&self, partition: Partition) -> &PartitionKeys {
        self.keys.partition(partition)
    }

    /// Runs a command for a partition on the draining connection.
    async fn drain<T, F>(&self, partition: Partition, command: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        self.gateway.run(self.keys(partition).slot, DRAINING, Attempts::One, command).await
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        slot: u16,
        script: ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        self.invoke_in(0, slot, script).await
    }

    /// Runs a script if the generation still is this one, or any if it is 0.
    async fn invoke_in<T: FromRedisValue>(
        &self,
        generation: u64,
        slot: u16,
        script: ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let invoke = async move |connection: &mut Connection| script.invoke_async(connection).await;
        let run = self.gateway.run_in(generation, slot, DRAINING, Attempts::One, invoke);
        run.await
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn check(&self) -> Result<(), StoreError> {
        let checked = self.gateway.check().await;
        let warnings = self.warnings();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings.iter().filter(|it| !warned.contains(it)) {
            tracing::warn!("{warning}");
        }
        *warned = warnings;
        checked
    }

    async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
        self.gateway.difference().await
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { finds_new_users: self.logs.is_some(), ..Capabilities::SHARED }
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.gateway.generation(self.keys(partition).slot)
    }

    fn warnings(&self) -> Vec<Diagnosis> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.gateway.warnings().into_iter().chain(left.clone()).collect()
    }

    async fn look_for_leftovers(&self) -> Result<(), StoreError> {
        let left = self.leftovers(leftovers::RESTS).await?;
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
        Ok(())
    }

    fn describe(&self) -> String {
        self.gateway.describe()
    }
}

/// Whole milliseconds, as the scripts take them: at most what a Lua number holds exactly.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(1 << 42)
}
