//! Checks which life holds which minute, by the store's clock.

use super::super::life::life_of;
use super::super::plan::{ROLLUP, output_number};
use super::{ClaimBook, Oracle, end_ms, millis, must};
use crate::simulation::prelude::*;

/// The time a minute is recent after the end of its grace period, in milliseconds.
const RECENT_MS: i64 = 300_000;
/// The store grants nothing while its clock differs from the expected time by more than this, in milliseconds.
const CLOCK_TOLERANCE_MS: i64 = 2000;

fn place(claim: &Claim) -> Place {
    (claim.partition.index(), claim.minute.epoch_minutes())
}

/// Returns the index of a minute's claim, which is 0 for sealing, followed by one index per output.
fn kind(claim: &Claim) -> usize {
    let output = claim.output.as_ref();
    output.map_or(0, |name| 1 + output_number(name))
}

impl Oracle {
    fn book(&self, claim: &Claim) -> Option<&ClaimBook> {
        self.places.get(&place(claim))?.claims[kind(claim)].as_ref()
    }

    pub(crate) fn is_current(&self, claim: &Claim) -> bool {
        self.book(claim).is_some_and(|held| held.token == claim.token)
    }

    pub(crate) fn attested(&mut self, partition: usize, testimony: &Testimony) {
        let Testimony { closed, empty, announced, .. } = testimony;
        for minute in closed.iter().chain(empty).chain(announced) {
            let at = (partition, minute.epoch_minutes());
            self.places.entry(at).or_default().closed = true;
        }
    }

    /// Checks the replies to announcements, which say whether all live nodes have learned of the minutes.
    pub(crate) fn announced<'a>(
        &mut self,
        partition: usize,
        states: impl Iterator<Item = (&'a Claim, Announced)>,
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        for (claim, announced) in states {
            let at = (partition, claim.minute.epoch_minutes());
            if announced == Announced::ClaimLost {
                must!(!self.is_current(claim), "the claim of {} is held", claim.minute);
                continue;
            }
            self.places.entry(at).or_default().closed = true;
            if announced == Announced::Heard {
                let minute = self.sealed_series(at);
                self.forgetting.is_final(at, minute);
            }
            // If an output has the minute, it has been announced before.
            if announced == Announced::Unheard || state.is_had(at) {
                continue;
            }
            let by = claim.token.rsplit_once('|').map_or("", |(node, _)| node);
            let mut alive = self.forgetting.alive(partition, now_ms);
            let deaf = alive.find(|life| *life != life_of(by) && !self.has_heard(*life, at));
            must!(
                deaf.is_none(),
                "{} is said to be heard of by all, and {deaf:?} has not",
                claim.minute
            );
        }
        Ok(())
    }

    pub(crate) fn claimed(
        &mut self,
        partition: usize,
        request: &ClaimRequest,
        claims: &[Claim],
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        for claim in claims {
            self.granted(claim, request, now_ms)?;
        }
        self.claims_recent(partition, request, claims, now_ms, state)?;
        for minute in state.minutes(partition) {
            self.compare((partition, minute), now_ms, state)?;
        }
        Ok(())
    }

    /// Checks that a recent minute is claimed by the first call that finds it finished.
    fn claims_recent(
        &mut self,
        partition: usize,
        request: &ClaimRequest,
        claims: &[Claim],
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        let finished = claims.iter().filter(|claim| !claim.taken_over).count();
        let expected_ms = request.known.expected_ms.unwrap_or(now_ms);
        if finished >= request.finished_max || (now_ms - expected_ms).abs() > CLOCK_TOLERANCE_MS {
            return Ok(());
        }
        let recent_ms = millis(request.grace) + RECENT_MS;
        let grace = if state.lags(partition, now_ms) {
            request.grace.max(request.max_hold)
        } else {
            request.grace
        };
        let recent = ((now_ms - recent_ms).div_euclid(60_000), now_ms.div_euclid(60_000));
        let places = self.places.range_mut((partition, recent.0)..(partition, recent.1));
        for (&(_, minute), book) in places {
            let waits = book.has_sets() && book.claims[0].is_none() && book.recorded_ms.is_some();
            if !waits {
                continue;
            }
            let looked_ms = *book.looked_ms.get_or_insert(now_ms);
            must!(
                now_ms - looked_ms < millis(grace),
                "{minute} has been idle since {looked_ms} and is not claimed at {now_ms}"
            );
        }
        Ok(())
    }

    fn granted(&mut self, claim: &Claim, request: &ClaimRequest, now_ms: i64) -> Verdict {
        let minute = claim.minute;
        let book = self.places.entry(place(claim)).or_default();
        let held = &book.claims[kind(claim)];
        if claim.taken_over {
            let deadline_ms = held.as_ref().map(|held| held.deadline_ms);
            must!(
                deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms),
                "{minute} was taken over at {now_ms} although its lease lasts until {deadline_ms:?}"
            );
        } else {
            must!(held.is_none() && claim.output.is_none(), "{minute} was claimed twice");
            let end_ms = end_ms(minute.epoch_minutes());
            must!(now_ms >= end_ms, "{minute} was closed before its end, at {now_ms}");
            let (first, last) = book.recorded_ms.unwrap_or((i64::MIN / 2, i64::MIN / 2));
            let idle = now_ms >= last + millis(request.grace);
            let held_long = now_ms >= first.max(end_ms) + millis(request.max_hold);
            must!(
                idle || held_long,
                "{minute} was closed at {now_ms} although an event came at {last}"
            );
            book.recorded_ms = None;
            book.looked_ms = None;
        }
        self.take(claim, now_ms + millis(request.lease))
    }

    fn take(&mut self, claim: &Claim, deadline_ms: i64) -> Verdict {
        let book = self.places.entry(place(claim)).or_default();
        let number = claim.token.rsplit('|').next();
        let number: i64 = number.and_then(|number| number.parse().ok()).unwrap_or(-1);
        let last = &mut book.token_numbers[kind(claim)];
        must!(number > *last, "the token of {} did not grow", claim.minute);
        *last = number;
        book.claims[kind(claim)] = Some(ClaimBook { token: claim.token.clone(), deadline_ms });
        Ok(())
    }

    /// Checks that the claim to seal has ended after the last set, and that its holder got the correct claims to send.
    pub(super) fn handed_out(
        &mut self,
        sealed: &Claim,
        sending: &[Claim],
        (now_ms, deadline_ms): (i64, i64),
    ) -> Verdict {
        let (retention_ms, outputs) =
            (self.retention_ms, self.outputs_of(sealed.partition.index()));
        let book = self.places.entry(place(sealed)).or_default();
        book.claims[0] = None;
        let free = |output: &usize| book.has_unsent(*output) && book.claims[1 + output].is_none();
        let expected: Vec<usize> = outputs.filter(free).map(|output| 1 + output).collect();
        let found: Vec<usize> = sending.iter().map(kind).collect();
        must!(
            expected == found,
            "the outputs that lack something of {} are {expected:?}, and it is to be sent to {found:?}",
            sealed.minute
        );
        for claim in sending {
            self.take(claim, deadline_ms)?;
        }
        let book = self.places.entry(place(sealed)).or_default();
        book.ends(now_ms, retention_ms);
        Ok(())
    }

    pub(crate) fn extended(&mut self, claims: &[Claim], deadline_ms: i64, held: usize) -> Verdict {
        let mut current = 0;
        for claim in claims {
            if self.is_current(claim) {
                current += 1;
                self.renew(claim, deadline_ms);
            }
        }
        must!(current == held, "{held} claims were extended, but {current} are held");
        Ok(())
    }

    pub(super) fn renew(&mut self, claim: &Claim, deadline_ms: i64) {
        let book = self.places.entry(place(claim)).or_default();
        if let Some(held) = &mut book.claims[kind(claim)] {
            held.deadline_ms = deadline_ms;
        }
    }

    pub(crate) fn acknowledged(
        &mut self,
        claim: &Claim,
        series: &[u8],
        done: bool,
        (now_ms, deadline_ms): (i64, i64),
        state: &State<'_>,
    ) -> Verdict {
        let at = place(claim);
        let minute = claim.minute;
        let output = kind(claim) - 1;
        let retention_ms = self.retention_ms;
        let forgot = self.forgetting.has_forgotten;
        let book = self.places.entry(at).or_default();
        for series in series {
            let point = &mut book.series.entry(*series).or_default().outputs[output];
            // A window may have been closed before Redis lost what had been added to it.
            point.written |= forgot && output == ROLLUP;
            must!(
                point.written,
                "series {series} of {minute} was acknowledged before it was written"
            );
            point.acknowledged = true;
        }
        let over = !book.has_unsent(output);
        must!(done == over, "the claim of {minute} ended: {done}; nothing was left: {over}");
        if over {
            book.claims[1 + output] = None;
            book.closed |= !book.has_sets();
            book.ends(now_ms, retention_ms);
        } else {
            self.renew(claim, deadline_ms);
        }
        self.compare(at, now_ms, state)
    }
}
