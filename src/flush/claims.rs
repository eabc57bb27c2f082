//! The claims that a node holds: [`Held`] renews them, an [`Outbox`] hands those to send to the task of an output, and
//! [`OldMinutes`] keeps those to seal that are old.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::event::{Minute, Partition};
use crate::store::{Claim, Draining, OutputName};

/// The longest wait of lapsed claims for a node that always has others: a dead node's claims may be of the newest minute.
const WANTED_AFTER: Duration = Duration::from_secs(10);

/// The claims that a task holds, all to seal or all to send to one output.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<BTreeMap<(Partition, Minute), Claim>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Partition, Minute), Claim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, claim: &Claim) {
        self.lock().insert((claim.partition, claim.minute), claim.clone());
    }

    /// Returns the number of claims of a partition.
    pub(super) fn count(&self, partition: Partition) -> usize {
        let minutes = (partition, Minute::MIN)..=(partition, Minute::MAX);
        self.lock().range(minutes).count()
    }

    /// Returns whether this claim is held, and not a later one of the same minute.
    pub(super) fn has(&self, claim: &Claim) -> bool {
        let claims = self.lock();
        let held = claims.get(&(claim.partition, claim.minute));
        held.is_some_and(|held| held.token == claim.token)
    }

    /// Stops the renewal of a claim that is done or lost.
    pub(super) fn remove(&self, claim: &Claim) {
        if self.has(claim) {
            self.lock().remove(&(claim.partition, claim.minute));
        }
    }

    /// Does the work and renews the leases concurrently, three times a lease. Neither stalls while the other waits, because each
    /// may hold a resource that the other needs, such as the turn to connect.
    pub(super) async fn renewing<T>(
        &self,
        store: &dyn Draining,
        lease: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        alongside(work, lease / 3, || async move {
            let claims = self.lock().values().cloned().collect();
            set_deadlines(store, claims, lease).await;
        })
        .await
    }

    /// Releases all claims. They lapse, and any node takes them over.
    pub(super) async fn release_all(&self, store: &dyn Draining) {
        let claims = std::mem::take(&mut *self.lock());
        set_deadlines(store, claims.into_values().collect(), Duration::ZERO).await;
    }

    /// Releases these claims. They lapse after the delay.
    pub(super) async fn let_lapse(&self, store: &dyn Draining, claims: &[Claim], delay: Duration) {
        let held: Vec<Claim> = claims.iter().filter(|claim| self.has(claim)).cloned().collect();
        for claim in &held {
            self.remove(claim);
        }
        set_deadlines(store, held, delay).await;
    }
}

/// Does the work, and repeats another action at an interval until the work is done.
pub(super) async fn alongside<T, R: Future<Output = ()>>(
    work: impl Future<Output = T>,
    interval: Duration,
    mut action: impl FnMut() -> R,
) -> T {
    let repeating = async {
        loop {
            tokio::time::sleep(interval).await;
            action().await;
        }
    };
    tokio::select! {
        biased;
        result = work => result,
        () = repeating => unreachable!("it never ends"),
    }
}

pub(super) fn by_partition<'a>(
    claims: impl IntoIterator<Item = &'a Claim>,
) -> BTreeMap<Partition, Vec<&'a Claim>> {
    let mut by_partition: BTreeMap<Partition, Vec<&Claim>> = BTreeMap::new();
    for claim in claims {
        by_partition.entry(claim.partition).or_default().push(claim);
    }
    by_partition
}

async fn set_deadlines(store: &dyn Draining, claims: Vec<Claim>, lease: Duration) {
    let by_partition = by_partition(&claims);
    let calls = by_partition.values().map(|claims| store.extend(claims, lease));
    for result in futures_util::future::join_all(calls).await {
        // The lease expires, and another node takes the minute over.
        if let Err(error) = result {
            tracing::debug!(%error, "cannot move the deadline of claims");
        }
    }
}

/// The claims that the worker hands to the task of one output.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) name: OutputName,
    /// All claims to send to this output.
    pub(super) held: Held,
    state: Mutex<OutboxState>,
    delivered: Notify,
}

#[derive(Debug, Default)]
struct OutboxState {
    /// Claims to send.
    claims: Vec<Claim>,
    /// The store had no lapsed claims.
    has_none: bool,
    is_sending: bool,
    /// Until when the output is down, or another node probes it.
    away_until: Option<Instant>,
    /// When lapsed claims were last wanted.
    wanted: Option<Instant>,
}

impl Outbox {
    pub(super) fn new(name: OutputName) -> Self {
        Self { name, held: Held::default(), state: Mutex::default(), delivered: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether lapsed claims may be taken over for the output: rarely while the task has others, and never while the
    /// output is down or this node's settings differ.
    pub(super) fn wants_lapsed(&self, now: Instant, agrees: bool) -> bool {
        let mut state = self.lock();
        let is_away = state.away_until.is_some_and(|until| now < until);
        let is_busy = state.is_sending || !state.claims.is_empty();
        let is_due = |at| now.duration_since(at) >= WANTED_AFTER;
        let wants = agrees && !is_away && (!is_busy || state.wanted.is_none_or(is_due));
        if wants {
            state.wanted = Some(now);
        }
        wants
    }

    /// Delivers claims that are held already, or an empty list if some were wanted.
    pub(super) fn deliver(&self, claims: Vec<Claim>, wanted: bool) {
        if wanted || !claims.is_empty() {
            let mut state = self.lock();
            state.has_none = claims.is_empty();
            state.claims.extend(claims);
            self.delivered.notify_one();
        }
    }

    /// Waits for claims and takes all of them: recent minutes before old ones, and of each kind new claims before lapsed
    /// ones. Lapsed claims may have been refused before, and keep the order in which they lapsed. Empty if the store has no
    /// claims for the output.
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

    /// Ends a round of sending. The output is left alone until this instant.
    pub(super) fn sent(&self, away_until: Option<Instant>) {
        let mut state = self.lock();
        state.is_sending = false;
        state.away_until = away_until;
    }
}

/// Claims to seal old minutes. These are sealed concurrently with the rounds, so that their number and size delay no minute
/// that has just ended. A round claims no more of a partition while its share is full.
#[derive(Debug, Default)]
pub(super) struct OldMinutes {
    /// All claims until they are sealed.
    pub(super) held: Held,
    queue: Mutex<OldQueue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct OldQueue {
    claims: BTreeMap<Partition, VecDeque<Claim>>,
    /// The partition that had the last turn.
    served: Option<Partition>,
    /// Claims to send the counts sealed since the last round.
    sealed: Vec<Claim>,
}

impl OldMinutes {
    fn lock(&self) -> MutexGuard<'_, OldQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, claim: Claim) {
        self.held.add(&claim);
        self.lock().claims.entry(claim.partition).or_default().push_back(claim);
        self.added.notify_one();
    }

    /// Waits for a claim and takes it. Partitions take turns.
    pub(super) async fn next(&self) -> Claim {
        loop {
            let added = self.added.notified();
            if let Some(claim) = self.lock().next() {
                return claim;
            }
            added.await;
        }
    }

    /// Keeps claims to send sealed counts until the round ends.
    pub(super) fn sealed(&self, sending: Vec<Claim>) {
        self.lock().sealed.extend(sending);
    }

    /// Takes the claims kept by [`Self::sealed`].
    pub(super) fn take_sealed(&self) -> Vec<Claim> {
        std::mem::take(&mut self.lock().sealed)
    }

    /// Releases all claims. They lapse, and any node takes them over.
    pub(super) async fn release(&self, store: &dyn Draining) {
        self.lock().claims.clear();
        self.held.release_all(store).await;
    }
}

impl OldQueue {
    fn next(&mut self) -> Option<Claim> {
        let after = |partition: &&Partition| self.served.is_none_or(|served| **partition > served);
        let mut partitions = self.claims.keys();
        let next = partitions.clone().find(after).or_else(|| partitions.next());
        let next = *next?;
        let queue = self.claims.get_mut(&next)?;
        let claim = queue.pop_front();
        if queue.is_empty() {
            self.claims.remove(&next);
        }
        self.served = Some(next);
        claim
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::Partitions;

    fn partitions(count: u16) -> Vec<Partition> {
        Partitions::new(NonZeroU16::new(count).unwrap()).iter().collect()
    }

    fn claim_of(partition: Partition, minute: i64, token: &str, taken_over: bool) -> Claim {
        Claim {
            partition,
            minute: Minute::from_epoch_minutes(minute).unwrap(),
            output: None,
            token: token.to_owned(),
            generation: 0,
            taken_over,
        }
    }

    fn claim(minute: i64, taken_over: bool) -> Claim {
        claim_of(partitions(1)[0], minute, "n|1", taken_over)
    }

    fn minutes(claims: &[Claim]) -> Vec<i64> {
        claims.iter().map(|claim| claim.minute.epoch_minutes()).collect()
    }

    #[test]
    fn an_older_claim_of_a_minute_is_not_held_and_does_not_release_the_later_one() {
        let partition = partitions(1)[0];
        let [older, later] = ["n|1", "n|2"].map(|token| claim_of(partition, 1, token, false));
        let held = Held::default();
        held.add(&older);
        held.add(&later);
        assert!(held.has(&later) && !held.has(&older));
        held.remove(&older);
        assert_eq!(held.count(partition), 1);
        held.remove(&later);
        assert_eq!(held.count(partition), 0);
    }

    #[tokio::test]
    async fn the_work_goes_on_while_a_renewal_waits_for_it() {
        let turn = tokio::sync::Mutex::new(());
        let work = async {
            let _turn = turn.lock().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let renewed = alongside(work, Duration::from_millis(10), || async {
            let _turn = turn.lock().await;
        });
        let done = tokio::time::timeout(Duration::from_secs(30), renewed).await;
        assert!(done.is_ok(), "both wait for each other");
    }

    #[tokio::test]
    async fn new_minutes_come_first_and_lapsed_ones_in_the_order_in_which_they_lapsed() {
        let outbox = Outbox::new(OutputName::default());
        outbox.deliver(vec![claim(9, true), claim(3, true)], true);
        outbox.deliver(vec![claim(8, false), claim(7, false)], false);
        assert_eq!(minutes(&outbox.next(|_| true).await), [7, 8, 9, 3]);
    }

    #[tokio::test]
    async fn recent_minutes_come_before_old_ones() {
        let outbox = Outbox::new(OutputName::default());
        outbox.deliver(vec![claim(1, false), claim(12, true), claim(2, true)], true);
        outbox.deliver(vec![claim(11, false)], false);
        let claims = outbox.next(|claim| claim.minute.epoch_minutes() > 10).await;
        assert_eq!(minutes(&claims), [11, 12, 1, 2]);
    }

    #[tokio::test]
    async fn lapsed_claims_are_wanted_by_a_node_without_others_for_an_output_that_is_up() {
        let outbox = Outbox::new(OutputName::default());
        let now = Instant::now();
        assert!(!outbox.wants_lapsed(now, false), "it may not send");
        assert!(outbox.wants_lapsed(now, true));
        outbox.deliver(vec![claim(1, false)], false);
        assert!(!outbox.wants_lapsed(now, true), "it has one");
        outbox.next(|_| true).await;
        assert!(!outbox.wants_lapsed(now, true), "it sends one");
        assert!(outbox.wants_lapsed(now + WANTED_AFTER, true), "it has always some");
        let now = now + WANTED_AFTER;
        let second = Duration::from_secs(1);
        outbox.sent(Some(now + second));
        assert!(!outbox.wants_lapsed(now, true), "the output is away");
        assert!(outbox.wants_lapsed(now + second, true));
        outbox.deliver(Vec::new(), true);
        assert_eq!(outbox.next(|_| true).await, [], "it hears that there are none");
    }

    #[tokio::test]
    async fn partitions_have_turns_however_many_minutes_one_of_them_has() {
        let partitions = partitions(3);
        let old = OldMinutes::default();
        for (partition, minute) in [(0, 1), (0, 2), (0, 3), (2, 9), (1, 8), (2, 10)] {
            old.add(claim_of(partitions[partition], minute, "n|1", false));
        }
        assert_eq!(old.held.count(partitions[0]), 3);
        let mut order = Vec::new();
        for _ in 0..6 {
            let claim = old.next().await;
            order.push(claim.minute.epoch_minutes());
            old.sealed(vec![claim]);
        }
        assert_eq!(order, [1, 8, 9, 2, 10, 3]);
        assert_eq!(old.take_sealed().len(), 6);
        assert_eq!(old.take_sealed(), [], "they were taken");
        assert_eq!(old.held.count(partitions[0]), 3, "they are held until they are sealed");
    }
}
