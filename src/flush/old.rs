//! [`OldMinutes`]: the queue of claimed minutes that are old. They are sealed concurrently with the rounds, so that their number and
//! size delay no minute that has just ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::held::Held;
use crate::event::Partition;
use crate::store::{Claim, Draining};

/// The old minutes that this node has claimed. A round claims no more of a partition while its share of the queue is full.
#[derive(Debug, Default)]
pub(super) struct OldMinutes {
    /// Every claim until it is sealed.
    pub(super) held: Held,
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    claims: BTreeMap<Partition, VecDeque<Claim>>,
    /// The partition that had the last turn.
    served: Option<Partition>,
    /// Claims to send the counts sealed since the last round.
    sealed: Vec<Claim>,
}

impl OldMinutes {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, claim: Claim) {
        self.held.take(&claim);
        let mut waiting = self.lock();
        let of_partition = waiting.claims.entry(claim.partition).or_default();
        of_partition.push_back(claim);
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
        self.held.let_all_go(store).await;
    }
}

impl Waiting {
    fn next(&mut self) -> Option<Claim> {
        let after = |it: &&Partition| self.served.is_none_or(|served| **it > served);
        let mut partitions = self.claims.keys();
        let next = partitions.clone().find(after).or_else(|| partitions.next());
        let next = *next?;
        let of_partition = self.claims.get_mut(&next)?;
        let claim = of_partition.pop_front();
        if of_partition.is_empty() {
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
    use crate::event::{Minute, Partitions};

    #[tokio::test]
    async fn partitions_have_turns_however_many_minutes_one_of_them_has() {
        let partitions = Partitions::new(NonZeroU16::new(3).unwrap());
        let partitions: Vec<_> = partitions.iter().collect();
        let old = OldMinutes::default();
        for (partition, minute) in [(0, 1), (0, 2), (0, 3), (2, 9), (1, 8), (2, 10)] {
            old.add(Claim {
                partition: partitions[partition],
                minute: Minute::from_epoch_minutes(minute).unwrap(),
                output: None,
                token: "n|1".to_owned(),
                generation: 0,
                taken_over: false,
            });
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
