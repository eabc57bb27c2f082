//! Seals minutes whose counts are computed by the node: from the lists of a minute, which are *cut* first so that every node
//! that takes over computes the same counts. The `log` layout has lists of events, and a window has lists of users.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use ::redis::{Cmd, pipe};
use tokio::time::Instant;

use super::gateway::At;
use super::keys::{Place, Scope};
use super::layout::{SEALING, held, names, pieces, seal, zeros_for};
use super::scripts::{SHARED, Source, scripts};
use super::{lock, millis};
use crate::store::{Bucket, Claim, Compaction, Result, SealRequest, SeriesCounts};

scripts! {
    CUT Cut = "cut.lua"() Partition[tokens] Minute[logs cut] => name base (token);
    SEAL Seal = SHARED + SEALING + "seal.lua"()
        Partition[claims tokens witness closed arrivals outputs stamps minutes active] Minute[logs counts cut kept]
        => name minute base kept_ms kept_counts (token lease_ms sealed_for zeros_for from all);
}

/// How long items are cached after their last use.
pub(super) const UNUSED_FOR: Duration = Duration::from_secs(120);

/// The name of a list, and how many of its elements are to be counted.
pub(super) type Length = (String, u64);

pub(super) fn log_key(place: Place<'_>, name: &str) -> String {
    place.key(Scope::Minute, "log:") + name
}

/// Returns the lists of a minute, each with its current length.
pub(super) async fn lengths(at: At<'_>) -> Result<Vec<Length>> {
    let names: Vec<String> = at.ask(Cmd::smembers(at.key("logs"))).await?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut lengths = pipe();
    for name in &names {
        lengths.llen(log_key(at.place, name));
    }
    let lengths: Vec<u64> = at.ask(lengths).await?;
    Ok(names.into_iter().zip(lengths).collect())
}

/// Items that a task takes out to work with and puts back after success. After a failure, an item is gone.
#[derive(Debug)]
pub(super) struct Taken<V>(Mutex<HashMap<Bucket, (V, Instant)>>);

impl<V> Taken<V> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    pub(super) fn take(&self, key: &Bucket) -> Option<V> {
        lock(&self.0).remove(key).map(|(value, _)| value)
    }

    /// Returns the sum of the values that `size` returns for each item.
    pub(super) fn sum(&self, size: impl Fn(&V) -> usize) -> usize {
        lock(&self.0).values().map(|(value, _)| size(value)).sum()
    }

    pub(super) fn put(&self, key: Bucket, value: V) {
        let mut all = lock(&self.0);
        all.retain(|_, (_, last_used)| last_used.elapsed() < UNUSED_FOR);
        all.insert(key, (value, Instant::now()));
    }
}

/// The counts of a cut, and how many of them have been sealed.
#[derive(Debug)]
struct Sealing {
    token: String,
    counts: Vec<SeriesCounts>,
    /// The number of duplicates in the cut; 0 once a step has returned it.
    repeated: u64,
    done: usize,
}

/// The minutes that this process is sealing.
#[derive(Debug)]
pub(super) struct Cuts(Taken<Sealing>);

impl Cuts {
    pub(super) fn new() -> Self {
        Self(Taken::new())
    }

    /// Implements [`OpenMinutes::seal`](super::layout::OpenMinutes::seal). Once part of a cut is sealed, the cut stays the
    /// same until all of it is sealed; newer lists belong to the next cut. `count` returns the counts, sorted by series, and
    /// the number of events, including duplicates.
    pub(super) async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
        count: impl AsyncFnOnce(Vec<Length>) -> Result<(Vec<SeriesCounts>, u64)>,
    ) -> Result<Compaction> {
        let begun = self.0.take(&at.bucket()).filter(|begun| begun.token == claim.token);
        let mut sealing = match begun {
            Some(sealing) => sealing,
            None => cut(at, claim, count).await?,
        };
        let (from, all) = (sealing.done, sealing.counts.len());
        let next = &sealing.counts[from..all.min(from + request.series_max)];
        let next = pieces(next, |counts| counts.series.len()).next().unwrap_or_default();
        let to = from + next.len();
        let mut script = Seal {
            token: &claim.token,
            lease_ms: millis(request.lease),
            sealed_for: names(request.outputs),
            zeros_for: zeros_for(at, request.zeros),
            from,
            all,
        }
        .at(&at.place);
        for counts in next {
            let value = format!("{}{}:{}", counts.quality, counts.unique, counts.cumulative);
            script.arg(&counts.series).arg(value);
        }
        let estimated = next.iter().filter(|counts| counts.quality.is_estimated).count() as u64;
        let mut compaction = seal(at, claim, script, request.outputs).await?;
        compaction.estimated = estimated.min(compaction.sealed);
        compaction.repeated = std::mem::take(&mut sealing.repeated);
        if to < all {
            sealing.done = to;
            self.0.put(at.bucket(), sealing);
        }
        Ok(compaction)
    }
}

async fn cut(
    at: At<'_>,
    claim: &Claim,
    count: impl AsyncFnOnce(Vec<Length>) -> Result<(Vec<SeriesCounts>, u64)>,
) -> Result<Sealing> {
    let token = claim.token.clone();
    let script = Cut { token: &token }.at(&at.place);
    let mut cut: HashMap<String, i64> = held(at.ask(script).await?)?;
    cut.remove("new");
    let Ok(done) = usize::try_from(cut.remove("done").unwrap_or_default()) else {
        // The whole cut has been sealed, and its lists are about to be dropped.
        return Ok(Sealing { token, counts: Vec::new(), repeated: 0, done: 0 });
    };
    let length = |(name, frames)| (name, u64::try_from(frames).unwrap_or(0));
    let mut cut: Vec<Length> = cut.into_iter().map(length).collect();
    cut.sort_unstable();
    let (counts, events) = count(cut).await?;
    let distinct: u64 = counts.iter().map(|counts| counts.cumulative).sum();
    // The node that sealed the first part has already returned the number of duplicates.
    let repeated = if done == 0 { events.saturating_sub(distinct) } else { 0 };
    Ok(Sealing { token, done: done.min(counts.len()), counts, repeated })
}
