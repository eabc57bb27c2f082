//! [`Lists`]: keeps lists in a fixed number of slots, however many lists are requested. A list's parameters determine its
//! slot. If a different list occupies the slot, this list is kept on this node only, or is computed for each request. Each
//! list is also kept under its ID in one of two slots. Every value begins with a label that identifies its list.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Arbiter, ComputeOnce, ComputeSettings, Computed, Error, InvalidSetting, Token};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::http::problem::Problem;

pub(super) const LIST_TTL: Duration = Duration::from_secs(30);
/// The time during which a list can be requested by its ID.
pub(super) const KEPT_TTL: Duration = Duration::from_secs(600);
/// The time after which another node takes over if the computing node dies.
const LOCK_TTL: Duration = Duration::from_secs(3);
/// The time for which a request waits for a computation, which continues afterwards so that later requests can use the list.
const PATIENCE: Duration = Duration::from_secs(12);
/// Maximum duration of a computation, including the wait for its turn.
const COMPUTED_WITHIN: Duration = Duration::from_secs(20);
/// The number of slots for each kind of list: whole lists, lists by position, and lists by ID.
const SLOTS: u64 = 256;

#[derive(Debug, Clone)]
pub(super) struct Lists {
    /// Lists that are requested as a whole. They are refreshed before they expire.
    whole: ComputeOnce,
    /// Lists that are requested by position. They are not refreshed early, so that a client does not mix two lists.
    by_position: ComputeOnce,
    kept: ComputeOnce,
    shared: bool,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) list: Vec<u8>,
    pub(super) age: Duration,
    pub(super) remaining: Duration,
    pub(super) shared: bool,
}

#[derive(Serialize, Deserialize)]
struct Failure {
    /// The hash of the list's parameters, so that requests for a different list in the same slot can ignore the failure.
    key_hash: u64,
    problem: Problem,
}

impl Lists {
    pub(super) fn new(arbiter: &Arc<dyn Arbiter>, shared: bool) -> Result<Self, InvalidSetting> {
        let once = |value_ttl, beta| {
            let settings = ComputeSettings {
                lock_ttl: LOCK_TTL,
                value_ttl,
                computation_max: COMPUTED_WITHIN,
                beta,
                ..ComputeSettings::default()
            };
            ComputeOnce::new(Arc::clone(arbiter), settings)
        };
        let (whole, by_position) = (once(LIST_TTL, 1.0)?, once(LIST_TTL, 0.0)?);
        Ok(Self { whole, by_position, kept: once(KEPT_TTL, 0.0)?, shared })
    }

    /// Returns the list in a value, or `None` if its label differs. The list's ID is `id`, or the token by default.
    fn found(&self, value: &Computed, label: &str, id: Option<&str>) -> Option<Found> {
        let list = value.bytes().strip_prefix(label.as_bytes())?.strip_prefix(b"\n")?;
        Some(Found {
            id: id.map_or_else(|| value.token().to_string(), str::to_owned),
            list: list.to_vec(),
            age: value.age(),
            remaining: value.remaining(),
            shared: self.shared,
        })
    }

    fn place(&self, key: &str, is_whole: bool) -> (&ComputeOnce, String) {
        let (lists, kind) =
            if is_whole { (&self.whole, "top") } else { (&self.by_position, "each") };
        (lists, format!("{kind}:{}", xxh3_64(key.as_bytes()) % SLOTS))
    }

    pub(super) async fn peek(&self, key: &str, is_whole: bool) -> Result<Option<Found>, Error> {
        let (lists, slot) = self.place(key, is_whole);
        let value = lists.peek(&slot).await?;
        Ok(value.and_then(|value| self.found(&value, key, None)))
    }

    pub(super) async fn by_id(&self, id: &str, key: &str) -> Result<Option<Found>, Error> {
        let label = kept_label(id, key);
        for slot in kept_slots(id) {
            let value = self.kept.peek(&slot).await?;
            if let Some(found) = value.and_then(|value| self.found(&value, &label, Some(id))) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the current list for the parameters in `key`, computing it if needed; `None` if another list has its slot.
    pub(super) async fn get<F>(
        &self,
        key: &str,
        is_whole: bool,
        compute: impl Fn(Token) -> F + Send + Sync + 'static,
    ) -> Result<Option<Found>, Problem>
    where
        F: Future<Output = Result<Vec<u8>, Problem>> + Send + 'static,
    {
        let (key_hash, label) = (xxh3_64(key.as_bytes()), key.to_owned());
        let compute = move |token| {
            let (computing, label) = (compute(token), label.clone());
            async move {
                let list = computing.await.map(|list| labelled(&label, &list));
                let failure = |problem| serde_json::to_string(&Failure { key_hash, problem });
                list.map_err(|problem| failure(problem).unwrap_or_default())
            }
        };
        let (lists, slot) = self.place(key, is_whole);
        match lists.get(&slot, PATIENCE, compute).await {
            Ok(value) => Ok(self.found(&value, key, None)),
            Err(Error::Failed(failure)) => match serde_json::from_str::<Failure>(&failure) {
                Ok(failure) if failure.key_hash == key_hash => Err(failure.problem),
                _ => Ok(None),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps a list under its ID: in the first of two slots if that is free, or else in the second, replacing its list.
    pub(super) async fn keep(&self, id: &str, key: &str, list: &[u8]) {
        let value = labelled(&kept_label(id, key), list);
        let compute = move |_| std::future::ready(Ok::<_, String>(value.clone()));
        let [first, second] = kept_slots(id);
        let kept = async {
            let is_free = self.kept.peek(&first).await?.is_none();
            let slot = if is_free { first } else { second };
            self.kept.invalidate(&slot).await?;
            self.kept.get(&slot, PATIENCE, compute).await
        };
        if let Err(error) = kept.await {
            tracing::warn!(%error, id, "cannot store a list under its ID; requests for that ID will fail");
        }
    }
}

/// Returns the two slots for an ID. With only one slot per ID, even a few lists would often collide.
fn kept_slots(id: &str) -> [String; 2] {
    let hash = xxh3_64(id.as_bytes());
    [hash, hash / SLOTS].map(|hash| format!("list:{}", hash % SLOTS))
}

fn kept_label(id: &str, key: &str) -> String {
    format!("{id}:{key}")
}

fn labelled(label: &str, list: &[u8]) -> Vec<u8> {
    [label.as_bytes(), b"\n", list].concat()
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
