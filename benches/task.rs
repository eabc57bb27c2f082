//! The listener as a task of tokio, to measure the thread against: the same receive, batcher and linger.

use std::io::{self, ErrorKind};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use event_data_service::ingest::{LineBatcher, Receiver, read_timeout};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::runtime::Builder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::measure::thread_cpu;
use crate::receiving::{LINGER, Node};

/// Starts the task, alone on its runtime, and answers its CPU seconds when it has stopped.
pub(crate) fn listen(node: &Node) -> anyhow::Result<JoinHandle<anyhow::Result<f64>>> {
    let socket = node.socket()?;
    socket.set_nonblocking(true)?;
    let receiver = node.receiver()?;
    let node = Parts {
        batcher: node.batcher(),
        stop: node.stop.clone(),
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
    batcher: LineBatcher,
    stop: CancellationToken,
}

impl Parts {
    async fn run(mut self, readiness: &UdpSocket, mut receiver: Receiver) -> io::Result<()> {
        let mut swept = Instant::now();
        while !self.stop.is_cancelled() {
            // The timeout has passed where this is an error; the sweep comes either way.
            let _ = tokio::time::timeout(read_timeout(LINGER), readiness.readable()).await;
            let read = readiness.try_io(Interest::READABLE, || {
                if receiver.poll()? {
                    Ok(())
                } else {
                    Err(ErrorKind::WouldBlock.into())
                }
            });
            match read {
                Ok(()) => self.add_datagrams(&receiver),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if swept.elapsed() >= LINGER {
                swept = Instant::now();
                self.batcher.hand_over(Duration::ZERO, swept);
            }
        }
        self.batcher.hand_over(Duration::ZERO, Instant::now());
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
