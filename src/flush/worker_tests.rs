//! What the other nodes are told while a round takes long.

use std::num::NonZeroU16;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::event::{Batch, Minute};
use crate::node::Node;
use crate::output::{SealedCounts, WriteError};
use crate::store::RecordRequest;
use crate::store::memory::MemoryStore;

const LEASE: Duration = Duration::from_secs(30);
const START_MICROS: i64 = 1_480_876_800_000_000;

/// An output that never answers.
#[derive(Debug, Default)]
struct Silent {
    asked: Notify,
}

#[async_trait]
impl Output for Silent {
    async fn write(&self, _: &[SealedCounts]) -> Result<(), WriteError> {
        self.asked.notify_one();
        std::future::pending().await
    }

    fn describe(&self) -> String {
        "nobody".to_owned()
    }
}

async fn record(store: &MemoryStore, partition: Partition) {
    let mut batch = Batch::default();
    let nanos = (START_MICROS - 600_000_000) * 1000;
    assert!(batch.push(Minute::of_nanos(nanos), "a=1", "user", nanos));
    let group = &batch.groups()[0];
    let recording = RecordRequest {
        minute: group.minute,
        series: "a=1",
        gathered_from: None,
        new_users: vec!["user"],
        occurrences: &group.occurrences,
        batch: &batch,
    };
    store.record(partition, 1, &[recording]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_behind_says_so_however_long_its_round_takes() {
    let began = Instant::now();
    let clock = Arc::new(move || {
        START_MICROS + i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX)
    });
    let partitions = Partitions::new(NonZeroU16::MIN);
    let partition = partitions.of("a=1", Minute::MIN);
    let hour = Duration::from_secs(3600);
    let store = Arc::new(MemoryStore::new("node", &partitions, hour, u64::MAX, clock));
    record(&store, partition).await;
    let node = Arc::new(Node::default());
    node.lag.set(partition, true);
    let output = Arc::new(Silent::default());
    let worker = Worker {
        store: Arc::clone(&store) as Arc<dyn Store>,
        output: Arc::clone(&output) as Arc<dyn Output>,
        partitions,
        settings: FlushSettings {
            interval: Duration::from_secs(1),
            grace: Duration::from_secs(1),
            max_hold: Duration::from_secs(2),
            lease: LEASE,
            write_counts_max: 100,
        },
        witness_file: None,
        metrics: Arc::new(Metrics::new(Arc::clone(&node))),
        heartbeat: node.progress.watch("worker"),
        node: Arc::clone(&node),
        stop: CancellationToken::new(),
        recorded: CancellationToken::new(),
    };
    let running = tokio::spawn(worker.run());
    output.asked.notified().await;
    let lagging_for = || {
        let now_ms = START_MICROS / 1000 + i64::try_from(began.elapsed().as_millis()).unwrap();
        let until_ms = store.look(|state| state.partitions[0].lagging.get("node").copied());
        until_ms.unwrap_or_default() - now_ms
    };
    tokio::time::sleep(3 * LEASE).await;
    assert!(lagging_for() > 0, "{} ms", lagging_for());
    node.lag.set(partition, false);
    tokio::time::sleep(3 * LEASE).await;
    assert!(lagging_for() <= 0, "{} ms", lagging_for());
    running.abort();
}
