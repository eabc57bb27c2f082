//! Where lists are kept: under a fixed number of names, however many lists are asked for.
//!
//! A list has a slot by its parameters, and two by its id, of which it takes one. Its value begins with what it is a list of, so that nobody
//! takes another's. Whoever finds another's list in the slot of his own leaves it there as long as it lives, and
//! has his list of this node alone, which has as many slots; whoever finds another there, too, computes for himself.
//! Where both slots of an id are taken the newest list stays.

use std::sync::Arc;
use std::time::Duration;

use coordination::{
    Arbiter, ComputeError, ComputeOnce, ComputeSettings, Computed, InvalidSetting, Token,
    is_to_be_refreshed,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::http::problem::Problem;

/// How long a list is the present one.
pub(super) const LIST_TTL: Duration = Duration::from_secs(30);
/// How long a list can be had by its id, at most.
pub(super) const KEPT_TTL: Duration = Duration::from_secs(600);
/// After how long another node computes when the one that did is gone.
const LOCK_TTL: Duration = Duration::from_secs(3);
/// How long a request waits for a computation. It goes on without the request, and serves the next.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long a computation may take: waiting for its turn, looking through the counts, and more.
const COMPUTED_WITHIN: Duration = Duration::from_secs(20);
/// The slots of present lists.
const PRESENT_SLOTS: u64 = 512;
/// The slots of lists that can be had by their ids.
const KEPT_SLOTS: u64 = 256;
/// β of early refresh.
const BETA: f64 = 1.0;

/// The lists of all nodes, or of this one.
#[derive(Debug, Clone)]
pub(super) struct Lists {
    present: ComputeOnce,
    kept: ComputeOnce,
    /// Whether all nodes have them.
    shared: bool,
}

/// A list that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) id: String,
    /// As it was computed.
    pub(super) list: Vec<u8>,
    pub(super) age: Duration,
    /// How long it can still be had in the same way.
    pub(super) remaining: Duration,
    /// Whether all nodes have it.
    pub(super) shared: bool,
}

/// What those who wait for a list get when its computation fails, as JSON.
#[derive(Serialize, Deserialize)]
struct Failure {
    /// The hash of the list's parameters: others wait for another list of the slot.
    of: u64,
    problem: Problem,
}

impl Lists {
    pub(super) fn new(arbiter: &Arc<dyn Arbiter>, shared: bool) -> Result<Self, InvalidSetting> {
        let once = |value_ttl| {
            let settings = ComputeSettings {
                lock_ttl: LOCK_TTL,
                value_ttl,
                computation_max: COMPUTED_WITHIN,
                ..ComputeSettings::default()
            };
            ComputeOnce::new(Arc::clone(arbiter), settings)
        };
        Ok(Self { present: once(LIST_TTL)?, kept: once(KEPT_TTL)?, shared })
    }

    /// The list, if this value is one of `label`. Its id is the token of its computation unless it is given.
    fn found(&self, value: &Computed, label: &str, id: Option<&str>) -> Option<Found> {
        Some(Found {
            id: id.map_or_else(|| value.token().to_string(), str::to_owned),
            list: contents(value.bytes(), label)?.to_vec(),
            age: value.age(),
            remaining: value.remaining(),
            shared: self.shared,
        })
    }

    /// The present list of these parameters, if there is one.
    pub(super) async fn peek(&self, key: &str) -> Result<Option<Found>, ComputeError> {
        let value = self.present.peek(&present_slot(key)).await?;
        Ok(value.and_then(|value| self.found(&value, key, None)))
    }

    /// The list of these parameters that was given this id, if it is kept.
    pub(super) async fn by_id(&self, id: &str, key: &str) -> Result<Option<Found>, ComputeError> {
        let label = kept_label(id, key);
        for slot in kept_slots(id) {
            let value = self.kept.peek(&slot).await?;
            if let Some(found) = value.and_then(|value| self.found(&value, &label, Some(id))) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The present list of these parameters, computed if there is none; `None` where another list is in its slot.
    pub(super) async fn get<F>(
        &self,
        key: &str,
        refresh: bool,
        compute: impl Fn(Token) -> F + Send + Sync + 'static,
    ) -> Result<Option<Found>, Problem>
    where
        F: Future<Output = Result<Vec<u8>, Problem>> + Send + 'static,
    {
        let of = xxh3_64(key.as_bytes());
        let label = key.to_owned();
        let labelled = move |token| {
            let (computing, label) = (compute(token), label.clone());
            async move {
                match computing.await {
                    Ok(list) => Ok(labelled(&label, &list)),
                    Err(problem) => {
                        Err(serde_json::to_string(&Failure { of, problem }).unwrap_or_default())
                    }
                }
            }
        };
        let outdated = |entry: &coordination::Entry| {
            refresh && contents(&entry.value, key).is_some() && is_to_be_refreshed(entry, BETA)
        };
        let slot = present_slot(key);
        match self.present.get_unless(&slot, PATIENCE, labelled, outdated).await {
            Ok(value) => Ok(self.found(&value, key, None)),
            Err(ComputeError::Failed(failure)) => match serde_json::from_str(&failure) {
                Ok(Failure { of: its, problem }) if its == of => Err(problem),
                _ => Ok(None),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps a list for requests by its id: in its first slot if that is free, or else in its second, where it replaces an older
    /// list.
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
            tracing::warn!(%error, "a list cannot be had by its id");
        }
    }
}

fn present_slot(key: &str) -> String {
    format!("top:{}", xxh3_64(key.as_bytes()) % PRESENT_SLOTS)
}

/// Returns the two slots in which a list of this id may be. With one slot each, two of few lists would share it now and then.
fn kept_slots(id: &str) -> [String; 2] {
    let hash = xxh3_64(id.as_bytes());
    [hash, hash / KEPT_SLOTS].map(|hash| format!("list:{}", hash % KEPT_SLOTS))
}

fn kept_label(id: &str, key: &str) -> String {
    format!("{id}:{key}")
}

/// A list with what it is a list of: a line of JSON or of letters and digits, so it has one end.
fn labelled(label: &str, list: &[u8]) -> Vec<u8> {
    [label.as_bytes(), b"\n", list].concat()
}

/// The list, if it is of this.
fn contents<'a>(value: &'a [u8], label: &str) -> Option<&'a [u8]> {
    value.strip_prefix(label.as_bytes())?.strip_prefix(b"\n")
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
