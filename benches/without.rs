//! A Redis store without admission or without coverage, to measure their cost.

use std::sync::Arc;

use async_trait::async_trait;
use event_data_service::event::Partition;
use event_data_service::store::redis::RedisStore;
use event_data_service::store::{
    Admission, AdmitRequest, Admitted, Bucket, Recording, Records, SeriesUsers, Store, StoreError,
};

/// A Redis store that leaves out some of its work.
#[derive(Debug)]
pub(crate) struct Without {
    pub(crate) store: Arc<RedisStore>,
    pub(crate) left_out: LeftOut,
}

/// The part of recording that [`Without`] leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftOut {
    Nothing,
    Admission,
    Coverage,
}

#[async_trait]
impl Store for Without {
    async fn check(&self) -> Result<(), StoreError> {
        self.store.check().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.store.generation(partition)
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}

#[async_trait]
impl Recording for Without {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        if self.left_out != LeftOut::Admission {
            return self.store.admit(partition, request).await;
        }
        Ok(Admitted {
            overflow_users: Some(0),
            arrivals: 0,
            series: vec![Admission::Admitted { users: Some(0) }; request.series.len()],
        })
    }

    async fn users(
        &self,
        bucket: Bucket,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.store.users(bucket, series, users).await
    }

    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64, StoreError> {
        let seen = if self.left_out == LeftOut::Coverage { &[] } else { records.seen };
        self.store.record(partition, &Records { seen, ..*records }).await
    }
}
