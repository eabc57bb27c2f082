//! A store that admits every series without asking Redis: what asking costs is the difference.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use event_data_service::event::{Minute, Partition};
use event_data_service::store::redis::RedisStore;
use event_data_service::store::{
    Admission, AdmitRequest, Admitted, Attested, Backlog, Claim, ClaimRequest, Claimed, Compaction,
    RecordRequest, SeriesUsers, Store, StoreError, Testimony, UnsentPage,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Unasked(pub(crate) Arc<RedisStore>);

#[async_trait]
impl Store for Unasked {
    async fn check(&self) -> Result<(), StoreError> {
        self.0.check().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.0.generation(partition)
    }

    async fn admit(
        &self,
        _: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        Ok(Admitted {
            overflow_users: 0,
            series: vec![Admission::Admitted { users: 0 }; request.series.len()],
        })
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.0.users(partition, minute, series, users).await
    }

    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError> {
        self.0.record(partition, generation, recordings).await
    }

    async fn attest(&self, _: Partition, _: &Testimony) -> Result<Attested, StoreError> {
        Err(only_records())
    }

    async fn claim(&self, _: Partition, _: &ClaimRequest) -> Result<Claimed, StoreError> {
        Err(only_records())
    }

    async fn compact(&self, _: &Claim, _: usize, _: Duration) -> Result<Compaction, StoreError> {
        Err(only_records())
    }

    async fn unsent(&self, _: &Claim, _: u64) -> Result<UnsentPage, StoreError> {
        Err(only_records())
    }

    async fn acknowledge(&self, _: &Claim, _: &[&str], _: Duration) -> Result<bool, StoreError> {
        Err(only_records())
    }

    async fn quarantine(&self, _: &Claim, _: &[(&str, &str)]) -> Result<Vec<bool>, StoreError> {
        Err(only_records())
    }

    async fn extend(&self, _: Partition, _: &[&Claim], _: Duration) -> Result<usize, StoreError> {
        Err(only_records())
    }

    async fn backlog(&self, _: Partition) -> Result<Backlog, StoreError> {
        Err(only_records())
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn only_records() -> StoreError {
    StoreError::Unavailable("a recorder only records".to_owned())
}
