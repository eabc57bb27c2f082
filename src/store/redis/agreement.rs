//! [`Agreement`]: the settings that all nodes must have alike, and those that stand in Redis.
//!
//! The first node writes its own; each later one compares. A difference in how the sets are kept makes Redis unusable
//! for a node; any other keeps a node from closing minutes and sending, but what it receives is good.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use redis::aio::MultiplexedConnection;

use super::gateway::Lane;
use super::{RedisStore, keys, reply};
use crate::store::StoreError;

/// The settings in Redis, by field.
pub(super) type Shared = BTreeMap<String, String>;

/// Those that say how the sets are kept. Their fields are older than the others, and named without a section.
const KEPT: [&str; 2] = ["store.partitions", "store.layout"];
/// For how long a node counts as alive: longer than the longest `flush.interval`.
const REGISTERED_FOR_MS: u64 = 150_000;
/// What earlier versions wrote instead of `input.max_age`.
const RETENTION: &str = "retention_ms";

/// The field of a key of the configuration.
pub(super) fn field(key: &str) -> &str {
    key.strip_prefix("store.").unwrap_or(key)
}

/// Whether a key of the configuration says how the sets are kept.
#[must_use]
pub fn is_kept(key: &str) -> bool {
    KEPT.contains(&key)
}

/// What this node must agree on with all others.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The key in Redis.
    pub(super) key: String,
    /// Keys of the configuration, and their values on this node.
    pub(super) ours: Vec<(String, String)>,
}

impl Agreement {
    /// Compares with what stands in Redis, and adds what does not stand there yet. A node that is new here must agree
    /// in everything, one that agreed before in how the sets are kept.
    pub(super) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        is_new: bool,
    ) -> Result<(), StoreError> {
        let mut shared = self.read(connection).await?;
        let is_missing = |(key, _): &(String, String)| !shared.contains_key(field(key));
        // Written only where some are missing: a Redis over its memory limit refuses writes, and a node that
        // connects to it then must be able to drain it.
        if self.ours.iter().any(is_missing) {
            match self.propose(connection).await {
                Err(StoreError::Full(_)) if !shared.is_empty() => {}
                proposed => {
                    proposed?;
                    shared = self.read(connection).await?;
                }
            }
        }
        let difference = self.difference(&shared, |key| is_new || is_kept(key));
        difference.map_or(Ok(()), Err)
    }

    async fn read(&self, connection: &mut MultiplexedConnection) -> Result<Shared, StoreError> {
        let read = redis::Cmd::hgetall(&self.key);
        let shared = read.query_async(connection).await;
        shared.map_err(|error| reply::store_error(&error))
    }

    /// Writes this node's settings, except those that another node wrote.
    async fn propose(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.atomic().hdel(&self.key, RETENTION).ignore();
        for (key, value) in &self.ours {
            pipeline.hset_nx(&self.key, field(key), value).ignore();
        }
        let proposed = pipeline.exec_async(connection).await;
        proposed.map_err(|error| reply::store_error(&error))
    }

    /// The difference in those of the keys that are looked at, with both values and what to do.
    pub(super) fn difference(
        &self,
        shared: &Shared,
        is_looked_at: impl Fn(&str) -> bool,
    ) -> Option<StoreError> {
        let differs = self.ours.iter().filter_map(|(key, ours)| {
            let theirs = shared.get(field(key)).filter(|theirs| *theirs != ours)?;
            is_looked_at(key).then_some((key, theirs, ours))
        });
        let differs: Vec<_> = differs.collect();
        let each = differs.iter().map(|(key, theirs, ours)| {
            format!("{key} = {}, and this one {}", shown(theirs), shown(ours))
        });
        let reason = each.collect::<Vec<_>>().join("; ");
        let mend = match differs.iter().find(|(key, ..)| is_kept(key)) {
            None if differs.is_empty() => return None,
            None => {
                "use the same on every node; to change it for all, run `eds settings apply` with the new configuration, \
                 and restart each node with it"
                    .to_owned()
            }
            Some(_) => format!(
                "use the same on every node; to change it, stop all nodes, let every minute be sent, and delete the \
                 key {}",
                self.key
            ),
        };
        Some(StoreError::Refused {
            reason: format!("the nodes of this Redis use {reason}"),
            mend,
        })
    }
}

impl RedisStore {
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

    /// Writes that this process is the node of its name. Each of two that live overwrites what the other wrote, again
    /// and again; one that was started in the place of another finds it there once, before it has written itself.
    pub(super) async fn register_name(&self) -> Result<bool, StoreError> {
        let key = self.keys.node(&self.name);
        let mut register = redis::cmd("SET");
        register.arg(&key).arg(&self.node).arg("GET");
        register.arg("PX").arg(REGISTERED_FOR_MS);
        let register =
            async |connection: &mut MultiplexedConnection| register.query_async(connection).await;
        let slot = keys::slot(key.as_bytes());
        let found: Option<String> = self.gateway.run(slot, Lane::Draining, register).await?;
        let was_registered = self.registered.swap(true, Ordering::AcqRel);
        Ok(was_registered && found.is_some_and(|found| found != self.node))
    }

    /// Changes the values that stand in Redis for these keys of the configuration, all at once.
    pub async fn share(&self, settings: &[(&str, &str)]) -> Result<(), StoreError> {
        let fields: Vec<_> = settings
            .iter()
            .map(|(key, value)| (field(key), *value))
            .collect();
        self.gateway.share(&fields).await
    }
}

/// A value as a configuration file has it.
fn shown(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}
