//! A step of draining: what its script is told, how much of it at once, and what it answers.

use std::time::Duration;

use ::redis::ScriptInvocation;

use super::keys::PartitionKeys;
use super::{RedisStore, millis};
use crate::event::Minute;
use crate::store::{Claim, Compaction, OutputName, REQUEST_BYTES_MAX};

/// Sealed, late in all, left, the token of the claims to send, their outputs.
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
        script.key(&[of(&keys.claims), of(&keys.tokens), of(&unsent)]).arg(output.as_str());
    }
}

/// Cuts a list into pieces of bounded bytes. An item that has more is one by itself.
pub(super) fn pieces<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut piece = 0;
    items.chunk_by(move |item, next| {
        piece += bytes(item);
        let fits = piece + bytes(next) <= REQUEST_BYTES_MAX;
        if !fits {
            piece = 0;
        }
        fits
    })
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
    Compaction { repeated: 0, sealed, late, left, sending: sending.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_leave_nothing_out() {
        let half = REQUEST_BYTES_MAX / 2;
        let lists: [&[usize]; 4] =
            [&[], &[1; 2000], &[half, half, 1, half], &[3 * half, 1, 3 * half]];
        for list in lists {
            let pieces: Vec<_> = pieces(list, |bytes| *bytes).collect();
            assert_eq!(pieces.concat(), list);
            for piece in pieces {
                let bytes: usize = piece.iter().sum();
                assert!(bytes <= REQUEST_BYTES_MAX || piece.len() == 1);
            }
        }
    }
}
