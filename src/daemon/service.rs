//! [`Service`]: the parts of a running node.
//!
//! They stop in the order of the data: first the listeners, once they have read the data that the kernel holds; then the recorders,
//! once they have recorded the events of the listeners; then the worker and the senders, which release their claims, or send the
//! remaining counts of a store that ends with the process. Every wait has a limit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::build;
use super::parts::Parts;
use super::run::Running;
use crate::config::{Config, ServiceSettings};
use crate::event::{OverflowSeries, Partition};
use crate::flush::{Destination, Flush, look_for_leftovers};
use crate::http::{Health, Queries, QuerySources};
use crate::ingest::{
    self, ArrivalStamps, Budget, Delivery, Inherited, LineBatcher, Listener, QUEUED_BATCHES,
    Receiver, Recorder, Sockets, SourceRates, Unspooler,
};
use crate::node::{LedgerTotals, Node, Progress, files};
use crate::spool::{Keeper, Spool};
use crate::status::{LossReporter, NodeReporter, Observer};
use crate::store::{NodeStore, QUARANTINE_MAX, Recording, Store};
use crate::telemetry::{self, Metrics, gauge};

/// The time limit for the worker to release its claims, or to send the remaining counts, beyond that of draining.
const RELEASE_MAX: Duration = Duration::from_secs(3);
/// The time limit for the disk to take the events that the store did not; the same as that of a listener.
const DISK_MAX: Duration = Duration::from_secs(12);
/// The same when the node is to end at once.
const AT_ONCE_MAX: Duration = Duration::from_secs(1);

/// The parts of a running node.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) parts: Parts,
    pub(super) node: Arc<Node>,
    metrics: Arc<Metrics>,
    /// The names of the outputs.
    outputs: Vec<String>,
    /// The listeners that do not read yet.
    listeners: Vec<Listener>,
    store: Arc<dyn NodeStore>,
    losses: Arc<LossReporter>,
    has_spool: bool,
    /// Cancelled when recorders must write their events to the spool, or drop them.
    abort: CancellationToken,
}

impl Service {
    /// Starts all parts but the listeners. Must be called inside a tokio runtime.
    pub(super) async fn start(
        config: &Config,
        inherited: Vec<Inherited>,
        (store, sources): (Arc<dyn NodeStore>, QuerySources),
        outputs: Vec<Destination>,
    ) -> anyhow::Result<Self> {
        let settings = &config.service;
        let node = Arc::new(Node::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        // No failure is known yet.
        metrics.store_up.set(1);
        let losses_file = beside_spool(settings, "losses.json");
        let losses = LossReporter::new(store.registry(), Arc::clone(&node.losses), losses_file);
        let mut service = Self {
            parts: Parts::default(),
            node,
            metrics,
            outputs: outputs.iter().map(|output| output.name.to_string()).collect(),
            listeners: Vec::new(),
            store,
            losses: Arc::new(losses),
            has_spool: settings.spool.is_some(),
            abort: CancellationToken::new(),
        };
        // In this order: a node that answers by HTTP can receive events.
        let receivers = service.open(settings, inherited)?;
        let spool = service.start_spool(settings)?;
        let arbiter = Arc::clone(&sources.arbiter);
        service.start_side(config, sources, &outputs).await?;
        let recorders = service.start_recorders(settings, spool.as_ref());
        service.make_listeners(settings, receivers, spool.as_ref(), &recorders);
        if let Some(spool) = spool {
            service.start_unspooler(settings, spool, recorders);
        }
        let flush = Flush {
            outputs,
            arbiter,
            store: service.store.clone(),
            partitions: config.partitions.clone(),
            settings: settings.flush,
            witness_file: beside_spool(settings, "witness.json"),
            node: Arc::clone(&service.node),
            metrics: Arc::clone(&service.metrics),
            stop: service.parts.stop.clone(),
            recorded: service.parts.intake_ended.clone(),
        };
        for task in flush.into_tasks().context("cannot work beside other nodes")? {
            service.parts.outlet.spawn(task);
        }
        Ok(service)
    }

    fn open(
        &mut self,
        settings: &ServiceSettings,
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Vec<Receiver>> {
        let sockets = Sockets {
            listen: &settings.input.listen,
            receive_buffer: settings.input.receive_buffer,
            socket_mode: settings.input.socket_mode,
            read_timeout: ingest::read_timeout(settings.linger.least),
            threads: settings.input.threads,
            datagram_max: settings.input.max_datagram,
            unit: "eds",
        };
        let opened = sockets.open(inherited)?;
        self.metrics.receive_buffer_bytes.set(gauge(opened.buffer_bytes));
        self.metrics.kernel_drops_inherited.set(gauge(opened.drops_before));
        self.parts.addresses = opened.addresses;
        Ok(opened.receivers)
    }

    fn start_spool(&mut self, settings: &ServiceSettings) -> anyhow::Result<Option<Spool>> {
        let Some(settings) = &settings.spool else {
            return Ok(None);
        };
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        let (keeper, spool) = Keeper::open(settings, node, metrics)?;
        self.parts.intake.spawn_blocking(move || keeper.run());
        Ok(Some(spool))
    }

    /// Starts the HTTP server, the reporters and the look for leftovers.
    async fn start_side(
        &mut self,
        config: &Config,
        sources: QuerySources,
        outputs: &[Destination],
    ) -> anyhow::Result<()> {
        let settings = &config.service;
        let (store, node, metrics) = (&self.store, &self.node, &self.metrics);
        let limits = &settings.batcher.limits;
        let reporter = NodeReporter {
            store: Arc::clone(store),
            node: Arc::clone(node),
            metrics: Arc::clone(metrics),
            outputs: build::described(outputs),
            queue_max: [limits.events, limits.bytes],
            spool_max: settings.spool.as_ref().map_or(0, |spool| spool.bytes_max),
            latest: Arc::default(),
            losses: Arc::clone(&self.losses),
            stop: self.parts.stop_side.clone(),
        };
        let latest = Some(Arc::clone(&reporter.latest));
        let observer = Observer::new(store.clone(), build::expected(config, outputs), latest);
        let queries = Queries::new(sources, Arc::clone(metrics), Arc::clone(node), observer);
        let queries = queries.context("cannot work beside other nodes")?;
        let health = Health {
            store: store.clone(),
            node: Arc::clone(node),
            metrics: Arc::clone(metrics),
            draining: self.parts.stop.clone(),
        };
        let connections = build::left_for_http(config);
        report_capacities(settings, connections, &**store, metrics);
        let leftovers = look_for_leftovers(store.clone());
        let server =
            self.parts.bind_http(settings.http.listen, &settings.http.hosts, connections).await?;
        if let Some(server) = server {
            self.parts.side.spawn(server.serve(health, Arc::new(queries)));
        }
        self.parts.spawn_side(leftovers);
        self.parts.side.spawn(reporter.run());
        for writer in build::self_metrics(config)? {
            let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
            self.parts.spawn_side(writer.run(config.node.clone(), node, metrics));
        }
        Ok(())
    }

    fn start_recorders(
        &mut self,
        settings: &ServiceSettings,
        spool: Option<&Spool>,
    ) -> Vec<mpsc::Sender<Delivery>> {
        let store: Arc<dyn Recording> = self.store.clone();
        let dedup = Arc::new(Budget::of_users(settings.input.dedup_users));
        // As much as for the queue.
        let bytes = usize::try_from(settings.batcher.limits.bytes).unwrap_or(usize::MAX);
        let replay = Arc::new(Budget::new(bytes));
        let partitions = &settings.batcher.partitions;
        let start = |partition: Partition| {
            let (sender, receiver) = mpsc::channel(QUEUED_BATCHES);
            let name = format!("the recorder of partition {}", partition.index());
            let recorder = Recorder {
                partition,
                settings: settings.recorder,
                batches: receiver,
                store: Arc::clone(&store),
                overflow: OverflowSeries::new(partitions, partition),
                spool: spool.cloned(),
                dedup: Arc::clone(&dedup),
                replay: Arc::clone(&replay),
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(name),
                abort: self.abort.clone(),
            };
            self.parts.intake.spawn(recorder.run());
            sender
        };
        partitions.iter().map(start).collect()
    }

    fn make_listeners(
        &mut self,
        settings: &ServiceSettings,
        receivers: Vec<Receiver>,
        spool: Option<&Spool>,
        recorders: &[mpsc::Sender<Delivery>],
    ) {
        let stamps = Arc::new(ArrivalStamps::default());
        let rate = settings.input.max_rate_per_source;
        let rates = (rate > 0).then(|| Arc::new(SourceRates::new(rate, Instant::now())));
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (stamps, node) = (Arc::clone(&stamps), Arc::clone(&self.node));
            let batcher = LineBatcher::new(&settings.batcher, stamps, node, recorders.to_vec());
            let batcher = if receiver.makes_senders_wait() {
                batcher.taking_all()
            } else {
                batcher.with_spool(spool.cloned())
            };
            self.listeners.push(Listener {
                receiver,
                rates: rates.clone(),
                batcher,
                linger: settings.linger,
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(format!("listener {index}")),
                stop: self.parts.stop.clone(),
            });
        }
    }

    fn start_unspooler(
        &mut self,
        settings: &ServiceSettings,
        spool: Spool,
        recorders: Vec<mpsc::Sender<Delivery>>,
    ) {
        let unspooler = Unspooler {
            spool,
            partitions: settings.batcher.partitions.clone(),
            limits: settings.batcher.limits,
            recorders,
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            heartbeat: self.node.progress.watch("the unspooler"),
            read: files::read,
            stop: self.parts.stop.clone(),
        };
        self.parts.intake.spawn(unspooler.run());
    }

    /// Begins to read. Until then the kernel holds arriving data.
    pub(super) fn listen(&mut self) {
        for listener in self.listeners.drain(..) {
            self.parts.intake.spawn_blocking(move || listener.run());
        }
    }

    /// Logs that events cannot be recorded in time and go to the spool. Without a spool they are logged as a loss.
    fn log_unrecorded(&self) {
        let events = self.node.ledger.totals().in_memory();
        // Without events only the last answers of the store were missing.
        if events > 0 && self.has_spool {
            tracing::warn!(
                events,
                "cannot record what is queued within input.drain_timeout; it goes to input.spool_dir, from where this \
                 node records it when it is started again"
            );
        }
    }
}

impl Running for Service {
    fn progress(&self) -> Progress {
        self.node.progress.clone()
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        telemetry::status_line(node, metrics, self.outputs.clone())
    }

    fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> u64 {
        let deadline = Instant::now() + within;
        self.parts.stop.cancel();
        self.store.stopping();
        // The kernel keeps the data of listeners that never read.
        self.listeners.clear();
        if !self.parts.end_intake(deadline, at_once, Duration::ZERO).await {
            self.log_unrecorded();
            self.abort.cancel();
            let disk_max = Instant::now() + DISK_MAX;
            if !self.parts.end_intake(disk_max, at_once, AT_ONCE_MAX).await {
                tracing::error!(
                    "a part of the node does not end, perhaps since a disk hangs; leaving it"
                );
            }
        }
        self.parts.end(deadline.max(Instant::now() + RELEASE_MAX), at_once).await;
        let totals = self.node.ledger.totals().at_end(self.store.unpublished());
        self.losses.count_node(&self.node, self.metrics.dropped(&totals));
        self.losses.deliver().await;
        log_totals(&totals);
        totals.lost()
    }
}

/// Writes the last line of the log.
fn log_totals(totals: &LedgerTotals) {
    let LedgerTotals { received, recorded, queued, unpublished, .. } = *totals;
    let rejected: u64 = totals.rejected.iter().sum();
    let dropped: u64 = totals.dropped.iter().sum();
    if totals.lost() == 0 {
        tracing::info!(received, recorded, rejected, dropped, queued, unpublished, "stopped");
    } else {
        tracing::warn!(
            received,
            recorded,
            rejected,
            dropped,
            queued,
            unpublished,
            "stopped, and events are lost: those dropped were not recorded; those unpublished were recorded in the memory \
             of this process only, in minutes that were not over or in counts that no output took (store.url names a store \
             that outlives it)"
        );
    }
}

/// Returns the path of a file that outlives the process, if there is a directory for it.
fn beside_spool(settings: &ServiceSettings, name: &str) -> Option<PathBuf> {
    settings.spool.as_ref().map(|spool| spool.directory.join(name))
}

/// Sets the metrics of capacities.
fn report_capacities(
    settings: &ServiceSettings,
    connections: usize,
    store: &dyn Store,
    metrics: &Metrics,
) {
    let limits = &settings.batcher.limits;
    metrics.events_queued_max.set(gauge(limits.events));
    metrics.queue_max_bytes.set(gauge(limits.bytes));
    let spool = settings.spool.as_ref().map_or(0, |spool| spool.bytes_max);
    metrics.spool_max_bytes.set(gauge(spool));
    let (_, memory) = store.memory();
    metrics.store_memory_max_bytes.set(gauge(memory));
    let quarantined = u64::from(settings.batcher.partitions.count()) * QUARANTINE_MAX as u64;
    metrics.counts_quarantined_max.set(gauge(quarantined));
    let connections = settings.http.listen.map_or(0, |_| connections);
    metrics.http_connections_max.set(gauge(connections as u64));
}
