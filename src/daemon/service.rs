//! [`Service`]: the parts of a node, running.
//!
//! It owns the threads and tasks. Nothing is read before [`Service::listen`]. They stop in the order of the data: first the listeners, which read what the
//! kernel still holds; then the recorders, when they have recorded what the listeners left; the worker releases
//! its claims meanwhile, or sends what is left of a store that ends with the process. Whatever hangs, the end does not
//! wait for it longer than it may.

mod way_in;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::InvalidSetting;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::self_metrics::SelfMetrics;
use super::status::expected;
use crate::config::ServiceSettings;
use crate::flush::{Destination, Flush, look_for_leftovers};
use crate::http::{self, Health, Queries, QuerySources};
use crate::ingest::{Inherited, ListenAddress, Listener, OpenError, Table, explained};
use crate::node::{LedgerTotals, Node};
use crate::spool::SpoolError;
use crate::status::{LossReporter, NodeReporter, Observer};
use crate::store::{NodeStore, QUARANTINE_MAX, Recording, Store};
use crate::telemetry::Metrics;

/// How long a worker may take to release its claims, or to send the rest, when the time is over.
const RELEASE_MAX: Duration = Duration::from_secs(3);
/// How long the disk may take what the store did not; as long as a listener waits for it.
const DISK_MAX: Duration = Duration::from_secs(12);
/// The same when the node is to end at once.
const AT_ONCE_MAX: Duration = Duration::from_secs(1);
/// How long HTTP connections that are open may take.
pub(super) const SIDE_MAX: Duration = Duration::from_secs(1);

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The spool cannot be had.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The HTTP address cannot be had.
    #[error("cannot listen on {address} (http.listen): {source}")]
    BindHttp {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The nodes cannot be coordinated.
    #[error("cannot work beside other nodes: {0}")]
    Coordination(#[from] InvalidSetting),
    /// The system gives no address or no thread.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// A part of the node ended that should not have.
#[derive(Debug, thiserror::Error)]
#[error("a part of the node failed: {0}")]
pub struct PartFailed(#[from] tokio::task::JoinError);

/// The parts of a node, running.
#[derive(Debug)]
pub struct Service {
    /// Where the node listens for events, with the ports that the system chose.
    pub addresses: Vec<ListenAddress>,
    /// Where it answers by HTTP.
    pub http: Option<SocketAddr>,
    /// What its parts share and decide by.
    pub node: Arc<Node>,
    pub(super) metrics: Arc<Metrics>,
    /// The names of the outputs.
    pub(super) outputs: Vec<String>,
    /// Those that do not read yet.
    listeners: Vec<Listener>,
    /// Listeners and recorders. They end when everything is recorded.
    ingest: JoinSet<()>,
    /// What seals, and what sends to each output.
    flush: JoinSet<()>,
    /// What nothing waits for: the HTTP server, the reporters.
    side: JoinSet<()>,
    store: Arc<dyn Store>,
    losses: Arc<LossReporter>,
    /// Whether events that cannot be recorded go to a disk.
    spools: bool,
    stop: CancellationToken,
    recorded: CancellationToken,
    stop_side: CancellationToken,
    abort: CancellationToken,
}

impl Service {
    /// Takes the inherited sockets, binds the others and starts all parts but the listeners. Must be called inside a
    /// tokio runtime.
    pub async fn start(
        settings: &ServiceSettings,
        inherited: Vec<Inherited>,
        store: Arc<dyn NodeStore>,
        outputs: Vec<Destination>,
        sources: QuerySources,
    ) -> Result<Self, StartError> {
        let node = Arc::new(Node::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        // Nothing is known against it yet.
        metrics.store_up.set(1);
        report_capacities(settings, &*store, &metrics);
        let losses = LossReporter::new(
            store.clone(),
            Arc::clone(&node.losses),
            beside_spool(settings, "losses.json"),
        );
        let mut service = Self {
            addresses: Vec::new(),
            http: None,
            node: Arc::clone(&node),
            metrics,
            outputs: outputs.iter().map(|it| it.name.to_string()).collect(),
            listeners: Vec::new(),
            ingest: JoinSet::new(),
            flush: JoinSet::new(),
            side: JoinSet::new(),
            store: store.clone(),
            losses: Arc::new(losses),
            spools: settings.spool.is_some(),
            stop: CancellationToken::new(),
            recorded: CancellationToken::new(),
            stop_side: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        let arbiter = Arc::clone(&sources.arbiter);
        let reporter = service.reporter(settings, &store, &outputs);
        let expected = expected(settings, sources.retention, reporter.outputs.clone());
        let latest = Some(Arc::clone(&reporter.latest));
        let observer = Observer::new(store.clone(), expected, latest);
        let metrics = Arc::clone(&service.metrics);
        let queries = Queries::new(sources, metrics, Arc::clone(&node), observer)?;
        // In this order: what answers by HTTP can be sent events.
        let receivers = service.open(settings, inherited)?;
        let spool = service.start_spool(settings.spool.as_ref())?;
        service.start_http(settings, store.clone(), queries).await?;
        let (looking, stop) = (look_for_leftovers(store.clone()), service.stop_side.clone());
        service.side.spawn(async move {
            stop.run_until_cancelled(looking).await;
        });
        service.side.spawn(reporter.run());
        let recording: Arc<dyn Recording> = store.clone();
        let recorders = service.start_recorders(settings, &recording, spool.as_ref());
        service.make_listeners(settings, receivers, spool.as_ref(), &recorders);
        service.start_unspooler(settings, spool, recorders);
        let flush = Flush {
            outputs,
            arbiter,
            store,
            partitions: settings.batcher.partitions.clone(),
            settings: settings.flush,
            witness_file: beside_spool(settings, "witness.json"),
            node,
            metrics: Arc::clone(&service.metrics),
            stop: service.stop.clone(),
            recorded: service.recorded.clone(),
        };
        for task in flush.into_tasks()? {
            service.flush.spawn(task);
        }
        Ok(service)
    }

    fn reporter(
        &self,
        settings: &ServiceSettings,
        store: &Arc<dyn NodeStore>,
        outputs: &[Destination],
    ) -> NodeReporter {
        let limits = &settings.batcher.limits;
        let place = |it: &Destination| (it.name.to_string(), it.output.describe());
        NodeReporter {
            store: Arc::clone(store),
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            outputs: outputs.iter().map(place).collect(),
            queue_max: [limits.events, limits.bytes],
            spool_max: settings.spool.as_ref().map_or(0, |spool| spool.bytes_max),
            latest: Arc::default(),
            losses: Arc::clone(&self.losses),
            stop: self.stop_side.clone(),
        }
    }

    async fn start_http(
        &mut self,
        settings: &ServiceSettings,
        store: Arc<dyn Store>,
        queries: Queries,
    ) -> Result<(), StartError> {
        let Some(address) = settings.http else {
            return Ok(());
        };
        let listener = TcpListener::bind(address).await.map_err(|source| StartError::BindHttp {
            address,
            source: explained(source, Table::Tcp, address),
        })?;
        self.http = Some(listener.local_addr()?);
        let health = Health {
            store,
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            draining: self.stop.clone(),
        };
        let server = http::Server {
            listener,
            connections: settings.http_connections,
            hosts: settings.http_hosts.clone(),
            stop: self.stop_side.clone(),
        };
        self.side.spawn(server.serve(health, Arc::new(queries)));
        Ok(())
    }

    /// Begins to write the metrics of the node, which has this name, to outputs.
    pub(super) fn report(&mut self, name: &str, writers: Vec<SelfMetrics>) {
        for writer in writers {
            let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
            let (writing, stop) =
                (writer.run(name.to_owned(), node, metrics), self.stop_side.clone());
            self.side.spawn(async move {
                stop.run_until_cancelled(writing).await;
            });
        }
    }

    /// Begins to read. Until then the kernel holds what arrives.
    pub fn listen(&mut self) {
        for listener in self.listeners.drain(..) {
            self.ingest.spawn_blocking(move || listener.run());
        }
    }

    /// Waits until a part ends by itself, which only happens when it fails.
    pub async fn failed(&mut self) -> PartFailed {
        next_failure([&mut self.ingest, &mut self.flush]).await
    }

    /// Stops: reads what the kernel holds, records what is queued, for `within` at most, and releases all
    /// claims. What ends with the process is closed and sent in the same time. `at_once` cuts all of it short. Returns what
    /// became of all events.
    pub async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> LedgerTotals {
        let deadline = Instant::now() + within;
        let until = |deadline, after| until(deadline, at_once, after);
        self.stop.cancel();
        self.store.stopping();
        // What they would have read stays where it is.
        self.listeners.clear();
        if !all_end(&mut self.ingest, until(deadline, Duration::ZERO)).await {
            self.log_unrecorded(self.node.ledger.totals().in_memory());
            self.abort.cancel();
            let disk_max = Instant::now() + DISK_MAX;
            if !all_end(&mut self.ingest, until(disk_max, AT_ONCE_MAX)).await {
                tracing::error!(
                    "a part of the node does not end, perhaps since a disk hangs; leaving it"
                );
            }
        }
        self.recorded.cancel();
        let released = deadline.max(Instant::now() + RELEASE_MAX);
        all_end(&mut self.flush, until(released, Duration::ZERO)).await;
        self.flush.abort_all();
        self.stop_side.cancel();
        // A client that keeps its connection open does not keep the node.
        let side_max = Instant::now() + SIDE_MAX;
        all_end(&mut self.side, until(side_max, Duration::ZERO)).await;
        let totals = self.node.ledger.totals().at_end(self.store.unpublished());
        self.losses.count_node(&self.node, self.metrics.dropped(&totals));
        self.losses.deliver().await;
        totals
    }

    /// Logs that events cannot be recorded in time and go to disk, if there is one; otherwise they are a loss, which is logged as such. None:
    /// only the last answers were waited for.
    fn log_unrecorded(&self, events: u64) {
        if events > 0 && self.spools {
            tracing::warn!(
                events,
                "cannot record what is queued within input.drain_timeout; it goes to input.spool_dir, from where this \
                 node records it when it is started again"
            );
        }
    }
}

/// Waits until a part ends by itself, which only happens when it fails.
pub(super) async fn next_failure([some, others]: [&mut JoinSet<()>; 2]) -> PartFailed {
    loop {
        let ended = tokio::select! {
            Some(ended) = some.join_next() => ended,
            Some(ended) = others.join_next() => ended,
            else => std::future::pending().await,
        };
        if let Err(error) = ended {
            return error.into();
        }
    }
}

/// Waits until then, or until so long after `at_once` is cancelled.
pub(super) async fn until(deadline: Instant, at_once: &CancellationToken, after: Duration) {
    let cut_short = async {
        at_once.cancelled().await;
        tokio::time::sleep(after).await;
    };
    tokio::select! {
        () = tokio::time::sleep_until(deadline) => {}
        () = cut_short => {}
    }
}

/// Waits for the end of all parts, but not for longer than this. Answers whether they have ended.
pub(super) async fn all_end(parts: &mut JoinSet<()>, until: impl Future<Output = ()>) -> bool {
    let all = async {
        while let Some(ended) = parts.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a part of the node failed");
            }
        }
    };
    tokio::select! {
        biased;
        () = all => true,
        () = until => false,
    }
}

/// A file that outlives the process, if there is a place for it.
fn beside_spool(settings: &ServiceSettings, name: &str) -> Option<PathBuf> {
    let spool = settings.spool.as_ref();
    spool.map(|spool| spool.directory.join(name))
}

/// What the figures of fill levels are to be held against.
fn report_capacities(settings: &ServiceSettings, store: &dyn Store, metrics: &Metrics) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let limits = &settings.batcher.limits;
    metrics.events_queued_max.set(number(limits.events));
    metrics.queue_max_bytes.set(number(limits.bytes));
    let spool = settings.spool.as_ref().map_or(0, |spool| spool.bytes_max);
    metrics.spool_max_bytes.set(number(spool));
    let (_, memory) = store.memory();
    metrics.store_memory_max_bytes.set(number(memory));
    let quarantined = u64::from(settings.batcher.partitions.count()) * QUARANTINE_MAX as u64;
    metrics.counts_quarantined_max.set(number(quarantined));
    let connections = settings.http.map_or(0, |_| settings.http_connections);
    metrics.http_connections_max.set(number(connections as u64));
}
