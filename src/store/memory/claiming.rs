//! When a minute may be claimed, and until when a claim holds. Pure: each step is given the time.

use std::time::Duration;

use super::state::{Held, Idle, PartitionState, deadline};
use crate::event::Minute;
use crate::store::ClaimRequest;

impl PartitionState {
    /// The claims in the order of their deadlines, as a sorted set has them: those of one deadline by name.
    pub(super) fn by_deadline(&self) -> Vec<(i64, Minute)> {
        let deadline = |(minute, held): (&Minute, &Held)| (held.deadline_ms, *minute);
        let mut claims: Vec<_> = self.claims.iter().map(deadline).collect();
        claims.sort_by_cached_key(|(deadline_ms, minute)| (*deadline_ms, minute.to_string()));
        claims
    }

    pub(super) fn lapsed(&self, now_ms: i64, most: usize) -> Vec<Minute> {
        let claims = self.by_deadline().into_iter();
        let lapsed = claims.take_while(|(deadline_ms, _)| *deadline_ms <= now_ms);
        lapsed.map(|(_, minute)| minute).take(most).collect()
    }

    pub(super) fn grant(
        &mut self,
        node: &str,
        minute: Minute,
        micros: i64,
        lease: Duration,
    ) -> String {
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

    /// Whether any node lags.
    pub(super) fn is_lagging(&mut self, now_ms: i64) -> bool {
        self.lagging.retain(|_, until_ms| *until_ms > now_ms);
        !self.lagging.is_empty()
    }

    /// Whether a minute that is over may be closed.
    pub(super) fn is_finished(
        &mut self,
        minute: Minute,
        now_ms: i64,
        request: &ClaimRequest,
    ) -> bool {
        let state = self.minutes.entry(minute).or_default();
        let arrivals = state.arrivals;
        let idle = state.idle.get_or_insert(Idle {
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

    /// A clock that was set back would keep every deadline for as much longer.
    pub(super) fn set_back(&mut self, now_ms: i64, lease: Duration) {
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
