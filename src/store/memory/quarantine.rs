//! The quarantine in this process.

use async_trait::async_trait;

use super::MemoryStore;
use super::reading::page;
use crate::event::{Minute, Partition};
use crate::store::{Page, Quarantine, Quarantined, StoreError};

#[async_trait]
impl Quarantine for MemoryStore {
    async fn quarantined_page(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<Page<Quarantined>, StoreError> {
        let state = self.lock();
        let all = &state.partitions[partition.index()].quarantine;
        Ok(page(all.values().cloned(), cursor))
    }

    async fn requeue(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let partition = &mut state.partitions[partition.index()];
        let mut taken = 0;
        for series in series {
            let Some(kept) = partition.quarantine.remove(&(minute, (*series).to_owned())) else {
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

    async fn discard(&self, partition: Partition, seen: &[Quarantined]) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let all = &mut state.partitions[partition.index()].quarantine;
        let mut discarded = 0;
        for seen in seen {
            let entry = (seen.minute, seen.series.clone());
            if all.get(&entry) == Some(seen) {
                all.remove(&entry);
                discarded += 1;
            }
        }
        Ok(discarded)
    }
}
