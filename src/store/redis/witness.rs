//! Claiming minutes, and handing back what was closed to a Redis that forgot it.

use super::{RedisStore, millis, scripts};
use crate::event::{Minute, Partition};
use crate::store::{
    Attested, CLOCK_TOLERANCE_MS, Claim, ClaimRequest, Claimed, StoreError, Testimony,
};

/// The most finished minutes of a partition that one claim looks at: what bounds the time it blocks Redis.
const LOOKED_AT_MAX: usize = 1000;
/// The minutes that are handed back at once, for the same reason.
const HANDED_BACK_MAX: usize = 1000;

/// Minute's name, token, whether it was taken over.
type Granted = (String, String, bool);
/// Stamp and clock in ms, what was granted, the number of the last closing, closed minutes, since.
type Answer = (i64, i64, Vec<Granted>, u64, Vec<i64>, String);

impl RedisStore {
    pub(super) async fn hand_back(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        let keys = self.keys(partition);
        let closed: Vec<i64> = testimony
            .closed
            .iter()
            .map(|minute| minute.epoch_minutes())
            .collect();
        let since = testimony
            .since
            .map(|since| since.epoch_minutes().to_string());
        let mut from = 0;
        loop {
            let to = closed.len().min(from + HANDED_BACK_MAX);
            let mut script = scripts::ATTEST.prepare_invoke();
            script
                .key(&keys.witness)
                .key(&keys.closed)
                .key(&keys.stamps);
            script
                .arg(&self.node)
                .arg(testimony.epoch)
                .arg(testimony.stamp_ms)
                .arg(new_epoch())
                .arg(since.as_deref().unwrap_or_default())
                .arg(&closed[from..to]);
            let (epoch, forgot_from_ms): (u64, i64) = self.invoke(keys.slot, script).await?;
            from = to;
            if from == closed.len() {
                return Ok(Attested {
                    epoch,
                    forgot_from_ms,
                });
            }
        }
    }

    pub(super) async fn claim_minutes(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Claimed, StoreError> {
        let keys = self.keys(partition);
        let known = &request.known;
        let mut script = scripts::CLAIM.prepare_invoke();
        script
            .key(&keys.minutes)
            .key(&keys.claims)
            .key(&keys.tokens)
            .key(&keys.arrivals);
        script
            .key(&keys.idle)
            .key(&keys.lagging)
            .key(&keys.witness)
            .key(&keys.closed)
            .key(&keys.stamps);
        script
            .arg(&self.node)
            .arg(millis(request.grace))
            .arg(millis(request.max_hold))
            .arg(millis(request.lease));
        script
            .arg(request.lapsed_max)
            .arg(request.finished_max)
            .arg(LOOKED_AT_MAX)
            .arg(u8::from(request.lagging));
        script
            .arg(known.epoch)
            .arg(known.stamp_ms)
            .arg(known.sequence)
            .arg(known.expected_ms.unwrap_or_default())
            .arg(CLOCK_TOLERANCE_MS);
        let answer: Option<Answer> = self.invoke(keys.slot, script).await?;
        let Some((stamp_ms, now_ms, granted, sequence, closed, since)) = answer else {
            self.gateway.forgot(keys.slot);
            return Err(StoreError::Forgot);
        };
        let generation = self.gateway.generation(keys.slot);
        let claim = |(name, token, taken_over): Granted| match name.parse::<Minute>() {
            Ok(minute) => Some(Claim {
                partition,
                minute,
                token,
                generation,
                taken_over,
            }),
            Err(error) => {
                tracing::error!(key = keys.claims, %error, "a foreign member in the claims");
                None
            }
        };
        let minute = |number: &i64| Minute::from_epoch_minutes(*number);
        Ok(Claimed {
            claims: granted.into_iter().filter_map(claim).collect(),
            stamp_ms,
            now_ms,
            sequence,
            closed: closed.iter().filter_map(minute).collect(),
            since: since.parse().ok().as_ref().and_then(minute),
        })
    }
}

/// One that no other has. Below 2^53, which Lua holds exactly, and never 0.
fn new_epoch() -> u64 {
    rand::random_range(1..1 << 53)
}
