//! The claims that a task works on, all to seal or all to send to one output; and the renewal of their leases.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::{Minute, Partition};
use crate::store::{Claim, Draining};

/// The claims in hand.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<BTreeMap<(Partition, Minute), Claim>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Partition, Minute), Claim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, claim: &Claim) {
        self.lock().insert((claim.partition, claim.minute), claim.clone());
    }

    /// Returns the number of claims in hand of a partition.
    pub(super) fn count(&self, partition: Partition) -> usize {
        let of_partition = (partition, Minute::MIN)..=(partition, Minute::MAX);
        self.lock().range(of_partition).count()
    }

    /// Whether the claim is in hand still, and not a later one of the same minute.
    pub(super) fn has(&self, claim: &Claim) -> bool {
        let claims = self.lock();
        let held = claims.get(&(claim.partition, claim.minute));
        held.is_some_and(|held| held.token == claim.token)
    }

    /// The claim is done, lost, or left to lapse. From now on it is not renewed.
    pub(super) fn let_go(&self, claim: &Claim) {
        if self.has(claim) {
            self.lock().remove(&(claim.partition, claim.minute));
        }
    }

    /// Does the work while the leases of what is in hand are renewed, three times a lease.
    pub(super) async fn renewing<T>(
        &self,
        store: &dyn Draining,
        lease: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        beside(work, lease / 3, || self.set_deadlines(store, lease)).await
    }

    /// Lets go of everything. The claims lapse, and any node takes them up.
    pub(super) async fn let_all_go(&self, store: &dyn Draining) {
        let claims = std::mem::take(&mut *self.lock());
        set_deadlines(store, claims.into_values().collect(), Duration::ZERO).await;
    }

    /// Lets go of these. They lapse after `delay`.
    pub(super) async fn let_lapse(&self, store: &dyn Draining, claims: &[Claim], delay: Duration) {
        let held: Vec<Claim> = claims.iter().filter(|claim| self.has(claim)).cloned().collect();
        for claim in &held {
            self.let_go(claim);
        }
        set_deadlines(store, held, delay).await;
    }

    async fn set_deadlines(&self, store: &dyn Draining, lease: Duration) {
        let claims = self.lock().values().cloned().collect();
        set_deadlines(store, claims, lease).await;
    }
}

/// Does the work, and something else again and again after a while, until the work is done. Neither stalls
/// while the other one waits: each may hold what the other waits for, such as the turn to connect.
async fn beside<T, R: Future<Output = ()>>(
    work: impl Future<Output = T>,
    every: Duration,
    mut renew: impl FnMut() -> R,
) -> T {
    let renewing = async {
        loop {
            tokio::time::sleep(every).await;
            renew().await;
        }
    };
    tokio::select! {
        biased;
        result = work => result,
        () = renewing => unreachable!("it goes on for ever"),
    }
}

async fn set_deadlines(store: &dyn Draining, claims: Vec<Claim>, lease: Duration) {
    let mut by_partition: BTreeMap<Partition, Vec<&Claim>> = BTreeMap::new();
    for claim in &claims {
        by_partition.entry(claim.partition).or_default().push(claim);
    }
    let calls =
        by_partition.iter().map(|(&partition, claims)| store.extend(partition, claims, lease));
    for result in futures_util::future::join_all(calls).await {
        // Nothing to do: the lease runs out, and the minute is taken over.
        if let Err(error) = result {
            tracing::debug!(%error, "cannot move the deadline of claims");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::Partitions;

    #[test]
    fn an_older_claim_of_a_minute_is_not_in_hand_and_does_not_let_go_of_the_later_one() {
        let partition = Partitions::new(NonZeroU16::MIN).of("a=1", Minute::MIN);
        let claim = |token: &str| Claim {
            partition,
            minute: Minute::MIN,
            output: None,
            token: token.to_owned(),
            generation: 0,
            taken_over: false,
        };
        let (held, older, later) = (Held::default(), claim("n|1"), claim("n|2"));
        held.take(&older);
        held.take(&later);
        assert!(held.has(&later) && !held.has(&older));
        held.let_go(&older);
        assert_eq!(held.count(partition), 1);
        held.let_go(&later);
        assert_eq!(held.count(partition), 0);
    }

    #[tokio::test]
    async fn the_work_goes_on_while_a_renewal_waits_for_it() {
        let turn = tokio::sync::Mutex::new(());
        let work = async {
            let _turn = turn.lock().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let renewed = beside(work, Duration::from_millis(10), || async {
            let _turn = turn.lock().await;
        });
        let done = tokio::time::timeout(Duration::from_secs(30), renewed).await;
        assert!(done.is_ok(), "both wait for each other");
    }
}
