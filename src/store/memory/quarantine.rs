//! The quarantines in this process, and what is dropped of an output that is gone.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::MemoryStore;
use super::reading::page;
use super::state::unsent_bytes;
use crate::event::{Minute, Partition};
use crate::store::{Dropped, OutputName, Page, Quarantine, Quarantined, StoreError};

#[async_trait]
impl Quarantine for MemoryStore {
    async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>, StoreError> {
        let state = self.lock();
        let all = state.partitions[partition.index()].quarantine.get(output);
        let nothing = BTreeMap::new();
        Ok(page(all.unwrap_or(&nothing).values().cloned(), cursor))
    }

    async fn requeue(
        &self,
        partition: Partition,
        output: &OutputName,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let partition = &mut state.partitions[partition.index()];
        let mut taken = 0;
        for series in series {
            let entry = (minute, (*series).to_owned());
            let all = partition.quarantine.get_mut(output);
            let Some(kept) = all.and_then(|all| all.remove(&entry)) else {
                continue;
            };
            let waits = partition.minutes.entry(minute).or_default();
            waits.admitted.remove(&kept.series);
            waits
                .counts
                .entry(kept.series.clone())
                .or_insert((kept.unique, kept.cumulative));
            let bytes = unsent_bytes(&kept.series, 1);
            waits.unsent_bytes += bytes;
            state.bytes += bytes;
            let unsent = waits.unsent.entry(output.clone()).or_default();
            unsent.insert(kept.series);
            waits.expires_ms = None;
            let sending = partition.sending.entry(output.clone()).or_default();
            sending.entry(minute).or_default();
            taken += 1;
        }
        Ok(taken)
    }

    async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        let partition = &mut state.partitions[partition.index()];
        let mut discarded = 0;
        for seen in seen {
            let entry = (seen.minute, seen.series.clone());
            if let Some(all) = partition.quarantine.get_mut(output)
                && all.get(&entry) == Some(seen)
            {
                all.remove(&entry);
                discarded += 1;
            }
        }
        Ok(discarded)
    }

    async fn drop_output(
        &self,
        partition: Partition,
        output: &OutputName,
    ) -> Result<Dropped, StoreError> {
        let now_ms = self.now_ms();
        let state = &mut *self.lock();
        let index = partition.index();
        let minutes = state.partitions[index].sending.remove(output);
        if !state.partitions[index].claims.is_empty() && minutes.is_some() {
            // A node that still had the output may have sealed a part of one of these.
            let sending = &mut state.partitions[index].sending;
            sending.insert(output.clone(), BTreeMap::new());
        }
        let quarantine = state.partitions[index].quarantine.remove(output);
        let mut dropped = Dropped {
            quarantined: quarantine.map_or(0, |all| all.len() as u64),
            ..Dropped::default()
        };
        for minute in minutes.unwrap_or_default().into_keys() {
            dropped.minutes += 1;
            let partition = &mut state.partitions[index];
            if let Some(minute) = partition.minutes.get_mut(&minute) {
                let unsent = minute.unsent.remove(output);
                dropped.counts += unsent.map_or(0, |unsent| unsent.len() as u64);
            }
            state.end(index, minute, now_ms);
        }
        Ok(dropped)
    }
}
