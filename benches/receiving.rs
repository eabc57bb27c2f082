//! Measures receiving real datagrams over loopback, with a store that accepts everything.
//!
//! The cost is the CPU time of the receiving threads. The sender stays only slightly ahead of them, so that the kernel never
//! has to drop datagrams and every alternative receives the same ones.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use event_data_service::ingest::{
    ArrivalStamps, Delivery, LineBatcher, Linger, Listener, Receiver, SourceRates, read_timeout,
};
use event_data_service::node::{self, Intake};
use event_data_service::telemetry::Metrics;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::Socket;
use tokio::io::Interest;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::load::{Load, SERIES, batcher_settings, partitions};
use crate::measure::{Way, figure, side_by_side, thread_cpu};
use crate::report::{Report, column};

const ROUNDS: usize = 5;
const DATAGRAM_MAX: usize = 65_536;
const RECEIVE_BUFFER: usize = 16 << 20;
/// Maximum number of datagrams that the sender may be ahead of the receiving threads; this many fit in the receive buffer.
const AHEAD_MAX: u64 = 2_000;
pub(crate) const LINGER: Duration = Duration::from_millis(100);
const QUIET_DATAGRAMS_PER_SECOND: u32 = 20_000;

/// The parts of a node that a listener needs.
pub(crate) struct Node {
    pub(crate) shared: Arc<node::Node>,
    /// Receives the batches of all partitions.
    pub(crate) batches: mpsc::Sender<Delivery>,
    pub(crate) stop: CancellationToken,
    socket: Socket,
}

impl Node {
    pub(crate) fn receiver(&self) -> anyhow::Result<Receiver> {
        Ok(Receiver::new(self.socket.try_clone()?, DATAGRAM_MAX))
    }

    pub(crate) fn socket(&self) -> anyhow::Result<Socket> {
        Ok(self.socket.try_clone()?)
    }

    pub(crate) fn batcher(&self) -> LineBatcher {
        LineBatcher::new(
            &batcher_settings(),
            Arc::new(ArrivalStamps::default()),
            Arc::clone(&self.shared),
            partitions().iter().map(|_| self.batches.clone()).collect(),
        )
    }

    /// Starts a listener thread, which returns its CPU time in seconds once it has stopped.
    fn listen(&self, receiver: Receiver) -> JoinHandle<anyhow::Result<f64>> {
        self.listen_within(None, receiver)
    }

    /// Like [`Self::listen`], but with a rate limit per source.
    fn listen_within(
        &self,
        rates: Option<Arc<SourceRates>>,
        receiver: Receiver,
    ) -> JoinHandle<anyhow::Result<f64>> {
        let listener = Listener {
            receiver,
            rates,
            batcher: self.batcher(),
            linger: Linger { least: LINGER, most: LINGER },
            node: Arc::clone(&self.shared),
            metrics: Arc::new(Metrics::new(Arc::clone(&self.shared))),
            heartbeat: self.shared.progress.watch("the listener"),
            stop: self.stop.clone(),
        };
        thread::spawn(move || {
            listener.run();
            thread_cpu()
        })
    }

    /// Starts a thread that only reads and counts datagrams. It returns its CPU time in seconds once it has stopped.
    fn count(&self, mut receiver: Receiver, lines: usize) -> JoinHandle<anyhow::Result<f64>> {
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        thread::spawn(move || {
            while !stop.is_cancelled() {
                receiver.gather()?;
                let intake = Intake {
                    dropped: (receiver.datagrams().count() * lines) as u64,
                    ..Intake::default()
                };
                shared.ledger.take_in(&intake);
            }
            thread_cpu()
        })
    }
}

type Threads = Vec<JoinHandle<anyhow::Result<f64>>>;

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    for (id, lines, events, pause) in [
        ("receiving-15", 15, 1_500_000, None),
        ("receiving-1", 1, 300_000, None),
        ("receiving-quiet", 1, 40_000, Some(QUIET_DATAGRAMS_PER_SECOND)),
    ] {
        let datagrams = Load::new(events, SERIES).datagrams(lines);
        let way = |name, start: fn(&Node, usize) -> anyhow::Result<Threads>| Way {
            name,
            run: Box::new({
                let datagrams = &datagrams;
                move || receive(datagrams, lines, pause, start)
            }),
        };
        let speed = pause.map_or("full speed".to_owned(), |rate| format!("{rate} datagrams/s"));
        side_by_side(
            report,
            id,
            &format!("receiving, {lines} lines per datagram, {speed}"),
            ROUNDS,
            &[column("CPU s/M", 3), column("events/s", 0)],
            &mut [
                way("a thread, batched receive", |node, _| Ok(vec![node.listen(node.receiver()?)])),
                way("a thread, batched receive, with a rate limit per source", |node, _| {
                    let rates = Arc::new(SourceRates::new(10_000_000, tokio::time::Instant::now()));
                    let receiver = node.receiver()?;
                    Ok(vec![node.listen_within(Some(rates), receiver)])
                }),
                way("a thread, one datagram per call", |node, _| {
                    Ok(vec![node.listen(node.receiver()?.without_batches())])
                }),
                way("two threads on one socket, batched", |node, _| {
                    Ok(vec![node.listen(node.receiver()?), node.listen(node.receiver()?)])
                }),
                way("a tokio task, batched", |node, _| Ok(vec![listen_as_task(node)?])),
                way("counting datagrams only, batched", |node, lines| {
                    Ok(vec![node.count(node.receiver()?, lines)])
                }),
            ],
        )?;
    }
    Ok(())
}

/// Sends the datagrams to the threads that `start` starts. Returns the CPU seconds of the threads per million events, and
/// the number of events per second.
fn receive(
    datagrams: &[String],
    lines: usize,
    rate: Option<u32>,
    start: fn(&Node, usize) -> anyhow::Result<Threads>,
) -> anyhow::Result<Vec<f64>> {
    let socket = Socket::from(UdpSocket::bind("127.0.0.1:0")?);
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
    socket.set_read_timeout(Some(read_timeout(LINGER)))?;
    let address = socket.local_addr()?.as_socket().context("an IP address")?;
    let (batches, taken) = mpsc::channel(usize::from(partitions().count()));
    let node = Node { shared: Arc::default(), batches, stop: CancellationToken::new(), socket };
    let store = take_everything(Arc::clone(&node.shared), taken);
    let threads = start(&node, lines)?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(address)?;
    let received = || node.shared.ledger.totals().received;
    let began = Instant::now();
    for (sent, datagram) in (0_u32..).zip(datagrams) {
        while u64::from(sent) > received() / lines as u64 + AHEAD_MAX {
            thread::sleep(Duration::from_micros(100));
        }
        if let Some(rate) = rate {
            let due = began + Duration::from_secs(1) * sent / rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        sender.send(datagram.as_bytes())?;
    }
    let events: usize = datagrams.iter().map(|d| d.lines().count()).sum();
    while received() < events as u64 {
        thread::sleep(Duration::from_micros(100));
    }
    let seconds = began.elapsed().as_secs_f64();
    node.stop.cancel();
    let mut cpu = 0.0;
    for thread in threads {
        cpu += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
    }
    drop(node);
    store.join().map_err(|_| anyhow!("the store panicked"))?;
    Ok(vec![cpu * 1e6 / figure(events), figure(events) / seconds])
}

fn take_everything(shared: Arc<node::Node>, mut taken: mpsc::Receiver<Delivery>) -> JoinHandle<()> {
    thread::spawn(move || {
        while let Some(Delivery { batch, .. }) = taken.blocking_recv() {
            shared.ledger.recorded(batch.events(), 0);
            shared.ledger.released(batch.bytes());
        }
    })
}

/// Starts a thread that runs a listener as the only task of a tokio runtime. The thread returns its CPU time in seconds once
/// the task has stopped.
fn listen_as_task(node: &Node) -> anyhow::Result<JoinHandle<anyhow::Result<f64>>> {
    let socket = node.socket()?;
    socket.set_nonblocking(true)?;
    let receiver = node.receiver()?;
    let node = Parts { batcher: node.batcher(), stop: node.stop.clone() };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(thread::spawn(move || {
        runtime.block_on(async {
            let readiness = tokio::net::UdpSocket::from_std(socket.into())?;
            node.run(&readiness, receiver).await
        })?;
        thread_cpu()
    }))
}

struct Parts {
    batcher: LineBatcher,
    stop: CancellationToken,
}

impl Parts {
    async fn run(
        mut self,
        readiness: &tokio::net::UdpSocket,
        mut receiver: Receiver,
    ) -> io::Result<()> {
        let mut swept = tokio::time::Instant::now();
        while !self.stop.is_cancelled() {
            // Ignore a timeout, because a sweep may be due even if no datagram has arrived.
            let _ = tokio::time::timeout(read_timeout(LINGER), readiness.readable()).await;
            let read = readiness.try_io(Interest::READABLE, || {
                if receiver.poll()? { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
            });
            match read {
                Ok(()) => self.add_datagrams(&receiver),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if swept.elapsed() >= LINGER {
                swept = tokio::time::Instant::now();
                self.batcher.hand_over(Duration::ZERO, swept);
            }
        }
        self.batcher.hand_over(Duration::ZERO, tokio::time::Instant::now());
        Ok(())
    }

    fn add_datagrams(&mut self, receiver: &Receiver) {
        let now = chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        for datagram in receiver.datagrams() {
            self.batcher.add(datagram, usize::MAX, now);
        }
        self.batcher.commit();
    }
}
