//! Tests when new events must go to disk behind older ones, and when they may go to memory again.

use tempfile::TempDir;

use super::*;
use crate::diagnosis::LossCause;
use crate::event::Minute;
use crate::node::{Intake, Node};

/// A running keeper and its spool.
struct Running {
    home: TempDir,
    node: Arc<Node>,
    spool: Spool,
}

impl Running {
    fn start() -> Self {
        let home = TempDir::new().unwrap();
        let node = Arc::new(Node::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        let (keeper, spool) = Keeper::of_a_mib(&home.path().join("spool"), &node, &metrics);
        tokio::task::spawn_blocking(move || keeper.run());
        Self { home, node, spool }
    }

    /// Sends an event to the disk, like a listener that has no room in memory.
    async fn overflow(&self) {
        let mut batch = Batch::default();
        assert!(batch.push(Minute::of_nanos(0), "a=1", "user", 0));
        self.node.ledger.take_in(&Intake { spooled: 1, ..Intake::default() });
        self.spool.begin_spilling();
        self.spool.reserve().await.unwrap().keep(batch);
    }

    /// Takes a segment, like the unspooler.
    async fn take_what_arrived(&self) -> Option<Segment> {
        let arrived = tokio::time::timeout(Duration::from_secs(30), self.spool.arrived());
        arrived.await.expect("the notification is missing");
        self.spool.take().await
    }
}

#[tokio::test]
async fn failing_disk_does_not_keep_events_from_memory() {
    let running = Running::start();
    std::fs::remove_dir_all(running.home.path().join("spool")).unwrap();
    running.overflow().await;
    assert_eq!(running.take_what_arrived().await, None);
    assert!(!running.spool.is_spilling());
    let totals = running.node.ledger.totals();
    assert!(totals.is_balanced());
    assert_eq!(totals.dropped[LossCause::SpoolFailed as usize], 1);
}

#[tokio::test]
async fn new_events_are_spooled_until_the_last_segment_is_taken() {
    let running = Running::start();
    running.overflow().await;
    assert!(running.spool.is_spilling());
    let taken = running.take_what_arrived().await.unwrap();
    assert!(!running.spool.is_spilling());
    let partition = crate::event::Partitions::new(std::num::NonZeroU16::MIN)
        .of("a=1", crate::event::Minute::MIN);
    assert!(running.node.partitions.of(partition).lags);
    running.spool.done(taken, false).await;
    assert_eq!(running.spool.take().await, None);
    assert!(!running.node.partitions.of(partition).lags);
}
