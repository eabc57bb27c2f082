//! [`Outbox`]: what the worker hands to the task of an output, and what that wants.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::held::Held;
use crate::store::{Claim, OutputName};

/// Between the worker and the task of one output.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) name: OutputName,
    /// Every claim to send to it that this node has.
    pub(super) held: Held,
    state: Mutex<State>,
    delivered: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What is to be sent.
    claims: Vec<Claim>,
    /// It was looked for lapsed claims, and there were none.
    has_none: bool,
    is_sending: bool,
    /// The output is away, or another node finds out whether it is.
    away_until: Option<Instant>,
    /// Whether this node may send at all.
    agrees: bool,
    /// When lapsed claims were last wanted.
    wanted: Option<Instant>,
}

/// How long lapsed claims wait at most for a node that always has others: those of a node that died may be of the newest minute.
const WANTED_AFTER: Duration = Duration::from_secs(10);

impl Outbox {
    pub(super) fn new(name: OutputName) -> Self {
        Self { name, held: Held::default(), state: Mutex::default(), delivered: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the settings of this node are those of all.
    pub(super) fn agree(&self, agrees: bool) {
        self.lock().agrees = agrees;
    }

    /// Whether lapsed claims may be taken over for it: now and then only while it has others, and not while it is away.
    pub(super) fn wants_lapsed(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_away = state.away_until.is_some_and(|until| now < until);
        let is_busy = state.is_sending || !state.claims.is_empty();
        let is_due = |at| now.duration_since(at) >= WANTED_AFTER;
        let wants = state.agrees && !is_away && (!is_busy || state.wanted.is_none_or(is_due));
        if wants {
            state.wanted = Some(now);
        }
        wants
    }

    /// Hands over claims that are held already, or that there are none although some were wanted.
    pub(super) fn deliver(&self, claims: Vec<Claim>, wanted: bool) {
        if wanted || !claims.is_empty() {
            let mut state = self.lock();
            state.has_none = claims.is_empty();
            state.claims.extend(claims);
            self.delivered.notify_one();
        }
    }

    /// Waits for claims, and takes all that there are: recent minutes come before old ones, and of each kind those that are
    /// claimed for the first time before those that lapsed. What lapsed may have been refused before, and stays in the order in
    /// which it lapsed. Empty when nothing waits for the output anywhere.
    pub(super) async fn next(&self, is_recent: impl Fn(&Claim) -> bool) -> Vec<Claim> {
        loop {
            let delivered = self.delivered.notified();
            {
                let mut state = self.lock();
                if state.has_none || !state.claims.is_empty() {
                    (state.has_none, state.is_sending) = (false, true);
                    let mut claims = std::mem::take(&mut state.claims);
                    claims.sort_by_key(|claim| {
                        let is_new = !claim.taken_over;
                        let order = is_new.then_some((claim.minute, claim.partition));
                        (!is_recent(claim), !is_new, order)
                    });
                    return claims;
                }
            }
            delivered.await;
        }
    }

    /// They are sent, or left to lapse. Until then the output is to be left alone.
    pub(super) fn sent(&self, away_until: Option<Instant>) {
        let mut state = self.lock();
        state.is_sending = false;
        state.away_until = away_until;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::{Minute, Partitions};

    fn claim(minute: i64, taken_over: bool) -> Claim {
        let partitions = Partitions::new(NonZeroU16::MIN);
        Claim {
            partition: partitions.of("a=1", Minute::MIN),
            minute: Minute::from_epoch_minutes(minute).unwrap(),
            output: Some(OutputName::default()),
            token: "n|1".to_owned(),
            generation: 0,
            taken_over,
        }
    }

    #[tokio::test]
    async fn new_minutes_come_first_and_lapsed_ones_in_the_order_in_which_they_lapsed() {
        let outbox = Outbox::new(OutputName::default());
        outbox.deliver(vec![claim(9, true), claim(3, true)], true);
        outbox.deliver(vec![claim(8, false), claim(7, false)], false);
        let minutes = outbox.next(|_| true).await;
        let minutes: Vec<_> = minutes.iter().map(|it| it.minute.epoch_minutes()).collect();
        assert_eq!(minutes, [7, 8, 9, 3]);
    }

    #[tokio::test]
    async fn recent_minutes_come_before_old_ones() {
        let outbox = Outbox::new(OutputName::default());
        outbox.deliver(vec![claim(1, false), claim(12, true), claim(2, true)], true);
        outbox.deliver(vec![claim(11, false)], false);
        let minutes = outbox.next(|it| it.minute.epoch_minutes() > 10).await;
        let minutes: Vec<_> = minutes.iter().map(|it| it.minute.epoch_minutes()).collect();
        assert_eq!(minutes, [11, 12, 1, 2]);
    }

    #[tokio::test]
    async fn lapsed_claims_are_wanted_by_who_has_none_for_an_output_that_is_there() {
        let outbox = Outbox::new(OutputName::default());
        let now = Instant::now();
        assert!(!outbox.wants_lapsed(now), "nobody said that it may send");
        outbox.agree(true);
        assert!(outbox.wants_lapsed(now));
        outbox.deliver(vec![claim(1, false)], false);
        assert!(!outbox.wants_lapsed(now), "it has one");
        outbox.next(|_| true).await;
        assert!(!outbox.wants_lapsed(now), "it sends one");
        assert!(outbox.wants_lapsed(now + WANTED_AFTER), "it has always some");
        let now = now + WANTED_AFTER;
        let second = Duration::from_secs(1);
        outbox.sent(Some(now + second));
        assert!(!outbox.wants_lapsed(now), "the output is away");
        assert!(outbox.wants_lapsed(now + second));
        outbox.deliver(Vec::new(), true);
        assert_eq!(outbox.next(|_| true).await, [], "it hears that there are none");
    }
}
