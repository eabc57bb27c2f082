//! The listener as a task of tokio, to measure the thread against: the same receive, sieve and linger.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use event_data_service::ingest::{Receiver, Sieve};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::runtime::Builder;

use crate::load::partitions;
use crate::measure::thread_cpu;
use crate::receiving::Node;

/// Starts the task, alone on its runtime, and answers its CPU seconds when it has stopped.
pub(crate) fn listen(node: &Node) -> anyhow::Result<JoinHandle<anyhow::Result<f64>>> {
    let socket = node.socket()?;
    socket.set_nonblocking(true)?;
    let receiver = node.receiver()?;
    let node = Parts {
        shared: Arc::clone(&node.shared),
        sieve: Node::sieve(),
        batches: node.batches.clone(),
        stop: node.stop.clone(),
        settings: node.settings.clone(),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(thread::spawn(move || {
        runtime.block_on(async {
            let readiness = UdpSocket::from_std(socket.into())?;
            node.run(&readiness, receiver).await
        })?;
        thread_cpu()
    }))
}

struct Parts {
    shared: Arc<event_data_service::node::Node>,
    sieve: Sieve,
    batches: tokio::sync::mpsc::Sender<event_data_service::ingest::Delivery>,
    stop: tokio_util::sync::CancellationToken,
    settings: event_data_service::ingest::ListenerSettings,
}

impl Parts {
    async fn run(mut self, readiness: &UdpSocket, mut receiver: Receiver) -> io::Result<()> {
        let mut swept = Instant::now();
        while !self.stop.is_cancelled() {
            // The time-out has passed where this is an error; the sweep comes either way.
            let _ = tokio::time::timeout(self.settings.read_timeout(), readiness.readable()).await;
            let read = readiness.try_io(Interest::READABLE, || {
                if receiver.poll()? {
                    Ok(())
                } else {
                    Err(ErrorKind::WouldBlock.into())
                }
            });
            match read {
                Ok(()) => self.take_in(&receiver),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if swept.elapsed() >= self.settings.linger {
                swept = Instant::now();
                self.sweep();
            }
        }
        self.sweep();
        Ok(())
    }

    fn take_in(&mut self, receiver: &Receiver) {
        let now = chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        for datagram in receiver.datagrams() {
            self.sieve.datagram(datagram.bytes, datagram.truncated, now);
        }
        let totals = self.shared.ledger.take_in(&self.sieve.take_intake());
        self.sieve.told(totals);
    }

    fn sweep(&mut self) {
        for partition in partitions().iter() {
            let batch = self.sieve.open(partition);
            if !batch.is_empty()
                && let Ok(permit) = self.batches.try_reserve()
            {
                permit.send(std::mem::take(batch).into());
            }
        }
    }
}
