//! A disk that takes its time.

use std::num::NonZeroU16;

use tempfile::TempDir;

use super::*;
use crate::spool::Keeper;
use crate::telemetry::Progress;

fn batch(user: &str) -> Batch {
    let mut batch = Batch::default();
    assert!(batch.push(Minute::of_nanos(0), "a=1", user, 0));
    batch
}

#[tokio::test]
async fn a_disk_that_hangs_does_not_keep_a_recorder_waiting() {
    let home = TempDir::new().unwrap();
    let segment = |number: u64| home.path().join(format!("{number:020}.spool"));
    let (frames, _) = segment::frames(&batch("of the first segment"));
    let bytes = [segment::MAGIC, &frames[0].bytes].concat();
    std::fs::write(segment(1), bytes).unwrap();
    // To be read it has to be written to at the same time.
    let hanging = std::process::Command::new("mkfifo")
        .arg(segment(2))
        .status();
    assert!(hanging.unwrap().success());

    let ledger = Arc::new(Ledger::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&ledger)));
    let (keeper, spool) = Keeper::of_a_mib(home.path(), &ledger, &metrics);
    tokio::task::spawn_blocking(move || keeper.run());
    let (recorder, mut batches) = mpsc::channel(1);
    recorder.try_send(batch("of a listener").into()).unwrap();
    let stop = CancellationToken::new();
    let unspooler = Unspooler {
        spool,
        partitions: Partitions::new(NonZeroU16::MIN),
        limits: QueueLimits {
            events: 1000,
            bytes: 1 << 20,
        },
        recorders: vec![recorder],
        ledger: Arc::clone(&ledger),
        metrics,
        heartbeat: Progress::default().watch("unspooler"),
        stop: stop.clone(),
    };
    let running = tokio::spawn(unspooler.run());
    let read = async {
        while ledger.totals().in_memory() == 0 {
            tokio::task::yield_now().await;
        }
        // The first is read; what is opened here is the second, while it is being read.
        let path = segment(2);
        tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(path))
            .await
            .unwrap()
            .unwrap()
    };
    let soon = Duration::from_secs(30);
    let writer = tokio::time::timeout(soon, read).await.unwrap();
    batches.recv().await.unwrap();
    let next = tokio::time::timeout(soon, batches.recv()).await;
    drop(writer);
    stop.cancel();
    let next = next.expect("its place is kept for nobody").unwrap();
    next.done.unwrap().send(()).unwrap();
    running.await.unwrap();
    assert!(ledger.totals().is_balanced());
}
