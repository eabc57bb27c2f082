//! Which minutes are closed, and what is handed back.

use std::time::Duration;

use super::state::{PartitionState, Stamp, Witness, deadline};
use crate::event::Minute;
use crate::store::witness::closed_minutes;
use crate::store::{
    Announced, Attested, CLOCK_TOLERANCE_MS, ClaimRequest, Known, OutputName, StoreError, Testimony,
};

/// The closed minutes that one answer holds.
const CLOSED_MAX: usize = 1000;

impl Witness {
    pub(super) fn attest(&mut self, node: &str, testimony: &Testimony, micros: i64) -> Attested {
        let own = self.stamps.get(node);
        let own = own.map_or(self.stamp, |stamp| stamp.number);
        let forgot = self.epoch == testimony.epoch && own < testimony.stamp;
        if self.epoch == 0 || forgot {
            self.epoch = micros.unsigned_abs().max(testimony.epoch + 1);
            self.forgot_from = own;
            self.forgot_from_ms = self.clock_ms.unwrap_or_default();
        }
        // Redis is told in parts.
        let stamps = testimony.parts().into_iter();
        let stamp = stamps.map(|_| self.stamp(node).number).last();
        self.since = self.since.max(testimony.since.map(Minute::epoch_minutes));
        for &minute in &testimony.closed {
            self.close(minute);
        }
        for &minute in &testimony.announced {
            self.announce(minute);
        }
        self.forget_before_since();
        Attested {
            epoch: self.epoch,
            stamp: stamp.unwrap_or_default(),
            forgot_from: self.forgot_from,
            forgot_from_ms: self.forgot_from_ms,
        }
    }

    pub(super) fn has_closed(&self, minute: Minute) -> bool {
        let before = self
            .since
            .is_some_and(|since| minute.epoch_minutes() < since);
        before || self.closed.contains_key(&minute)
    }

    /// From now on the minute seals nothing new: its counts are about to be written.
    pub(super) fn announce(&mut self, minute: Minute) {
        if !self.has_closed(minute) {
            self.sequence += 1;
            self.closed.insert(minute, 2 * self.sequence);
        }
    }

    /// From now on the minute seals nothing new, and an output has it.
    pub(super) fn close(&mut self, minute: Minute) {
        let number = minute.epoch_minutes();
        let is_past = self.since.is_some_and(|since| number < since);
        let known = self.closed.get(&minute);
        if !is_past && known.is_none_or(|number| is_announced(*number)) {
            self.sequence += 1;
            self.closed.insert(minute, 2 * self.sequence + 1);
        }
    }

    /// How far it is known that counts of a closed minute are about to be written by a node.
    pub(super) fn announced(&self, minute: Minute, by: &str, now_ms: i64) -> Announced {
        let number = self.closed.get(&minute).copied().unwrap_or(1);
        let has_heard = |(node, stamp): (&String, &Stamp)| {
            node == by || stamp.alive_until_ms <= now_ms || stamp.heard >= number
        };
        if is_announced(number) && !self.stamps.iter().all(has_heard) {
            Announced::Unheard
        } else {
            Announced::Heard
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
        let own = self.stamp_of(node).number;
        if known.epoch != 0 && (self.epoch != known.epoch || own < known.stamp) {
            return Err(StoreError::Forgot);
        }
        Ok(())
    }

    /// Whether a node that knew this has checked in again since.
    pub(super) fn has_heard_since(&self, node: &str, known: &Known) -> bool {
        known.epoch != 0 && self.stamp_of(node).number > known.stamp
    }

    /// What is known of a node.
    pub(super) fn stamp_of(&self, node: &str) -> Stamp {
        self.stamps.get(node).copied().unwrap_or_default()
    }

    /// Gives a node the next stamp.
    pub(super) fn stamp(&mut self, node: &str) -> &mut Stamp {
        self.stamp += 1;
        let stamp = self.stamps.entry(node.to_owned()).or_default();
        stamp.number = self.stamp;
        stamp
    }

    /// A node is there, and has heard of this closing.
    pub(super) fn check_in(&mut self, node: &str, heard: u64, now_ms: i64, alive: Duration) {
        let stamp = self.stamp(node);
        stamp.heard = heard;
        stamp.alive_until_ms = deadline(now_ms, alive);
    }

    /// A node found so many events too late. Answers how many that are in all.
    pub(super) fn late_in_all(&mut self, node: &str, late: u64) -> u64 {
        if late > 0 {
            self.stamps.entry(node.to_owned()).or_default().late += late;
        }
        self.stamp_of(node).late
    }

    /// How far the clock was set back since it was last looked at, in ms; 0 when it was not.
    pub(super) fn set_back_ms(&mut self, now_ms: i64) -> i64 {
        let back = self.clock_ms.replace(now_ms).unwrap_or(now_ms) - now_ms;
        if back <= CLOCK_TOLERANCE_MS {
            return 0;
        }
        for stamp in self.stamps.values_mut() {
            stamp.alive_until_ms = (stamp.alive_until_ms - back).max(0);
        }
        back
    }

    /// What was closed after this number, what was only announced, and the number of the last in the answer.
    pub(super) fn closed_after(&self, sequence: u64) -> (Vec<Minute>, Vec<Minute>, u64) {
        let mut news: Vec<(u64, Minute)> = self
            .closed
            .iter()
            .filter(|&(_, &number)| number > sequence)
            .map(|(&minute, &number)| (number, minute))
            .collect();
        news.sort_unstable();
        news.truncate(CLOSED_MAX);
        let last = news.last().map_or(sequence, |&(number, _)| number);
        let (announced, closed): (Vec<_>, Vec<_>) = news
            .into_iter()
            .partition(|(number, _)| is_announced(*number));
        let minutes = |of: Vec<(u64, Minute)>| of.into_iter().map(|(_, minute)| minute).collect();
        (minutes(closed), minutes(announced), last)
    }
}

/// Whether a closing of this number is that of a minute that no output is known to have.
const fn is_announced(number: u64) -> bool {
    number.is_multiple_of(2)
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
        retention: Duration,
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
