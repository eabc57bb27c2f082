//! Sealing from logs: they are cut, counted, and their counts fixed in steps.
//!
//! A cut of which something is sealed stays as it is until all of it is, whoever does so. What begins after it is the next cut's.

use std::collections::HashMap;
use std::time::Duration;

use super::pieces::{Length, Place};
use super::{LogKeys, Logs};
use crate::store::redis::draining::held;
use crate::store::redis::gateway::DRAINING;
use crate::store::redis::step::{Compacted, compaction, outputs_of_step, pieces};
use crate::store::redis::{RedisStore, scripts};
use crate::store::{Claim, Compaction, OutputName, SeriesCounts, StoreError};

/// The most that is kept of claims whose holder does not go on with them.
const KEPT_MAX: usize = 64;

/// The counts of a cut, and how many of them are sealed.
#[derive(Debug)]
pub(super) struct Sealing {
    token: String,
    counts: Vec<SeriesCounts>,
    /// How many events of the cut are copies of others of it, as long as that is not told.
    repeated: u64,
    done: usize,
}

impl RedisStore {
    /// See [`compact`](crate::store::Draining::compact).
    pub(in crate::store::redis) async fn seal(
        &self,
        logs: &Logs,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        outputs: &[OutputName],
    ) -> Result<Compaction, StoreError> {
        let place = (claim.partition, claim.minute);
        let begun = logs.sealing.take(&place);
        let begun = begun.filter(|begun| begun.token == claim.token);
        let mut sealing = match begun {
            Some(sealing) => sealing,
            None => self.cut(logs, claim).await?,
        };
        let (from, all) = (sealing.done, sealing.counts.len());
        let next = &sealing.counts[from..all.min(from + series_max)];
        let next = pieces(next, |counts| counts.series.len()).next();
        let next = next.unwrap_or_default();
        let to = from + next.len();
        let keys = self.keys(claim.partition);
        let of = LogKeys::new(keys, claim.minute);
        let mut script = scripts::SEAL.prepare_invoke();
        script
            .key(&[&keys.claims, &keys.tokens, &of.logs])
            .key(format!("{}counts", of.base))
            .key(&[&keys.witness, &keys.closed, &keys.arrivals, &keys.outputs])
            .key(&[&keys.stamps, &of.cut]);
        self.step(&mut script, claim, outputs.len(), lease);
        outputs_of_step(&mut script, keys, claim.minute, outputs);
        script.arg(from).arg(all);
        for counts in next {
            let value = format!("{}:{}", counts.unique, counts.cumulative);
            script.arg(&counts.series).arg(value);
        }
        let answer = self.invoke_in(claim.generation, keys.slot, script);
        let compacted: Compacted = held(answer.await?)?;
        let mut compaction = compaction(claim, compacted);
        compaction.repeated = std::mem::take(&mut sealing.repeated);
        if to < all {
            sealing.done = to;
            let is_room = logs.sealing.lock().len() < KEPT_MAX;
            logs.sealing.put(place, sealing, |_| is_room);
        }
        Ok(compaction)
    }

    async fn cut(&self, logs: &Logs, claim: &Claim) -> Result<Sealing, StoreError> {
        let keys = self.keys(claim.partition);
        let of = LogKeys::new(keys, claim.minute);
        let mut script = scripts::CUT.prepare_invoke();
        script
            .key(&[&keys.tokens, &of.logs, &of.cut])
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(of.log(""));
        let answer = self.invoke_in(claim.generation, keys.slot, script);
        let mut cut: HashMap<String, i64> = held(answer.await?)?;
        let token = claim.token.clone();
        let Ok(done) = usize::try_from(cut.remove("done").unwrap_or_default()) else {
            // All of it is sealed, and its logs are about to go.
            return Ok(Sealing { token, counts: Vec::new(), repeated: 0, done: 0 });
        };
        let length = |(name, frames)| (name, u64::try_from(frames).unwrap_or(0));
        let cut: Vec<Length> = cut.into_iter().map(length).collect();
        let place = Place {
            partition: claim.partition,
            minute: claim.minute,
            lane: DRAINING,
            generation: claim.generation,
            may_go: false,
            logs: &cut,
        };
        let (counts, events) = self.count(logs, place).await?;
        let different: u64 = counts.iter().map(|counts| counts.cumulative).sum();
        // Whoever sealed a part of it told it.
        let repeated = if done == 0 { events - different } else { 0 };
        Ok(Sealing { token, done: done.min(counts.len()), counts, repeated })
    }
}
