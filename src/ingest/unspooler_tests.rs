//! Tests the unspooler with a disk that is slow, or that cannot be read for a while.

use std::num::NonZeroU16;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::node::Node;
use crate::spool::Keeper;

const SOON: Duration = Duration::from_secs(30);

fn batch(user: &str) -> Batch {
    let mut batch = Batch::default();
    assert!(batch.push(Minute::of_nanos(0), "a=1", user, 0));
    batch
}

/// The surroundings of an unspooler for one partition.
struct Site {
    home: TempDir,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    recorder: mpsc::Sender<Delivery>,
    batches: mpsc::Receiver<Delivery>,
    stop: CancellationToken,
}

impl Site {
    fn new() -> Self {
        let node = Arc::new(Node::default());
        let (recorder, batches) = mpsc::channel(1);
        Self {
            home: TempDir::new().unwrap(),
            metrics: Arc::new(Metrics::new(Arc::clone(&node))),
            node,
            recorder,
            batches,
            stop: CancellationToken::new(),
        }
    }

    fn spool(&self) -> PathBuf {
        self.home.path().join("spool")
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.spool().join(format!("{number:020}.spool"))
    }

    /// Leaves the first segment behind, as an earlier process would.
    fn leave_a_segment(&self) {
        let (frames, _) = segment::frames(&batch("of the first segment"));
        std::fs::create_dir(self.spool()).unwrap();
        let bytes = [segment::MAGIC, &frames[0].bytes].concat();
        std::fs::write(self.segment(1), bytes).unwrap();
    }

    /// Starts the unspooler; `before_read` runs after the directory has been opened.
    fn start(&self, before_read: impl FnOnce()) -> tokio::task::JoinHandle<()> {
        let (keeper, spool) = Keeper::of_a_mib(&self.spool(), &self.node, &self.metrics);
        before_read();
        tokio::task::spawn_blocking(move || keeper.run());
        let unspooler = Unspooler {
            spool,
            partitions: Partitions::new(NonZeroU16::MIN),
            limits: QueueLimits { events: 1000, bytes: 1 << 20 },
            recorders: vec![self.recorder.clone()],
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            heartbeat: self.node.progress.watch("unspooler"),
            // This also reads from pipes, which simulate a hanging disk.
            read: |path| std::fs::read(path),
            stop: self.stop.clone(),
        };
        tokio::spawn(unspooler.run())
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let look = async {
            while !holds(self) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, look).await.unwrap();
    }
}

#[tokio::test]
async fn temporarily_unreadable_segment_is_not_damaged() {
    for is_directory_moved in [true, false] {
        let mut site = Site::new();
        site.leave_a_segment();
        let moved = site.home.path().join("away");
        let running = site.start(|| {
            if is_directory_moved {
                std::fs::rename(site.spool(), &moved).unwrap();
            } else {
                std::fs::rename(site.segment(1), &moved).unwrap();
                std::fs::create_dir(site.segment(1)).unwrap();
            }
        });
        site.until(|site| site.metrics.spool_read_failures.get() > 2).await;
        if is_directory_moved {
            std::fs::rename(&moved, site.spool()).unwrap();
        } else {
            std::fs::remove_dir(site.segment(1)).unwrap();
            std::fs::rename(&moved, site.segment(1)).unwrap();
        }
        let brought = tokio::time::timeout(SOON, site.batches.recv()).await;
        brought.unwrap().unwrap().done.remove(0).send(()).unwrap();
        site.until(|site| !site.segment(1).exists()).await;
        assert!(!site.segment(1).with_extension("damaged").exists());
        site.stop.cancel();
        running.await.unwrap();
        assert_eq!(site.node.ledger.totals().dropped.iter().sum::<u64>(), 0);
    }
}

#[tokio::test]
async fn unreadable_segment_is_kept_for_the_next_start() {
    let site = Site::new();
    site.leave_a_segment();
    let moved = site.home.path().join("away");
    let running = site.start(|| std::fs::rename(site.spool(), &moved).unwrap());
    site.until(|site| site.metrics.spool_read_failures.get() > 0).await;
    site.stop.cancel();
    tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    std::fs::rename(&moved, site.spool()).unwrap();
    assert!(site.segment(1).exists());
}

#[tokio::test]
async fn a_segment_that_was_moved_away_is_skipped() {
    let site = Site::new();
    site.leave_a_segment();
    let running = site.start(|| std::fs::remove_file(site.segment(1)).unwrap());
    site.until(|site| site.metrics.spool_bytes.get() == 0).await;
    site.stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn hanging_disk_does_not_block_a_recorder() {
    let mut site = Site::new();
    site.leave_a_segment();
    // A pipe can only be read while something writes to it.
    let hanging = std::process::Command::new("mkfifo").arg(site.segment(2)).status();
    assert!(hanging.unwrap().success());
    let listeners = batch("of a listener").into();
    site.recorder.try_send(listeners).unwrap();
    let running = site.start(|| ());
    let second = site.segment(2);
    site.until(|site| site.node.ledger.totals().in_memory() > 0).await;
    // The first segment has been read, and the second is being read.
    let open = move || std::fs::OpenOptions::new().write(true).open(second);
    let opening = tokio::time::timeout(SOON, tokio::task::spawn_blocking(open));
    let writer = opening.await.unwrap().unwrap().unwrap();
    site.batches.recv().await.unwrap();
    let next = tokio::time::timeout(SOON, site.batches.recv()).await;
    drop(writer);
    site.stop.cancel();
    let mut next = next.expect("the next segment was not read ahead").unwrap();
    next.done.remove(0).send(()).unwrap();
    running.await.unwrap();
    assert!(site.node.ledger.totals().is_balanced());
}
