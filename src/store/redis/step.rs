//! A step of sealing, of either layout: what its script is told and what that answers.

use std::time::Duration;

use ::redis::ScriptInvocation;

use super::keys::PartitionKeys;
use super::{RedisStore, millis};
use crate::event::Minute;
use crate::store::{Claim, Compaction, OutputName};

/// Sealed, late, left, the token of the claims to send, their outputs.
pub(super) type Compacted = (u64, u64, u64, String, Vec<String>);

impl RedisStore {
    /// What a step of sealing is told first; `number` differs.
    pub(super) fn step(
        &self,
        script: &mut ScriptInvocation<'_>,
        claim: &Claim,
        number: usize,
        lease: Duration,
    ) {
        script
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(number)
            .arg(millis(lease))
            .arg(self.keys(claim.partition).minute(claim.minute))
            .arg(claim.minute.epoch_minutes())
            .arg(millis(self.retention))
            .arg(self.counts_max);
    }
}

/// The outputs for which a step of sealing seals, and their keys.
pub(super) fn outputs_of_step(
    script: &mut ScriptInvocation<'_>,
    keys: &PartitionKeys,
    minute: Minute,
    outputs: &[OutputName],
) {
    let unsent = format!("{}unsent", keys.minute(minute));
    for output in outputs {
        let of = |key: &str| PartitionKeys::of(key, Some(output));
        script
            .key(&[of(&keys.claims), of(&keys.tokens), of(&unsent)])
            .arg(output.as_str());
    }
}

/// What a step of sealing answered.
pub(super) fn compaction(
    claim: &Claim,
    (sealed, late, left, token, granted): Compacted,
) -> Compaction {
    let sending = granted.iter().filter_map(|output| {
        Some(Claim {
            output: Some(output.parse().ok()?),
            token: token.clone(),
            taken_over: false,
            ..claim.clone()
        })
    });
    Compaction {
        repeated: 0,
        sealed,
        late,
        left,
        sending: sending.collect(),
    }
}
