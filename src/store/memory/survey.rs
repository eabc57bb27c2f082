//! The store as a whole, as far as there is one: its only node is this process, and nobody else could hear of it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::MemoryStore;
use crate::event::Minute;
use crate::store::{Draining as _, LossRecord, Reported, Store as _, StoreError, Survey, Surveyed};

impl LossRecord for MemoryStore {
    fn identity(&self) -> &str {
        &self.node
    }
}

#[async_trait]
impl Survey for MemoryStore {
    fn place(&self) -> String {
        self.describe()
    }

    async fn report(&self, _report: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn reports(&self) -> Result<Vec<Reported>, StoreError> {
        Ok(Vec::new())
    }

    async fn withdraw(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn survey(&self, _minutes: &[Minute], old_before: Minute) -> Surveyed {
        let backlogs = self.partitions.iter().map(async |it| {
            let mut backlog = self.backlog(it).await?;
            let mut state = self.lock();
            let waiting = &state.partition(it).waiting;
            backlog.old = waiting.range(..old_before).count() as u64;
            Ok(backlog)
        });
        Surveyed {
            servers: Vec::new(),
            reports: Ok(Vec::new()),
            relays: Ok(Vec::new()),
            backlogs: join_all(backlogs).await.into_iter().collect(),
            seen: Ok(BTreeMap::new()),
            losses: Ok(Vec::new()),
            difference: None,
            counts_max: 0,
            in_logs: false,
        }
    }
}
