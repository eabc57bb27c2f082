//! The store of a cluster of nodes: sets in Redis.
//!
//! `keys` names them, `record` fills them, the scripts drain them. A command goes through the `gateway`, by the crate
//! `redis-link`, to the server of its slot; `fitness` looks whether that can be trusted with them.

mod admission;
mod agreement;
mod division;
mod fault;
mod fitness;
#[cfg(test)]
mod format_tests;
mod gateway;
mod keys;
mod leftovers;
mod quarantine;
mod reading;
mod record;
mod repartition;
pub mod scripts;
mod unsent;
mod witness;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{FromRedisValue, RedisError, ScriptInvocation};
use async_trait::async_trait;
use redis_link::SettingsError;

use self::agreement::Agreement;
pub use self::agreement::FORMATS;
use self::division::Division;
use self::gateway::{DRAINING, Gateway, RECORDING};
pub use self::keys::partitions;
use self::keys::{Keys, PartitionKeys};
pub use self::repartition::ChangeError;
use super::{
    AdmitRequest, Admitted, Attested, Backlog, Claim, ClaimRequest, Claimed, Compaction,
    RecordRequest, SeriesUsers, Store, StoreError, Testimony, UnsentPage,
};
use crate::event::{Minute, Partition, Partitions};
use crate::store::witness::closed_minutes;

/// Where Redis is, and what is kept there.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it is and how to reach it.
    pub redis: redis_link::Settings,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// How the series are spread.
    pub partitions: Partitions,
    /// How long the counts of a minute are kept after it is done, and for how long before the newest one it is known which
    /// minutes are closed: twice the greatest age of an event, so that no event meets a minute that is forgotten.
    pub retention: Duration,
    /// The most counts that are kept after they are sent, over all partitions; where there are more they go sooner.
    pub counts_max: u64,
    /// This node's name, unique among the nodes. Two of one name do each other no harm.
    pub node: String,
}

/// Sets in Redis, shared by all nodes.
#[derive(Debug)]
pub struct RedisStore {
    name: String,
    /// The name, and a number by chance: another process of the same name, or an earlier one, is another node.
    node: String,
    /// Whether Redis knows that this node lives.
    registered: AtomicBool,
    partitions: Partitions,
    keys: Keys,
    /// What was found that no partition of this node's has, in words.
    left: Mutex<Option<String>>,
    retention: Duration,
    /// The counts that a partition keeps after they are sent.
    counts_max: u64,
    gateway: Gateway,
}

impl RedisStore {
    /// A store by these settings. Connects with the first call.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let keys = Keys::new(&settings.prefix, &settings.partitions);
        let division = Division::of(&settings.partitions);
        let agreement = Agreement::new(keys.settings(), division, settings.retention);
        Ok(Self {
            name: settings.node.clone(),
            node: format!("{}#{:08x}", settings.node, rand::random::<u32>()),
            registered: AtomicBool::new(false),
            retention: settings.retention,
            counts_max: settings.counts_max / u64::from(settings.partitions.count()),
            gateway: Gateway::new(settings, agreement)?,
            partitions: settings.partitions.clone(),
            left: Mutex::default(),
            keys,
        })
    }

    /// What this node is called in Redis: its name and a number by chance.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.node
    }

    fn keys(&self, partition: Partition) -> &PartitionKeys {
        self.keys.partition(partition)
    }

    /// Runs a command for a partition on the draining connection.
    async fn drain<T, F>(&self, partition: Partition, command: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    {
        self.gateway
            .run(self.keys(partition).slot, DRAINING, command)
            .await
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        slot: u16,
        script: ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let invoke = async move |connection: &mut MultiplexedConnection| {
            script.invoke_async(connection).await
        };
        self.gateway.run(slot, DRAINING, invoke).await
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn check(&self) -> Result<(), StoreError> {
        self.gateway.check().await
    }

    async fn difference(&self) -> Result<Option<StoreError>, StoreError> {
        self.gateway.difference().await
    }

    async fn register(&self) -> Result<bool, StoreError> {
        self.register_name().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.gateway.generation(self.keys(partition).slot)
    }

    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        self.ask_to_admit(partition, request).await
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.ask_for_users(partition, minute, series, users).await
    }

    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError> {
        let slot = self.keys(partition).slot;
        let pipeline = record::pipeline(self.keys(partition), recordings);
        let record =
            async |connection: &mut MultiplexedConnection| pipeline.query_async(connection).await;
        let run = self.gateway.run_in(generation, slot, RECORDING, record);
        let added: Vec<u64> = run.await?;
        Ok(record::repeated(recordings, &added))
    }

    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        self.hand_back(partition, testimony).await
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Claimed, StoreError> {
        self.claim_minutes(partition, request).await
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::COMPACT.prepare_invoke();
        script
            .key(&keys.claims)
            .key(&keys.tokens)
            .key(format!("{base}event_types"));
        script
            .key(format!("{base}counts"))
            .key(format!("{base}unsent"))
            .key(&keys.witness)
            .key(&keys.closed);
        script
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(series_max)
            .arg(millis(lease));
        script.arg(base).arg(claim.minute.epoch_minutes());
        let compact = async move |connection: &mut MultiplexedConnection| {
            script.invoke_async(connection).await
        };
        let answer = self
            .gateway
            .run_in(claim.generation, keys.slot, DRAINING, compact)
            .await?;
        let (sealed, late, left) = held(answer)?;
        Ok(Compaction { sealed, late, left })
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<UnsentPage, StoreError> {
        self.unsent_page(claim, cursor).await
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::ACKNOWLEDGE.prepare_invoke();
        script
            .key(&keys.claims)
            .key(&keys.tokens)
            .key(&keys.arrivals);
        script
            .key(format!("{base}event_types"))
            .key(format!("{base}counts"));
        script
            .key(format!("{base}unsent"))
            .key(&keys.minutes)
            .key(&keys.witness)
            .key(&keys.closed);
        script
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(millis(lease));
        script
            .arg(millis(self.retention))
            .arg(self.counts_max)
            .arg(claim.minute.epoch_minutes())
            .arg(closed_minutes(self.retention))
            .arg(series);
        held(self.invoke(keys.slot, script).await?)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        self.put_into_quarantine(claim, refused).await
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let keys = self.keys(partition);
        let mut script = scripts::EXTEND.prepare_invoke();
        script
            .key(&keys.claims)
            .key(&keys.tokens)
            .arg(millis(lease));
        for claim in claims {
            script.arg(claim.minute.to_string()).arg(&claim.token);
        }
        self.invoke(keys.slot, script).await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        self.look_at_backlog(partition).await
    }

    fn warnings(&self) -> Vec<String> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.gateway
            .warnings()
            .into_iter()
            .chain(left.clone())
            .collect()
    }

    async fn look_for_leftovers(&self) -> Result<(), StoreError> {
        self.tell_leftovers().await
    }

    fn describe(&self) -> String {
        self.gateway.describe()
    }
}

/// The scripts answer nothing when the token is not that of the claim.
fn held<T>(answer: Option<T>) -> Result<T, StoreError> {
    answer.ok_or(StoreError::ClaimLost)
}

/// Whole milliseconds, as the scripts take them: at most what a Lua number holds exactly.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis())
        .unwrap_or(u64::MAX)
        .min(1 << 42)
}
