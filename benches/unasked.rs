//! A store that admits every series without asking Redis: what asking costs is the difference.

use std::sync::Arc;

use async_trait::async_trait;
use event_data_service::event::{Minute, Partition};
use event_data_service::store::redis::RedisStore;
use event_data_service::store::{
    Admission, AdmitRequest, Admitted, RecordRequest, Recording, SeriesUsers, Store, StoreError,
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

    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[async_trait]
impl Recording for Unasked {
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
}
