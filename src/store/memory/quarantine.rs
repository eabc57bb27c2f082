//! What is set aside in this process.

use async_trait::async_trait;

use super::MemoryStore;
use crate::event::{Minute, Partition};
use crate::store::{Quarantine, SetAside, SetAsidePage, StoreError};

/// The counts given at once.
const PAGE: usize = 500;

#[async_trait]
impl Quarantine for MemoryStore {
    async fn set_aside_page(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<SetAsidePage, StoreError> {
        let state = self.lock();
        let all = &state.partitions[partition.index()].set_aside;
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let next = from.saturating_add(PAGE);
        Ok(SetAsidePage {
            counts: all.values().skip(from).take(PAGE).cloned().collect(),
            next: (next < all.len()).then_some(next as u64),
        })
    }

    async fn send_again(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let partition = &mut state.partitions[partition.index()];
        let mut taken = 0;
        for series in series {
            let Some(kept) = partition.set_aside.remove(&(minute, (*series).to_owned())) else {
                continue;
            };
            let state = partition.minutes.entry(minute).or_default();
            state.admitted.remove(&kept.series);
            state
                .counts
                .entry(kept.series.clone())
                .or_insert((kept.unique, kept.cumulative));
            state.unsent.insert(kept.series);
            state.expires_ms = None;
            partition.waiting.insert(minute);
            taken += 1;
        }
        Ok(taken)
    }

    async fn forget(&self, partition: Partition, seen: &[SetAside]) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let all = &mut state.partitions[partition.index()].set_aside;
        let mut forgotten = 0;
        for seen in seen {
            let entry = (seen.minute, seen.series.clone());
            if all.get(&entry) == Some(seen) {
                all.remove(&entry);
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }
}
