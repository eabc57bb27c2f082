//! Who works on which minute, and until when.

use std::time::Duration;

use super::state::{Held, Idle, MinuteState, PartitionState, State, deadline};
use super::witness::is_expected;
use crate::event::{Minute, Partition};
use crate::store::{Claim, ClaimRequest, Claimed, StoreError};

impl State {
    /// Claims for this node, `micros` since the epoch: lapsed claims first, then what is over and idle.
    pub(super) fn claim(
        &mut self,
        node: &str,
        index: Partition,
        request: &ClaimRequest,
        micros: i64,
    ) -> Result<Claimed, StoreError> {
        let now_ms = micros.div_euclid(1000);
        let partition = self.partition(index);
        partition.witness.stamp(node, request, now_ms)?;
        partition.set_back(now_ms, request.lease);
        let grace = if partition.is_lagging(now_ms) {
            request.grace.max(request.max_hold)
        } else {
            request.grace
        };
        let finished_max = if is_expected(request, now_ms) {
            request.finished_max
        } else {
            0
        };
        let request = &ClaimRequest {
            grace,
            finished_max,
            ..*request
        };
        let mut granted = Vec::new();
        let mut grant = |partition: &mut PartitionState, minute, taken_over| {
            let token = partition.grant(node, minute, micros, request.lease);
            granted.push(Claim {
                partition: index,
                minute,
                token,
                generation: 0,
                taken_over,
            });
        };
        for minute in partition.lapsed(now_ms, request.lapsed_max) {
            grant(partition, minute, true);
        }
        let mut finished = 0;
        for minute in partition.waiting.clone() {
            if partition.claims.contains_key(&minute) {
                partition.waiting.remove(&minute);
            } else if minute.end_millis() > now_ms || finished >= request.finished_max {
                break;
            } else if partition.is_finished(minute, now_ms, request) {
                grant(partition, minute, false);
                partition.waiting.remove(&minute);
                if let Some(state) = partition.minutes.get_mut(&minute) {
                    state.idle = None;
                }
                finished += 1;
            }
        }
        let witness = &partition.witness;
        let (closed, sequence) = witness.closed_after(request.known.sequence);
        Ok(Claimed {
            claims: granted,
            stamp_ms: witness.stamp_ms,
            now_ms,
            sequence,
            closed,
            since: witness.since.and_then(Minute::from_epoch_minutes),
        })
    }

    pub(super) fn extend(
        &mut self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
        now_ms: i64,
    ) -> usize {
        let partition = self.partition(partition);
        let mut extended = 0;
        for claim in claims {
            if let Some(held) = partition.claims.get_mut(&claim.minute)
                && held.token == claim.token
            {
                held.deadline_ms = deadline(now_ms, lease);
                extended += 1;
            }
        }
        extended
    }
}

impl PartitionState {
    /// The claims in the order of their deadlines, as a sorted set has them: those of one deadline by name.
    pub(super) fn by_deadline(&self) -> Vec<(i64, Minute)> {
        let deadline = |(minute, held): (&Minute, &Held)| (held.deadline_ms, *minute);
        let mut claims: Vec<_> = self.claims.iter().map(deadline).collect();
        claims.sort_by_cached_key(|(deadline_ms, minute)| (*deadline_ms, minute.to_string()));
        claims
    }

    fn lapsed(&self, now_ms: i64, most: usize) -> Vec<Minute> {
        let claims = self.by_deadline().into_iter();
        let lapsed = claims.take_while(|(deadline_ms, _)| *deadline_ms <= now_ms);
        lapsed.map(|(_, minute)| minute).take(most).collect()
    }

    fn grant(&mut self, node: &str, minute: Minute, micros: i64, lease: Duration) -> String {
        let last = self.claims.get(&minute).map_or(0, |held| held.number);
        let number = micros.max(last + 1);
        let token = format!("{node}|{number}");
        let held = Held {
            token: token.clone(),
            number,
            deadline_ms: deadline(micros.div_euclid(1000), lease),
        };
        self.claims.insert(minute, held);
        token
    }

    /// Notes until when this node lags.
    pub(super) fn report_lag(&mut self, node: &str, lags_for: Option<Duration>, now_ms: i64) {
        match lags_for {
            Some(span) => self.lagging.insert(node.to_owned(), deadline(now_ms, span)),
            None => self.lagging.remove(node),
        };
    }

    /// Whether any node lags.
    fn is_lagging(&mut self, now_ms: i64) -> bool {
        self.lagging.retain(|_, until_ms| *until_ms > now_ms);
        !self.lagging.is_empty()
    }

    /// Whether a minute that is over may be closed.
    fn is_finished(&mut self, minute: Minute, now_ms: i64, request: &ClaimRequest) -> bool {
        let state = self.minutes.entry(minute).or_default();
        state.is_finished(minute, now_ms, request)
    }

    /// A clock that was set back would keep every deadline for as much longer.
    fn set_back(&mut self, now_ms: i64, lease: Duration) {
        let back = self.witness.set_back_ms(now_ms);
        if back > 0 {
            for held in self.claims.values_mut() {
                held.deadline_ms -= back;
            }
            for until_ms in self.lagging.values_mut() {
                *until_ms = (*until_ms).min(deadline(now_ms, lease));
            }
            for state in self.minutes.values_mut() {
                state.idle = None;
            }
        }
    }
}

impl MinuteState {
    fn is_finished(&mut self, minute: Minute, now_ms: i64, request: &ClaimRequest) -> bool {
        let arrivals = self.arrivals;
        let idle = self.idle.get_or_insert(Idle {
            arrivals,
            since_ms: now_ms,
            first_ms: now_ms,
        });
        if idle.arrivals != arrivals {
            idle.arrivals = arrivals;
            idle.since_ms = now_ms;
        }
        let hold_from = minute.end_millis().max(idle.first_ms);
        now_ms >= deadline(idle.since_ms, request.grace)
            || now_ms >= deadline(hold_from, request.max_hold)
    }
}
