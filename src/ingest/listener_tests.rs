//! What a listener that is told to stop does with what its socket still holds.

use std::net::UdpSocket;
use std::num::NonZeroU16;

use super::*;
use crate::event::{Batch, LineRules, Window};
use crate::ingest::{ArrivalStamps, QueueLimits, SieveSettings};
use crate::spool::{Keeper, SpoolSettings};
use crate::telemetry::Progress;

const DATAGRAMS: u64 = 200;

/// Runs a listener that is stopped already over a socket that holds [`DATAGRAMS`] datagrams of two events; answers how
/// many it read, the events that it handed over, and how many it left.
fn stopped(outlives: bool) -> (u64, usize, usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let held = socket.try_clone().unwrap();
    for at in 0..DATAGRAMS {
        let datagram = format!("a=b value=u {at}\na=c value=u {at}");
        let to = socket.local_addr().unwrap();
        sender.send_to(datagram.as_bytes(), to).unwrap();
    }
    let partitions = Partitions::new(NonZeroU16::MIN);
    let window = Window::new(Duration::MAX, Duration::MAX);
    let limits = QueueLimits {
        events: u64::MAX,
        bytes: u64::MAX,
    };
    let sieve = SieveSettings {
        rules: LineRules::default(),
        window,
        partitions,
        limits,
    };
    let receiver = Receiver::new(socket.into(), 2048);
    let (recorder, mut batches) = mpsc::channel(1);
    let ledger = Arc::new(Ledger::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&ledger)));
    let stop = CancellationToken::new();
    stop.cancel();
    Listener {
        receiver: if outlives {
            receiver.outliving()
        } else {
            receiver
        },
        rates: None,
        sieve: Sieve::new(&sieve, Arc::new(ArrivalStamps::default())),
        settings: ListenerSettings {
            linger: Duration::from_millis(100),
            partitions,
        },
        recorders: vec![recorder],
        ledger: Arc::clone(&ledger),
        metrics: Arc::clone(&metrics),
        heartbeat: Progress::default().watch("the listener"),
        stop,
    }
    .run();
    let handed_over = batches
        .try_recv()
        .map_or(0, |delivery| delivery.batch.events());
    let mut left = 0;
    held.set_nonblocking(true).unwrap();
    while held.recv(&mut [0; 2048]).is_ok() {
        left += 1;
    }
    (metrics.datagrams_received.get(), handed_over, left)
}

#[test]
fn the_rest_of_its_own_socket_is_read_and_handed_over() {
    assert_eq!(stopped(false), (DATAGRAMS, 2 * 200, 0));
}

#[test]
fn the_rest_of_a_socket_that_outlives_the_process_is_left() {
    assert_eq!(stopped(true), (0, 0, 200));
}

#[tokio::test]
async fn a_recorder_that_is_busy_does_not_keep_the_last_batches_from_the_others() {
    let partitions = Partitions::new(NonZeroU16::new(2).unwrap());
    let limits = QueueLimits {
        events: u64::MAX,
        bytes: u64::MAX,
    };
    let sieve = SieveSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::MAX, Duration::MAX),
        partitions,
        limits,
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lines: Vec<_> = (0..20).map(|at| format!("a={at} value=u {at}")).collect();
    let to = socket.local_addr().unwrap();
    sender.send_to(lines.join("\n").as_bytes(), to).unwrap();
    let (busy, mut later) = mpsc::channel(1);
    busy.try_send(Batch::default().into()).unwrap();
    let (free, mut at_once) = mpsc::channel(1);
    let ledger = Arc::new(Ledger::default());
    let stop = CancellationToken::new();
    stop.cancel();
    let listener = Listener {
        receiver: Receiver::new(socket.into(), 2048),
        rates: None,
        sieve: Sieve::new(&sieve, Arc::new(ArrivalStamps::default())),
        settings: ListenerSettings {
            linger: Duration::from_millis(100),
            partitions,
        },
        recorders: vec![busy, free],
        ledger: Arc::clone(&ledger),
        metrics: Arc::new(Metrics::new(ledger)),
        heartbeat: Progress::default().watch("the listener"),
        stop,
    };
    let drained = tokio::task::spawn_blocking(move || listener.run());
    let given = tokio::time::timeout(Duration::from_secs(30), at_once.recv()).await;
    // Lets the listener go before anything fails.
    let mut events = 0;
    while let Some(delivery) = later.recv().await {
        events += delivery.batch.events();
    }
    drained.await.unwrap();
    let given = given
        .expect("the busy recorder holds up the other")
        .unwrap();
    assert_eq!(events + given.batch.events(), 20);
}

#[tokio::test]
async fn a_disk_that_hangs_does_not_keep_the_last_batches_from_the_recorders() {
    let partitions = Partitions::new(NonZeroU16::MIN);
    let sieve = SieveSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::MAX, Duration::MAX),
        partitions,
        limits: QueueLimits {
            events: 5,
            bytes: u64::MAX,
        },
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lines: Vec<_> = (0..20).map(|at| format!("a=1 value=u {at}")).collect();
    let to = socket.local_addr().unwrap();
    sender.send_to(lines.join("\n").as_bytes(), to).unwrap();
    let ledger = Arc::new(Ledger::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&ledger)));
    let home = tempfile::TempDir::new().unwrap();
    let settings = SpoolSettings {
        directory: home.path().to_owned(),
        bytes_max: 1 << 20,
    };
    let progress = Progress::default();
    let heartbeat = progress.watch("the keeper");
    // It does not get to its orders, of which there is no room for more.
    let (keeper, spool) = Keeper::open(
        &settings,
        Arc::clone(&ledger),
        Arc::clone(&metrics),
        heartbeat,
    )
    .unwrap();
    while spool.try_keep(Batch::default()).is_ok() {}
    let (recorder, mut batches) = mpsc::channel(1);
    let stop = CancellationToken::new();
    stop.cancel();
    let listener = Listener {
        receiver: Receiver::new(socket.into(), 2048),
        rates: None,
        sieve: Sieve::new(&sieve, Arc::new(ArrivalStamps::default())).with_spool(Some(spool)),
        settings: ListenerSettings {
            linger: Duration::from_millis(100),
            partitions,
        },
        recorders: vec![recorder],
        ledger: Arc::clone(&ledger),
        metrics: Arc::clone(&metrics),
        heartbeat: progress.watch("the listener"),
        stop,
    };
    let drained = tokio::task::spawn_blocking(move || listener.run());
    let given = tokio::time::timeout(Duration::from_secs(30), batches.recv()).await;
    // Lets the listener go before anything fails.
    tokio::task::spawn_blocking(move || keeper.run())
        .await
        .unwrap();
    drained.await.unwrap();
    assert_eq!(given.unwrap().unwrap().batch.events(), 5);
    assert_eq!(metrics.spool_written.get(), 15);
}
