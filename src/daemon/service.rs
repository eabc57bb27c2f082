//! [`Service`] consists of the parts of a running node. On shutdown, they stop in the direction of data flow: first the
//! listeners, once they have read the kernel's buffers; then the recorders, once they have recorded all events; then the
//! worker and the senders, which release their claims or, with a memory store, send the remaining counts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use super::exporter::Exporter;
use super::run::{Parts, Running};
use super::{UNREAD_MAX, build, first_start};
use crate::config::Config;
use crate::event::{OverflowSeries, Partition};
use crate::flush::{Destination, Flush, look_for_leftovers};
use crate::http::{Health, NodeSink, Queries, QuerySources};
use crate::ingest::{
    self, ArrivalStamps, Budget, Inherited, LineBatcher, Listener, QUEUED_BATCHES, Receiver,
    Recorder, SourceRates, Unspooler, Writes,
};
use crate::node::{LedgerTotals, Node, files};
use crate::spool::{Keeper, Spool};
use crate::status::{LossReporter, MinuteLimits, NodeReporter, Observer};
use crate::store::{NodeStore, QUARANTINE_MAX, Recording, StoreError};
use crate::telemetry::{self, Format, Metrics, gauge};

/// Minimum time after draining for the worker and senders to release their claims or send the remaining counts.
const RELEASE_MAX: Duration = Duration::from_secs(3);
/// Time limit for spooling the events that could not be recorded. A listener has the same limit.
const DISK_MAX: Duration = Duration::from_secs(12);
/// Replaces [`DISK_MAX`] once a second signal tells the node to exit immediately.
const AT_ONCE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Service {
    pub(super) parts: Parts,
    pub(super) node: Arc<Node>,
    metrics: Arc<Metrics>,
    outputs: Vec<String>,
    /// The listeners that have not started to read yet.
    listeners: Vec<Listener>,
    store: Arc<dyn NodeStore>,
    losses: Arc<LossReporter>,
    has_spool: bool,
    /// Cancelled when the recorders must stop retrying, and spool or drop their events.
    abort: CancellationToken,
}

impl Service {
    pub(super) async fn start(
        config: &Config,
        inherited: Vec<Inherited>,
        stop: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let (store, sources) = build::store(config)?;
        let outputs = build::outputs(config)?;
        let described = build::described(config, &outputs);
        let described = described.iter().map(|(name, to)| format!("{name} = {to}"));
        let described = described.collect::<Vec<_>>().join(", ");
        let mut service = Self::start_parts(config, inherited, (store.clone(), sources), outputs)?;
        service.parts.log_start(
            &config.node,
            config.file.as_deref(),
            Some(&store.describe()),
            &described,
            config.warnings(),
        );
        first_start::explain(config, &service.parts);
        // Do not read the sockets yet, so that if the store rejects this node, data remains in the kernel for the next
        // process. Do not wait for long, because the kernel's buffer is small.
        let mut check = std::pin::pin!(store.check());
        let checked = tokio::time::timeout(UNREAD_MAX, &mut check).await;
        if !matches!(checked, Ok(Err(StoreError::Refused(_)))) {
            service.listen();
        }
        let checked = match checked {
            Ok(checked) => Some(checked),
            Err(_takes_longer) => stop.run_until_cancelled(check).await,
        };
        match checked {
            None | Some(Ok(())) => {}
            Some(Err(error @ StoreError::Refused(_))) => {
                service.drain(Duration::ZERO, &CancellationToken::new()).await;
                return Err(error.into());
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the store is unavailable; queueing events");
            }
        }
        Ok(service)
    }

    /// Starts all parts except the listeners. Must be called within a tokio runtime.
    pub(super) fn start_parts(
        config: &Config,
        inherited: Vec<Inherited>,
        (store, sources): (Arc<dyn NodeStore>, QuerySources),
        outputs: Vec<Destination>,
    ) -> anyhow::Result<Self> {
        let node = Arc::new(Node::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        // Report the store as available until a call fails.
        metrics.store_up.set(1);
        let beside_spool = |name| config.spool.as_ref().map(|spool| spool.directory.join(name));
        let losses_file = beside_spool("losses.json");
        let losses = LossReporter::new(store.registry(), Arc::clone(&node.losses), losses_file);
        let mut service = Self {
            parts: Parts { progress: node.progress.clone(), ..Parts::default() },
            node,
            metrics,
            outputs: outputs.iter().map(|output| output.name.to_string()).collect(),
            listeners: Vec::new(),
            store,
            losses: Arc::new(losses),
            has_spool: config.spool.is_some(),
            abort: CancellationToken::new(),
        };
        // Open the sockets before the HTTP server, because a node that responds over HTTP must be able to receive events.
        let (timeout, datagram_max) =
            (ingest::read_timeout(config.linger.least), config.input.max_datagram);
        let opened = service.parts.open(&config.input, inherited, timeout, datagram_max, "eds")?;
        service.metrics.receive_buffer_bytes.set(gauge(opened.buffer_bytes));
        service.metrics.kernel_drops_inherited.set(gauge(opened.drops_before));
        let spool = service.start_spool(config)?;
        let arbiter = Arc::clone(&sources.arbiter);
        service.start_side(config, sources, &outputs)?;
        service.start_recording(config, opened.receivers, spool)?;
        let flush = Flush {
            outputs,
            arbiter,
            store: service.store.clone(),
            partitions: config.partitions.clone(),
            settings: config.flush,
            witness_file: beside_spool("witness.json"),
            contributions: beside_spool("windows")
                .zip(config.spool.as_ref().map(|spool| spool.bytes_max)),
            node: Arc::clone(&service.node),
            metrics: Arc::clone(&service.metrics),
            stop: service.parts.intake.stop.clone(),
            recorded: service.parts.outlet.stop.clone(),
        };
        for task in flush.into_tasks().context("cannot coordinate with other nodes")? {
            service.parts.outlet.tasks.spawn(task);
        }
        Ok(service)
    }

    fn start_spool(&mut self, config: &Config) -> anyhow::Result<Option<Spool>> {
        let Some(settings) = &config.spool else {
            return Ok(None);
        };
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        let (keeper, spool) = Keeper::open(settings, node, metrics)?;
        self.parts.intake.tasks.spawn_blocking(move || keeper.run());
        Ok(Some(spool))
    }

    fn start_side(
        &mut self,
        config: &Config,
        sources: QuerySources,
        outputs: &[Destination],
    ) -> anyhow::Result<()> {
        let (store, node, metrics) = (&self.store, &self.node, &self.metrics);
        let limits = &config.batcher.limits;
        let spool_max = config.spool.as_ref().map_or(0, |spool| spool.bytes_max);
        let reporter = NodeReporter {
            store: Arc::clone(store),
            node: Arc::clone(node),
            metrics: Arc::clone(metrics),
            outputs: build::described(config, outputs),
            rollups: config
                .partitions
                .rollups()
                .map(|(at, rollup)| (at, rollup.name.clone()))
                .collect(),
            queue_max: [limits.events, limits.bytes],
            limits: MinuteLimits {
                series_max: config.recorder.caps.series_max as u64,
                users_max: config.recorder.caps.users_max,
            },
            spool_max,
            latest: Arc::default(),
            losses: Arc::clone(&self.losses),
            stop: self.parts.side.stop.clone(),
        };
        let latest = Some(Arc::clone(&reporter.latest));
        let observer = Observer::new(store.clone(), build::expected(config, outputs), latest);
        let queries = Queries::new(sources, Arc::clone(metrics), Arc::clone(node), observer);
        let queries = queries.context("cannot coordinate with other nodes")?;
        let health = Health {
            store: store.clone(),
            node: Arc::clone(node),
            metrics: Arc::clone(metrics),
            draining: self.parts.intake.stop.clone(),
        };
        let connections = build::left_for_http(config);
        let connections_max = config.http.listen.map_or(0, |_| connections);
        let quarantined = u64::from(config.partitions.count()) * QUARANTINE_MAX as u64;
        for (metric, capacity) in [
            (&metrics.events_queued_max, limits.events),
            (&metrics.queue_max_bytes, limits.bytes),
            (&metrics.spool_max_bytes, spool_max),
            (&metrics.store_memory_max_bytes, store.memory().1),
            (&metrics.counts_quarantined_max, quarantined),
            (&metrics.http_connections_max, connections_max as u64),
        ] {
            metric.set(gauge(capacity));
        }
        let server = self.parts.bind_http(&config.http, &config.access, connections)?;
        let side = &mut self.parts.side;
        if let Some(server) = server {
            side.tasks.spawn(server.serve(health, Arc::new(queries)));
        }
        side.spawn_cancelled(look_for_leftovers(self.store.clone()));
        side.tasks.spawn(reporter.run());
        if let Some(telemetry) = &config.telemetry {
            self.node.spans.enable(xxh3_64(format!("{:?}", config.alike).as_bytes()));
            let exporter = Exporter::new(telemetry, "eds", config.node.clone())?;
            let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
            let text = move || metrics.encode(Format::Classic).ok();
            let spans = Some((node, self.metrics.spans_dropped.clone()));
            side.tasks.spawn(exporter.run(spans, text, side.stop.clone()));
        }
        for writer in build::self_metrics(config)? {
            let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
            side.spawn_cancelled(writer.run(config.node.clone(), node, metrics));
        }
        Ok(())
    }

    fn start_recording(
        &mut self,
        config: &Config,
        receivers: Vec<Receiver>,
        spool: Option<Spool>,
    ) -> anyhow::Result<()> {
        let requests = match &config.requests {
            None => None,
            Some(requests) => {
                let connections = build::left_for_http(config);
                let metrics = &self.metrics.writes;
                let server = self.parts.bind_requests(requests, connections, metrics)?;
                Some((server, requests))
            }
        };
        let store: Arc<dyn Recording> = self.store.clone();
        let dedup = Arc::new(Budget::of_users(config.input.dedup_users));
        // Events kept for a replay may take as much memory as the queue.
        let bytes = usize::try_from(config.batcher.limits.bytes).unwrap_or(usize::MAX);
        let replay = Arc::new(Budget::new(bytes));
        let partitions = &config.batcher.partitions;
        let start = |partition: Partition| {
            let (sender, batches) = mpsc::channel(QUEUED_BATCHES);
            let name = format!("the recorder of partition {}", partition.index());
            let recorder = Recorder {
                partition,
                settings: config.recorder,
                batches,
                store: Arc::clone(&store),
                overflow: OverflowSeries::new(partitions, partition),
                spool: spool.clone(),
                dedup: Arc::clone(&dedup),
                replay: Arc::clone(&replay),
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(name),
                abort: self.abort.clone(),
            };
            (sender, recorder.run().boxed())
        };
        let (recorders, mut running): (Vec<_>, Vec<_>) = partitions.iter().map(start).unzip();
        let stamps = Arc::new(ArrivalStamps::default());
        let rate = config.input.max_rate_per_source;
        let rates = (rate > 0).then(|| Arc::new(SourceRates::new(rate, Instant::now())));
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (stamps, node) = (Arc::clone(&stamps), Arc::clone(&self.node));
            let batcher = LineBatcher::new(&config.batcher, stamps, node, recorders.clone());
            let batcher = if receiver.makes_senders_wait() {
                batcher.taking_all()
            } else {
                batcher.with_spool(spool.clone())
            };
            self.listeners.push(Listener {
                receiver,
                rates: rates.clone(),
                batcher,
                linger: config.linger,
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(format!("listener {index}")),
                stop: self.parts.intake.stop.clone(),
            });
        }
        if let Some((server, requests)) = requests {
            let (stamps, node) = (Arc::clone(&stamps), Arc::clone(&self.node));
            let batcher = LineBatcher::new(&config.batcher, stamps, node, recorders.clone());
            let (linger, node) = (requests.linger, Arc::clone(&self.node));
            let (writes, tasks) =
                Writes::new(&config.batcher, batcher, &recorders, spool.clone(), linger, node);
            running.extend(tasks.into_iter().map(FutureExt::boxed));
            let writes = Arc::new(writes);
            let sink = NodeSink {
                writes: Arc::clone(&writes),
                stamps: requests.stamps,
                within: requests.timeout,
            };
            self.parts.intake.tasks.spawn(async move {
                server.serve(Arc::new(sink)).await;
                writes.close();
            });
        }
        // Partitions have work at the same time. In one task, they wake each other without waking a thread, and their commands
        // are sent together. All recording by a node therefore uses at most one core, in addition to the parsing threads.
        self.parts.intake.tasks.spawn(join_all(running).map(drop));
        if let Some(spool) = spool {
            let unspooler = Unspooler {
                spool,
                partitions: partitions.clone(),
                limits: config.batcher.limits,
                recorders,
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch("the unspooler"),
                read: files::read,
                stop: self.parts.intake.stop.clone(),
            };
            self.parts.intake.tasks.spawn(unspooler.run());
        }
        Ok(())
    }

    pub(super) fn listen(&mut self) {
        for listener in self.listeners.drain(..) {
            self.parts.intake.tasks.spawn_blocking(move || listener.run());
        }
    }
}

impl Running for Service {
    fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        telemetry::status_line(node, metrics, self.outputs.clone())
    }

    async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> u64 {
        let deadline = Instant::now() + within;
        self.parts.intake.stop.cancel();
        self.store.stopping();
        // Listeners that have not started to read leave their data in the kernel, for the next process.
        self.listeners.clear();
        if !self.parts.intake.end(deadline, at_once, Duration::ZERO).await {
            let events = self.node.ledger.totals().in_memory();
            // Without a spool, these events are logged as lost. If there are none, only the last replies were missing.
            if events > 0 && self.has_spool {
                tracing::warn!(
                    events,
                    "could not record all queued events within input.drain_timeout; writing them to input.spool_dir; this \
                     node will record them after it restarts"
                );
            }
            self.abort.cancel();
            let disk_max = Instant::now() + DISK_MAX;
            if !self.parts.intake.end(disk_max, at_once, AT_ONCE_MAX).await {
                tracing::error!(
                    "a task did not stop, possibly because a disk hangs; abandoning it"
                );
            }
        }
        self.parts.end(deadline.max(Instant::now() + RELEASE_MAX), at_once).await;
        let totals = self.node.ledger.totals().at_end(self.store.unpublished());
        self.losses.count_node(&self.node, self.metrics.dropped(&totals));
        self.losses.deliver().await;
        let LedgerTotals { received, recorded, queued, unpublished, .. } = totals;
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
                "stopped, but events were lost: dropped events were not recorded; unpublished events were recorded only in the \
                 memory of this process, in minutes whose counts did not reach all outputs (to keep such events, use Redis as the store)"
            );
        }
        totals.lost()
    }
}
