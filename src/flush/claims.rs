//! [`Claims`]: the claims a node holds, and [`Inbox`]: the claims waiting for the task that seals or sends them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::event::{Minute, Partition};
use crate::node::lock;
use crate::store::{Claim, Draining, OutputName};

/// Interval at which a busy task requests lapsed claims too, because a dead node's claims may be for the newest minute.
const WANTED_AFTER: Duration = Duration::from_secs(10);

/// The purpose of a claim (`None` to seal; otherwise the output to send to), its partition and its minute.
type Key = (Option<OutputName>, Partition, Minute);

#[derive(Debug)]
pub(super) struct Claims {
    store: Arc<dyn Draining>,
    lease: Duration,
    held: Mutex<BTreeMap<Key, Claim>>,
}

fn key(claim: &Claim) -> Key {
    (claim.output.clone(), claim.partition, claim.minute)
}

impl Claims {
    pub(super) fn new(store: Arc<dyn Draining>, lease: Duration) -> Self {
        Self { store, lease, held: Mutex::default() }
    }

    pub(super) fn add(&self, claim: &Claim) {
        lock(&self.held).insert(key(claim), claim.clone());
    }

    /// Returns the number of held claims to seal minutes of this partition for which `is_such` returns true.
    pub(super) fn to_seal(&self, partition: Partition, is_such: impl Fn(Minute) -> bool) -> usize {
        let all = (None, partition, Minute::MIN)..=(None, partition, Minute::MAX);
        lock(&self.held).range(all).filter(|((.., minute), _)| is_such(*minute)).count()
    }

    pub(super) fn to_send(
        &self,
        output: &OutputName,
        partition: Partition,
        minute: Minute,
    ) -> Option<Claim> {
        lock(&self.held).get(&(Some(output.clone()), partition, minute)).cloned()
    }

    /// Returns whether this very claim is held, rather than a later one for the same purpose.
    pub(super) fn has(&self, claim: &Claim) -> bool {
        lock(&self.held).get(&key(claim)).is_some_and(|held| held.token == claim.token)
    }

    pub(super) fn remove(&self, claim: &Claim) {
        if self.has(claim) {
            lock(&self.held).remove(&key(claim));
        }
    }

    /// Runs the work while renewing the leases of all held claims. If a renewal suspended the work, the two could deadlock.
    pub(super) async fn renewing<T>(&self, work: impl Future<Output = T>) -> T {
        alongside(work, self.lease / 3, || async {
            let claims: Vec<_> = lock(&self.held).values().cloned().collect();
            self.set_deadlines(&claims, self.lease).await;
        })
        .await
    }

    /// Releases whichever of these claims are still held. They lapse after the delay, and then any node may take them over.
    pub(super) async fn release(&self, claims: &[Claim], delay: Duration) {
        let held: Vec<_> = claims.iter().filter(|claim| self.has(claim)).cloned().collect();
        for claim in &held {
            self.remove(claim);
        }
        self.set_deadlines(&held, delay).await;
    }

    /// Releases all claims to send to this output or, if `output` is `None`, all claims to seal. They lapse immediately.
    pub(super) async fn release_all(&self, output: Option<&OutputName>) {
        let mut claims: Vec<_> = lock(&self.held).values().cloned().collect();
        claims.retain(|claim| claim.output.as_ref() == output);
        self.release(&claims, Duration::ZERO).await;
    }

    async fn set_deadlines(&self, claims: &[Claim], lease: Duration) {
        let groups = by_partition(claims);
        let calls = groups.values().map(|claims| self.store.extend(claims, lease));
        for result in join_all(calls).await {
            // The lease will expire, and another node will take over the minute.
            if let Err(error) = result {
                tracing::debug!(%error, "cannot update claim deadlines");
            }
        }
    }
}

async fn alongside<T, R: Future<Output = ()>>(
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
        result = repeating => result,
    }
}

pub(super) fn by_partition<'a>(
    claims: impl IntoIterator<Item = &'a Claim>,
) -> BTreeMap<(Option<&'a OutputName>, Partition), Vec<&'a Claim>> {
    let mut groups: BTreeMap<_, Vec<&Claim>> = BTreeMap::new();
    for claim in claims {
        groups.entry((claim.output.as_ref(), claim.partition)).or_default().push(claim);
    }
    groups
}

/// Orders claims so that partitions take turns, no matter how many claims any one partition has.
pub(super) fn take_turns(claims: &mut [Claim]) {
    let mut turns: BTreeMap<Partition, usize> = BTreeMap::new();
    claims.sort_by_cached_key(|claim| {
        let turn = turns.entry(claim.partition).or_default();
        *turn += 1;
        (*turn, claim.partition)
    });
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    delivered: Notify,
}

#[derive(Debug, Default)]
struct InboxState {
    claims: Vec<Claim>,
    /// Whether lapsed claims were requested but the store had none, of which the task must be informed.
    has_none: bool,
    is_sending: bool,
    /// Until when to leave the output alone, because it is down or another node is probing it.
    paused_until: Option<Instant>,
    /// When lapsed claims were last requested.
    wanted: Option<Instant>,
}

impl Inbox {
    /// Returns whether to request lapsed claims: rarely if the task is busy, never if the output is down or settings differ.
    pub(super) fn wants_lapsed(&self, now: Instant, agrees: bool) -> bool {
        let mut state = lock(&self.state);
        let is_paused = state.paused_until.is_some_and(|until| now < until);
        let is_busy = state.is_sending || !state.claims.is_empty();
        let is_due = |at| now.duration_since(at) >= WANTED_AFTER;
        let wants = agrees && !is_paused && (!is_busy || state.wanted.is_none_or(is_due));
        if wants {
            state.wanted = Some(now);
        }
        wants
    }

    /// Adds claims, and wakes the task if there are any, or if lapsed ones were requested but there are none.
    pub(super) fn deliver(&self, claims: Vec<Claim>, wanted: bool) {
        let mut state = lock(&self.state);
        state.claims.extend(claims);
        state.has_none = (wanted || state.has_none) && state.claims.is_empty();
        if state.has_none || !state.claims.is_empty() {
            self.delivered.notify_one();
        }
    }

    /// Waits for claims and takes them all: recent minutes before old, new claims before lapsed. Lapsed claims are not
    /// sorted, or the same rejected counts might come first every time. Returns no claims if the store has no lapsed ones.
    pub(super) async fn next(&self, is_recent: impl Fn(&Claim) -> bool) -> Vec<Claim> {
        loop {
            let delivered = self.delivered.notified();
            {
                let mut state = lock(&self.state);
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

    pub(super) fn sent(&self, paused_until: Option<Instant>) {
        let mut state = lock(&self.state);
        state.is_sending = false;
        state.paused_until = paused_until;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::Partitions;
    use crate::store::memory::MemoryStore;

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
    fn older_claim_is_not_kept_and_does_not_release_a_newer_one() {
        let partition = partitions(1)[0];
        let [older, later] = ["n|1", "n|2"].map(|token| claim_of(partition, 1, token, false));
        let (all, hour) = (Partitions::new(NonZeroU16::MIN), Duration::from_secs(3600));
        let store = MemoryStore::new("a", &all, hour, u64::MAX, u64::MAX);
        let held = Claims::new(Arc::new(store), hour);
        held.add(&older);
        held.add(&later);
        assert!(held.has(&later) && !held.has(&older));
        held.remove(&older);
        assert_eq!(held.to_seal(partition, |_| true), 1);
        held.remove(&later);
        assert_eq!(held.to_seal(partition, |_| true), 0);
    }

    #[tokio::test]
    async fn work_continues_during_a_renewal() {
        let turn = tokio::sync::Mutex::new(());
        let work = async {
            let _turn = turn.lock().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let renewed = alongside(work, Duration::from_millis(10), || async {
            let _turn = turn.lock().await;
        });
        let done = tokio::time::timeout(Duration::from_secs(30), renewed).await;
        assert!(done.is_ok(), "deadlock");
    }

    #[tokio::test]
    async fn new_minutes_come_before_lapsed_ones() {
        let outbox = Inbox::default();
        outbox.deliver(vec![claim(9, true), claim(3, true)], true);
        outbox.deliver(vec![claim(8, false), claim(7, false)], false);
        assert_eq!(minutes(&outbox.next(|_| true).await), [7, 8, 9, 3]);
    }

    #[tokio::test]
    async fn recent_minutes_come_before_old_ones() {
        let outbox = Inbox::default();
        outbox.deliver(vec![claim(1, false), claim(12, true), claim(2, true)], true);
        outbox.deliver(vec![claim(11, false)], false);
        let claims = outbox.next(|claim| claim.minute.epoch_minutes() > 10).await;
        assert_eq!(minutes(&claims), [11, 12, 1, 2]);
    }

    #[tokio::test]
    async fn idle_sender_takes_over_lapsed_claims() {
        let outbox = Inbox::default();
        let now = Instant::now();
        assert!(!outbox.wants_lapsed(now, false), "the node may not send");
        assert!(outbox.wants_lapsed(now, true));
        outbox.deliver(vec![claim(1, false)], false);
        assert!(!outbox.wants_lapsed(now, true), "a claim is waiting");
        outbox.next(|_| true).await;
        assert!(!outbox.wants_lapsed(now, true), "a claim is being sent");
        assert!(outbox.wants_lapsed(now + WANTED_AFTER, true), "one claim at a time is not enough");
        let now = now + WANTED_AFTER;
        let second = Duration::from_secs(1);
        outbox.sent(Some(now + second));
        assert!(!outbox.wants_lapsed(now, true), "the output is paused");
        assert!(outbox.wants_lapsed(now + second, true));
        outbox.deliver(Vec::new(), true);
        assert_eq!(outbox.next(|_| true).await, [], "there are no claims");
    }

    #[test]
    fn partitions_take_turns() {
        let partitions = partitions(3);
        let all = [(0, 1), (0, 2), (0, 3), (2, 9), (1, 8), (2, 10)];
        let mut claims =
            all.map(|(partition, minute)| claim_of(partitions[partition], minute, "n|1", false));
        take_turns(&mut claims);
        assert_eq!(minutes(&claims), [1, 8, 9, 2, 10, 3]);
    }
}
