//! [`Parts`]: the tasks of a node or a relay, and the order in which they stop.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http;
use crate::ingest::{ListenAddress, Table, explained};

/// The time limit for open HTTP connections at the end.
const SIDE_MAX: Duration = Duration::from_secs(1);

/// The tasks of a node or a relay, in the order in which they stop.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The addresses of the sockets, with the ports that the system chose.
    pub(super) addresses: Vec<ListenAddress>,
    /// The address of the HTTP server.
    pub(super) http: Option<SocketAddr>,
    /// Listeners and recorders, or the readers of a relay. They end when all data is recorded or sent.
    pub(super) intake: JoinSet<()>,
    /// The worker and the senders, or the writer of a relay.
    pub(super) outlet: JoinSet<()>,
    /// The HTTP server, reporters and look-ups.
    pub(super) side: JoinSet<()>,
    /// Stops the intake.
    pub(super) stop: CancellationToken,
    /// Cancelled when the intake has ended.
    pub(super) intake_ended: CancellationToken,
    /// Stops the side tasks.
    pub(super) stop_side: CancellationToken,
}

impl Parts {
    /// Binds the HTTP address, if there is one.
    pub(super) async fn bind_http(
        &mut self,
        address: Option<SocketAddr>,
        hosts: &[String],
        connections: usize,
    ) -> anyhow::Result<Option<http::Server>> {
        let Some(address) = address else {
            return Ok(None);
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| explained(error, Table::Tcp, address));
        let listener =
            listener.with_context(|| format!("cannot listen on {address} (http.listen)"))?;
        self.http = Some(listener.local_addr()?);
        let (hosts, stop) = (hosts.to_vec(), self.stop_side.clone());
        Ok(Some(http::Server { listener, connections, hosts, stop }))
    }

    /// Spawns a side task that is dropped when the side tasks stop.
    pub(super) fn spawn_side(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop_side.clone();
        self.side.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Waits until a task fails.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.intake.join_next() => ended,
                Some(ended) = self.outlet.join_next() => ended,
                else => std::future::pending().await,
            };
            if let Err(error) = ended {
                return anyhow::Error::from(error).context("a part of the node failed");
            }
        }
    }

    /// Waits for the end of the intake until the deadline, or until `after` has passed since `at_once` was cancelled. Returns
    /// whether it ended.
    pub(super) async fn end_intake(
        &mut self,
        deadline: Instant,
        at_once: &CancellationToken,
        after: Duration,
    ) -> bool {
        all_end(&mut self.intake, deadline, at_once, after).await
    }

    /// Ends the outlet by the deadline, and then the side tasks.
    pub(super) async fn end(&mut self, deadline: Instant, at_once: &CancellationToken) {
        self.intake_ended.cancel();
        all_end(&mut self.outlet, deadline, at_once, Duration::ZERO).await;
        self.outlet.abort_all();
        self.stop_side.cancel();
        // A client that keeps its connection open must not delay the end.
        all_end(&mut self.side, Instant::now() + SIDE_MAX, at_once, Duration::ZERO).await;
    }
}

async fn all_end(
    tasks: &mut JoinSet<()>,
    deadline: Instant,
    at_once: &CancellationToken,
    after: Duration,
) -> bool {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a part of the node failed");
            }
        }
    };
    let cut_short = async {
        at_once.cancelled().await;
        tokio::time::sleep(after).await;
    };
    tokio::select! {
        biased;
        () = all => true,
        () = tokio::time::sleep_until(deadline) => false,
        () = cut_short => false,
    }
}
