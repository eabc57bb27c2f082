//! Claims: who holds which minute, by the clock of the store.

use event_data_service::store::memory::State;
use event_data_service::store::{Claim, ClaimRequest, Testimony};

use super::{ClaimBook, Oracle, Place, Verdict, end_ms, millis, must};

fn place(claim: &Claim) -> Place {
    (claim.partition.index(), claim.minute.epoch_minutes())
}

impl Oracle {
    /// Whether nobody else took this claim and it has not ended.
    pub(crate) fn is_current(&self, claim: &Claim) -> bool {
        let book = self.places.get(&place(claim));
        let held = book.and_then(|book| book.claim.as_ref());
        held.is_some_and(|held| held.token == claim.token)
    }

    /// Closed minutes were handed back.
    pub(crate) fn attested(&mut self, partition: usize, testimony: &Testimony) {
        for minute in &testimony.closed {
            let at = (partition, minute.epoch_minutes());
            self.places.entry(at).or_default().closed = true;
        }
    }

    /// A claim of minutes was carried out.
    pub(crate) fn claimed(
        &mut self,
        partition: usize,
        request: &ClaimRequest,
        claims: &[Claim],
        now_ms: i64,
        state: &State,
    ) -> Verdict {
        for claim in claims {
            self.granted(claim, request, now_ms)?;
        }
        let minutes = state.partitions[partition].minutes.keys();
        for minute in minutes {
            self.compare((partition, minute.epoch_minutes()), now_ms, state)?;
        }
        Ok(())
    }

    fn granted(&mut self, claim: &Claim, request: &ClaimRequest, now_ms: i64) -> Verdict {
        let at = place(claim);
        let minute = claim.minute;
        let book = self.places.entry(at).or_default();
        let number = claim.token.rsplit('|').next();
        let number: i64 = number.and_then(|number| number.parse().ok()).unwrap_or(-1);
        must!(
            number > book.token_number,
            "the token of {minute} did not grow"
        );
        book.token_number = number;
        if claim.taken_over {
            let deadline_ms = book.claim.as_ref().map(|held| held.deadline_ms);
            must!(
                deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms),
                "{minute} was taken over at {now_ms} although its lease lasts until {deadline_ms:?}"
            );
        } else {
            must!(book.claim.is_none(), "{minute} was claimed twice");
            let end_ms = end_ms(minute.epoch_minutes());
            must!(
                now_ms >= end_ms,
                "{minute} was closed before its end, at {now_ms}"
            );
            let (first, last) = book.recorded_ms.unwrap_or((i64::MIN / 2, i64::MIN / 2));
            let idle = now_ms >= last + millis(request.grace);
            let held_long = now_ms >= first.max(end_ms) + millis(request.max_hold);
            must!(
                idle || held_long,
                "{minute} was closed at {now_ms} although an event came at {last}"
            );
            book.recorded_ms = None;
        }
        book.claim = Some(ClaimBook {
            token: claim.token.clone(),
            deadline_ms: now_ms + millis(request.lease),
        });
        Ok(())
    }

    /// Claims that were current got another deadline, this long from now.
    pub(crate) fn extended(&mut self, claims: &[Claim], deadline_ms: i64, held: usize) -> Verdict {
        let mut current = 0;
        for claim in claims {
            if self.is_current(claim) {
                current += 1;
                self.renew(claim, deadline_ms);
            }
        }
        must!(
            current == held,
            "{held} claims were extended of {current} that are held"
        );
        Ok(())
    }

    pub(super) fn renew(&mut self, claim: &Claim, deadline_ms: i64) {
        let book = self.places.entry(place(claim)).or_default();
        if let Some(held) = &mut book.claim {
            held.deadline_ms = deadline_ms;
        }
    }

    /// An acknowledgement of a current claim was carried out.
    pub(crate) fn acknowledged(
        &mut self,
        claim: &Claim,
        series: &[u8],
        done: bool,
        (now_ms, deadline_ms): (i64, i64),
        state: &State,
    ) -> Verdict {
        let at = place(claim);
        let minute = claim.minute;
        let retention_ms = self.retention_ms;
        let book = self.places.entry(at).or_default();
        for series in series {
            let point = book.series.entry(*series).or_default();
            must!(
                point.written,
                "series {series} of {minute} was acknowledged before it was written"
            );
            point.acknowledged = true;
        }
        let over = !book.has_sets() && !book.has_unsent();
        must!(
            done == over,
            "the claim of {minute} ended: {done}; nothing was left: {over}"
        );
        if over {
            book.claim = None;
            book.closed = true;
            // What was forgotten already does not come back by a claim that found nothing to do.
            if book.keep_until_ms.is_none_or(|until| until > now_ms) {
                book.keep_until_ms = Some(now_ms + retention_ms);
            }
        } else {
            self.renew(claim, deadline_ms);
        }
        self.compare(at, now_ms, state)
    }
}
