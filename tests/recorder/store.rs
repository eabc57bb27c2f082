//! A store that can fail, be replaced, or discard everything, and that counts its requests.

use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use event_data_service::event::Partition;
use event_data_service::store::{
    Admission, AdmitRequest, Admitted, Bucket, Recording, Records, SeriesUsers, Store, StoreError,
};
use testing::prelude::*;
use tokio::time::Instant;

use super::setup::Server;

/// Some recordings reach an empty server, as if a different task had reconnected after the recording was prepared.
#[derive(Debug, Default)]
pub(crate) struct CountingStore {
    pub(crate) failing_at: &'static [u64],
    pub(crate) hangs: Duration,
    /// The time of each recording.
    pub(crate) asked_at: Mutex<Vec<Instant>>,
    /// The recordings, numbered from 0, that reach an empty server.
    pub(crate) replaced_at: &'static [u64],
    pub(crate) outage: Duration,
    /// The server. If there is none, recordings are confirmed and discarded.
    pub(crate) server: Mutex<Option<Arc<Server>>>,
    pub(crate) generation: AtomicU64,
    pub(crate) recordings: AtomicU64,
    pub(crate) asked: AtomicU64,
    /// The number of users that recordings have listed as new.
    pub(crate) users: AtomicUsize,
}

impl CountingStore {
    pub(crate) fn replaced(at: &'static [u64], outage: Duration) -> Arc<Self> {
        Arc::new(Self {
            replaced_at: at,
            outage,
            server: Mutex::new(Some(Arc::new(Server::new()))),
            ..Self::default()
        })
    }

    pub(crate) fn failing(at: &'static [u64]) -> Arc<Self> {
        Arc::new(Self {
            failing_at: at,
            server: Mutex::new(Some(Arc::new(Server::new()))),
            ..Self::default()
        })
    }

    pub(crate) async fn when_asked(&self) -> Instant {
        loop {
            if let Some(at) = self.asked_at.lock().unwrap().first() {
                return *at;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().unwrap().clone()
    }
}

#[async_trait]
impl Store for CountingStore {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, _: Partition) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn describe(&self) -> String {
        "a store that counts".to_owned()
    }
}

#[async_trait]
impl Recording for CountingStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        match self.server() {
            Some(server) => server.store.admit(partition, request).await,
            None => Ok(Admitted {
                overflow_users: Some(0),
                arrivals: 0,
                series: vec![Admission::Admitted { users: Some(0) }; request.series.len()],
            }),
        }
    }

    async fn users(
        &self,
        bucket: Bucket,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let server = self.server().expect("only a test with a server queries users");
        server.store.users(bucket, series, users).await
    }

    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64, StoreError> {
        let users =
            records.requests.iter().flat_map(|request| &request.new_users).map(Vec::len).sum();
        self.users.fetch_add(users, Ordering::SeqCst);
        let number = self.recordings.fetch_add(1, Ordering::SeqCst);
        self.asked_at.lock().unwrap().push(Instant::now());
        if self.failing_at.contains(&number) {
            tokio::time::sleep(self.hangs).await;
            return Err(StoreError::unavailable("away"));
        }
        if self.replaced_at.contains(&number) {
            tokio::time::sleep(self.outage).await;
            self.generation.fetch_add(1, Ordering::SeqCst);
            *self.server.lock().unwrap() = Some(Arc::new(Server::new()));
        }
        match self.server() {
            Some(server) => {
                server.store.record(partition, &Records { generation: 0, ..*records }).await
            }
            None => Ok(0),
        }
    }
}
