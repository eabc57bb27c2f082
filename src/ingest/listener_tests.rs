//! Tests what a stopped listener does with its events and with the datagrams still queued in its socket.

use std::net::UdpSocket;
use std::num::NonZeroU16;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::*;
use crate::event::{Batch, LineRules, Partitions, Window};
use crate::ingest::{ArrivalStamps, BatcherSettings, Delivery, QueueLimits};
use crate::node::Node;
use crate::spool::{Keeper, Spool};

const DATAGRAMS: u64 = 200;

/// A listener that has already been stopped.
struct Stopped {
    listener: Listener,
    sender: UdpSocket,
    /// Another handle to the listener's socket.
    held: UdpSocket,
    metrics: Arc<Metrics>,
}

impl Stopped {
    /// Creates a stopped listener with one partition per recorder, and room for this many events in memory.
    fn new(recorders: Vec<mpsc::Sender<Delivery>>, events: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        let held = socket.try_clone().unwrap();
        let number = u16::try_from(recorders.len()).unwrap();
        let partitions = Partitions::new(NonZeroU16::new(number).unwrap());
        let settings = BatcherSettings {
            rules: LineRules::default(),
            window: Window::new(Duration::MAX, Duration::MAX),
            partitions,
            limits: QueueLimits { events, bytes: u64::MAX },
        };
        let node = Arc::new(Node::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        let stop = CancellationToken::new();
        stop.cancel();
        let listener = Listener {
            receiver: Receiver::new(socket.into(), 2048),
            rates: None,
            batcher: LineBatcher::new(
                &settings,
                Arc::new(ArrivalStamps::default()),
                Arc::clone(&node),
                recorders,
            ),
            linger: Linger { least: Duration::from_millis(100), most: Duration::from_millis(100) },
            heartbeat: node.progress.watch("the listener"),
            node,
            metrics: Arc::clone(&metrics),
            stop,
        };
        Self { listener, sender, held, metrics }
    }

    fn with_spool(mut self, spool: Spool) -> Self {
        self.listener.batcher = self.listener.batcher.with_spool(Some(spool));
        self
    }

    /// Sends a datagram with these lines to the listener.
    fn send(&self, lines: &[String]) {
        self.sender.send(lines.join("\n").as_bytes()).unwrap();
    }
}

/// Runs a listener on a socket with [`DATAGRAMS`] datagrams of two events each. Returns how many datagrams it read, how many
/// events it sent to the recorder, and how many datagrams it left.
fn rest_of_a_socket(outlives: bool) -> (u64, usize, usize) {
    let (recorder, mut batches) = mpsc::channel(1);
    let mut stopped = Stopped::new(vec![recorder], u64::MAX);
    if outlives {
        stopped.listener.receiver.outlives = true;
    }
    for at in 0..DATAGRAMS {
        stopped.send(&["b", "c"].map(|tag| format!("a={tag} value=u {at}")));
    }
    stopped.listener.run();
    let handed_over = batches.try_recv().map_or(0, |delivery| delivery.batch.events());
    let mut left = 0;
    stopped.held.set_nonblocking(true).unwrap();
    while stopped.held.recv(&mut [0; 2048]).is_ok() {
        left += 1;
    }
    (stopped.metrics.datagrams_received.get(), handed_over, left)
}

#[test]
fn unread_datagrams_of_its_own_socket_are_read_and_sent() {
    assert_eq!(rest_of_a_socket(false), (DATAGRAMS, 2 * 200, 0));
}

#[test]
fn unread_datagrams_of_a_socket_that_outlives_the_process_are_left() {
    assert_eq!(rest_of_a_socket(true), (0, 0, 200));
}

#[tokio::test]
async fn busy_recorder_does_not_delay_the_last_batches_of_others() {
    let (busy, mut later) = mpsc::channel(1);
    busy.try_send(Batch::default().into()).unwrap();
    let (free, mut at_once) = mpsc::channel(1);
    let stopped = Stopped::new(vec![busy, free], u64::MAX);
    let lines: Vec<_> = (0..20).map(|at| format!("a={at} value=u {at}")).collect();
    stopped.send(&lines);
    let drained = tokio::task::spawn_blocking(move || stopped.listener.run());
    let given = tokio::time::timeout(Duration::from_secs(30), at_once.recv()).await;
    // Lets the listener finish before any assertion can fail.
    let mut events = 0;
    while let Some(delivery) = later.recv().await {
        events += delivery.batch.events();
    }
    drained.await.unwrap();
    let given = given.expect("a busy recorder does not block the other").unwrap();
    assert_eq!(events + given.batch.events(), 20);
}

#[tokio::test]
async fn hanging_disk_does_not_delay_the_last_batches() {
    let (recorder, mut batches) = mpsc::channel(1);
    let stopped = Stopped::new(vec![recorder], 5);
    let home = tempfile::TempDir::new().unwrap();
    let metrics = Arc::clone(&stopped.metrics);
    // The keeper is not running yet and its queue is full, as if the disk were hanging.
    let (keeper, spool) = Keeper::of_a_mib(home.path(), &stopped.listener.node, &metrics);
    while let Some(place) = spool.try_reserve() {
        place.keep(Batch::default());
    }
    let stopped = stopped.with_spool(spool);
    let lines: Vec<_> = (0..20).map(|at| format!("a=1 value=u {at}")).collect();
    stopped.send(&lines);
    let drained = tokio::task::spawn_blocking(move || stopped.listener.run());
    let given = tokio::time::timeout(Duration::from_secs(30), batches.recv()).await;
    // Lets the listener finish before any assertion can fail.
    tokio::task::spawn_blocking(move || keeper.run()).await.unwrap();
    drained.await.unwrap();
    assert_eq!(given.unwrap().unwrap().batch.events(), 5);
    assert_eq!(metrics.spool_written.get(), 15);
}

/// Reading from a listening TCP socket always fails, so the listener reports a failing socket and sends no heartbeats.
#[test]
fn failing_socket_makes_its_listener_unhealthy() {
    let (recorder, _batches) = mpsc::channel(1);
    let Stopped { mut listener, .. } = Stopped::new(vec![recorder], u64::MAX);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.receiver = Receiver::new(socket.into(), 2048);
    let (node, stop) = (Arc::clone(&listener.node), CancellationToken::new());
    listener.stop = stop.clone();
    let running = std::thread::spawn(move || listener.run());
    let began = Instant::now();
    let limit = Duration::from_millis(200);
    let is_failing = || node.listeners_failing.load(Ordering::Relaxed) > 0;
    while !is_failing() || node.progress.stalled(limit).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "the failure was not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.cancel();
    running.join().unwrap();
}
