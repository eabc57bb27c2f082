//! Which minutes are closed, and what is handed back.

use super::state::{PartitionState, Witness};
use crate::event::Minute;
use crate::store::witness::closed_minutes;
use crate::store::{
    Attested, CLOCK_TOLERANCE_MS, ClaimRequest, Known, OutputName, StoreError, Testimony,
};

/// The closed minutes that one answer holds.
const CLOSED_MAX: usize = 1000;

impl Witness {
    pub(super) fn attest(&mut self, node: &str, testimony: &Testimony, micros: i64) -> Attested {
        let own = self.stamps.get(node).copied().unwrap_or(self.stamp_ms);
        let forgot = self.epoch == testimony.epoch && own < testimony.stamp_ms;
        if self.epoch == 0 || forgot {
            self.epoch = micros.unsigned_abs().max(testimony.epoch + 1);
            self.forgot_from_ms = own;
        }
        self.put_stamp(node, micros.div_euclid(1000));
        self.since = self.since.max(testimony.since.map(Minute::epoch_minutes));
        for &minute in &testimony.closed {
            self.close(minute);
        }
        self.forget_before_since();
        Attested {
            epoch: self.epoch,
            forgot_from_ms: self.forgot_from_ms,
        }
    }

    pub(super) fn has_closed(&self, minute: Minute) -> bool {
        let before = self
            .since
            .is_some_and(|since| minute.epoch_minutes() < since);
        before || self.closed.contains_key(&minute)
    }

    /// From now on the minute seals nothing new.
    pub(super) fn close(&mut self, minute: Minute) {
        if !self.has_closed(minute) {
            self.sequence += 1;
            self.closed.insert(minute, self.sequence);
        }
    }

    /// What is before `since` counts as closed without being listed.
    fn forget_before_since(&mut self) {
        let since = self.since.unwrap_or(i64::MIN);
        self.closed
            .retain(|minute, _| minute.epoch_minutes() >= since);
    }

    /// Fails when a node knows more than is here.
    pub(super) fn check(&self, node: &str, known: &Known) -> Result<(), StoreError> {
        let own = self.stamps.get(node).copied().unwrap_or_default();
        if known.epoch != 0 && (self.epoch != known.epoch || own < known.stamp_ms) {
            return Err(StoreError::Forgot);
        }
        Ok(())
    }

    /// Whether a node that knew this has checked in again since.
    pub(super) fn has_heard_since(&self, node: &str, known: &Known) -> bool {
        let own = self.stamps.get(node).copied().unwrap_or_default();
        known.epoch != 0 && own > known.stamp_ms
    }

    /// Stamps the clock.
    pub(super) fn put_stamp(&mut self, node: &str, now_ms: i64) {
        self.stamp_ms = self.stamp_ms.max(now_ms);
        self.stamps.insert(node.to_owned(), self.stamp_ms);
    }

    /// How far the clock was set back since it was last looked at, in ms; 0 when it was not.
    pub(super) fn set_back_ms(&mut self, now_ms: i64) -> i64 {
        let back = self.clock_ms.replace(now_ms).unwrap_or(now_ms) - now_ms;
        if back > CLOCK_TOLERANCE_MS { back } else { 0 }
    }

    /// What was closed after this number, and the number of the last in the answer.
    pub(super) fn closed_after(&self, sequence: u64) -> (Vec<Minute>, u64) {
        let mut news: Vec<(u64, Minute)> = self
            .closed
            .iter()
            .filter(|&(_, &number)| number > sequence)
            .map(|(&minute, &number)| (number, minute))
            .collect();
        news.sort_unstable();
        news.truncate(CLOSED_MAX);
        let last = news.last().map_or(sequence, |&(number, _)| number);
        (news.into_iter().map(|(_, minute)| minute).collect(), last)
    }
}

/// Whether the clock is what a node expects, as far as it expects anything.
pub(super) fn is_expected(request: &ClaimRequest, now_ms: i64) -> bool {
    let expected = request.known.expected_ms;
    expected.is_none_or(|expected| (now_ms - expected).abs() <= CLOCK_TOLERANCE_MS)
}

impl PartitionState {
    /// Has `since` follow the newest closed minute, after an output got all of this one.
    pub(super) fn forget_closed(
        &mut self,
        (minute, output): (Minute, &OutputName),
        retention: std::time::Duration,
    ) {
        let lacks = self.sending.get(output);
        let is_behind = !self.claims.is_empty() || lacks.is_some_and(|of| !of.is_empty());
        let witness = &mut self.witness;
        let number = minute.epoch_minutes();
        let newest = witness.newest.max(Some(number)).unwrap_or(number);
        witness.newest = Some(newest);
        let waiting = self.waiting.first().map(|first| first.epoch_minutes());
        let since = newest.saturating_sub(closed_minutes(retention));
        let since = waiting.map_or(since, |waiting| since.min(waiting));
        // It never passes a minute that has something to do, or that is sealed and that no output has.
        if !is_behind && witness.since.is_none_or(|before| since > before) {
            witness.since = Some(since);
            witness.forget_before_since();
        }
    }
}
