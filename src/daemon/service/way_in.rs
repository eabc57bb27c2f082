//! How a [`Service`] gets its way in: sockets, listeners, the spool, recorders.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Service;
use crate::config::ServiceSettings;
use crate::event::{OverflowSeries, Partition};
use crate::ingest::{
    self, ArrivalStamps, BindSettings, DedupBudget, Delivery, Inherited, LineBatcher, Listener,
    OpenError, QUEUED_BATCHES, Receiver, Recorder, ReplayWindow, Sockets, SourceRates, Unspooler,
};
use crate::node::files;
use crate::spool::{Keeper, Spool, SpoolError, SpoolSettings};
use crate::store::Recording;

impl Service {
    pub(super) fn open(
        &mut self,
        settings: &ServiceSettings,
        inherited: Vec<Inherited>,
    ) -> Result<Vec<Receiver>, OpenError> {
        let sockets = Sockets {
            listen: &settings.listen,
            how: BindSettings {
                receive_buffer: settings.receive_buffer,
                socket_mode: settings.socket_mode,
                read_timeout: ingest::read_timeout(settings.linger.least),
            },
            threads: settings.threads,
            datagram_max: settings.datagram_max,
            unit: "eds",
        };
        let opened = sockets.open(inherited)?;
        let gauge = |value| i64::try_from(value).unwrap_or(i64::MAX);
        let metrics = &self.metrics;
        metrics.receive_buffer_bytes.set(gauge(opened.buffer_bytes));
        (metrics.kernel_drops_inherited).set(gauge(opened.drops_before));
        self.addresses = opened.addresses;
        Ok(opened.receivers)
    }

    pub(super) fn start_spool(
        &mut self,
        settings: Option<&SpoolSettings>,
    ) -> Result<Option<Spool>, SpoolError> {
        let Some(settings) = settings else {
            return Ok(None);
        };
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        let (keeper, spool) = Keeper::open(settings, node, metrics)?;
        self.ingest.spawn_blocking(move || keeper.run());
        Ok(Some(spool))
    }

    pub(super) fn start_unspooler(
        &mut self,
        settings: &ServiceSettings,
        spool: Option<Spool>,
        recorders: Vec<mpsc::Sender<Delivery>>,
    ) {
        let Some(spool) = spool else {
            return;
        };
        let unspooler = Unspooler {
            spool,
            partitions: settings.batcher.partitions.clone(),
            limits: settings.batcher.limits,
            recorders,
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            heartbeat: self.node.progress.watch("the unspooler"),
            read: files::read,
            stop: self.stop.clone(),
        };
        self.ingest.spawn(unspooler.run());
    }

    pub(super) fn start_recorders(
        &mut self,
        settings: &ServiceSettings,
        store: &Arc<dyn Recording>,
        spool: Option<&Spool>,
    ) -> Vec<mpsc::Sender<Delivery>> {
        let budget = Arc::new(DedupBudget::new(settings.dedup_users));
        let bytes = usize::try_from(settings.batcher.limits.bytes).unwrap_or(usize::MAX);
        // Nothing that this process holds is lost before it.
        let is_remote = store.capabilities().is_remote;
        let window = settings.replay_window * u32::from(is_remote);
        let window = Arc::new(ReplayWindow::new(window, bytes));
        let partitions = &settings.batcher.partitions;
        let start = |partition: Partition| {
            let (sender, receiver) = mpsc::channel(QUEUED_BATCHES);
            let name = format!("the recorder of partition {}", partition.index());
            let recorder = Recorder {
                partition,
                settings: settings.recorder,
                batches: receiver,
                store: Arc::clone(store),
                overflow: OverflowSeries::new(partitions, partition),
                spool: spool.cloned(),
                dedup: Arc::clone(&budget),
                replay: Arc::clone(&window),
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(name),
                abort: self.abort.clone(),
            };
            self.ingest.spawn(recorder.run());
            sender
        };
        partitions.iter().map(start).collect()
    }

    pub(super) fn make_listeners(
        &mut self,
        settings: &ServiceSettings,
        receivers: Vec<Receiver>,
        spool: Option<&Spool>,
        recorders: &[mpsc::Sender<Delivery>],
    ) {
        let stamps = Arc::new(ArrivalStamps::default());
        let rate = settings.rate_per_source;
        let rates = (rate > 0).then(|| Arc::new(SourceRates::new(rate, Instant::now())));
        for (index, receiver) in receivers.into_iter().enumerate() {
            let batcher = LineBatcher::new(
                &settings.batcher,
                Arc::clone(&stamps),
                Arc::clone(&self.node),
                recorders.to_vec(),
            );
            let batcher = if receiver.makes_senders_wait() {
                batcher.taking_all()
            } else {
                batcher.with_spool(spool.cloned())
            };
            let listener = Listener {
                receiver: receiver.with_sources(),
                rates: rates.clone(),
                batcher,
                linger: settings.linger,
                node: Arc::clone(&self.node),
                metrics: Arc::clone(&self.metrics),
                heartbeat: self.node.progress.watch(format!("listener {index}")),
                stop: self.stop.clone(),
            };
            self.listeners.push(listener);
        }
    }
}
