//! When a minute may be claimed, and until when a claim holds. Pure: each step is given the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::state::{Held, Idle, PartitionState, deadline};
use crate::event::Minute;
use crate::store::{Claim, ClaimRequest, OutputName};

/// The claims in the order of their deadlines, as a sorted set has them: those of one deadline by name.
pub(super) fn by_deadline(claims: &BTreeMap<Minute, Held>) -> Vec<(i64, Minute)> {
    let deadline = |(minute, held): (&Minute, &Held)| (held.deadline_ms, *minute);
    let mut claims: Vec<_> = claims.iter().map(deadline).collect();
    claims.sort_by_cached_key(|(deadline_ms, minute)| (*deadline_ms, minute.to_string()));
    claims
}

impl PartitionState {
    /// Those that have lapsed, from the longest lapsed on.
    pub(super) fn lapsed(
        &mut self,
        output: Option<&OutputName>,
        now_ms: i64,
        most: usize,
    ) -> Vec<Minute> {
        let claims = self.claims_of(output).map(|claims| by_deadline(claims));
        let claims = claims.unwrap_or_default().into_iter();
        let lapsed = claims.take_while(|(deadline_ms, _)| *deadline_ms <= now_ms);
        lapsed.map(|(_, minute)| minute).take(most).collect()
    }

    pub(super) fn grant(
        &mut self,
        node: &str,
        (minute, output): (Minute, Option<&OutputName>),
        micros: i64,
        lease: Duration,
    ) -> String {
        let claims = match output {
            None => &mut self.claims,
            Some(output) => self.sending.entry(output.clone()).or_default(),
        };
        let last = claims.get(&minute).map_or(0, |held| held.number);
        let number = micros.max(last + 1);
        let token = format!("{node}|{number}");
        let held = Held {
            token: token.clone(),
            number,
            deadline_ms: deadline(micros.div_euclid(1000), lease),
        };
        claims.insert(minute, held);
        token
    }

    /// Whether there may be something to claim, or a report of a node that lags to be removed.
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        let mut claims = self.sending.values().chain([&self.claims]);
        let is_over = |first: &Minute| first.end_millis() <= now_ms;
        claims.any(|of| !of.is_empty())
            || self.waiting.first().is_some_and(is_over)
            || !self.lagging.is_empty()
    }

    /// Ends a claim to seal. Its holder gets claims to send to those of its outputs that lack something and that nobody sends
    /// to; those to others that lack something are for whoever has them.
    pub(super) fn hand_out(
        &mut self,
        sealed: &Claim,
        lacking: &BTreeSet<OutputName>,
        outputs: &[OutputName],
        micros: i64,
        lease: Duration,
    ) -> Vec<Claim> {
        let last = self.claims.remove(&sealed.minute);
        let number = micros.max(last.map_or(0, |held| held.number) + 1);
        let token = format!("{}|{number}", sealed.node());
        let mut handed_out = Vec::new();
        for output in outputs.iter().filter(|it| lacking.contains(*it)) {
            let claims = self.sending.entry(output.clone()).or_default();
            claims.entry(sealed.minute).or_insert_with(|| {
                handed_out.push(Claim {
                    output: Some(output.clone()),
                    token: token.clone(),
                    taken_over: false,
                    ..sealed.clone()
                });
                Held {
                    token: token.clone(),
                    number,
                    deadline_ms: deadline(micros.div_euclid(1000), lease),
                }
            });
        }
        for output in lacking {
            let claims = self.sending.entry(output.clone()).or_default();
            claims.entry(sealed.minute).or_default();
        }
        handed_out
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
            let sending = self.sending.values_mut();
            for held in sending
                .chain([&mut self.claims])
                .flat_map(BTreeMap::values_mut)
            {
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
