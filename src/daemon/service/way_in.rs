//! How a [`Service`] gets its way in: sockets, listeners, the spool, recorders.

use std::sync::Arc;

use socket2::Socket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Service, StartError};
use crate::config::ServiceSettings;
use crate::event::{OverflowSeries, Partition};
use crate::ingest::{
    self, ArrivalStamps, BindSettings, DedupBudget, Delivery, Inherited, LineBatcher,
    ListenAddress, Listener, QUEUED_BATCHES, Receiver, Recorder, ReplayWindow, SocketFile,
    SourceRates, Unspooler,
};
use crate::spool::{Keeper, Spool, SpoolError, SpoolSettings};
use crate::store::Recording;

impl Service {
    pub(super) fn open(
        &mut self,
        settings: &ServiceSettings,
        mut inherited: Vec<Inherited>,
    ) -> Result<Vec<Receiver>, StartError> {
        let how = BindSettings {
            receive_buffer: settings.receive_buffer,
            socket_mode: settings.socket_mode,
            read_timeout: ingest::read_timeout(settings.linger),
        };
        ingest::check_all_named(&inherited, &settings.listen)?;
        let mut receivers = Vec::new();
        for address in &settings.listen {
            let held = ingest::take_at(&mut inherited, address, &how)?;
            if held.is_empty() {
                let (socket, file) = ingest::bind(address, &settings.listen, &how)?;
                receivers.extend(self.receivers(settings, socket, file)?);
            }
            for socket in held {
                let held = self.receivers(settings, socket, None)?.into_iter();
                receivers.extend(held.map(Receiver::outliving).inspect(|receiver| {
                    self.report_inherited(address, receiver.drops_before());
                }));
            }
        }
        Ok(receivers)
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
            stop: self.stop.clone(),
        };
        self.ingest.spawn(unspooler.run());
    }

    /// The receivers of one socket. Threads share it: a single sender is one flow, which several sockets would not
    /// spread.
    fn receivers(
        &mut self,
        settings: &ServiceSettings,
        socket: Socket,
        file: Option<SocketFile>,
    ) -> Result<Vec<Receiver>, StartError> {
        // The kernel reports the double of what it has room for.
        let buffer = i64::try_from(socket.recv_buffer_size()? / 2).unwrap_or(i64::MAX);
        let file = file.map(Arc::new);
        let mut receivers = Vec::new();
        for _ in 1..settings.threads {
            let socket = socket.try_clone()?;
            let receiver = Receiver::sharing(socket, settings.datagram_max);
            receivers.push(receiver.with_file(file.clone()));
        }
        let receiver = Receiver::new(socket, settings.datagram_max);
        self.addresses.extend(receiver.address());
        if !receiver.makes_senders_wait() {
            self.metrics.receive_buffer_bytes.inc_by(buffer);
        }
        receivers.push(receiver.with_file(file));
        Ok(receivers)
    }

    fn report_inherited(&self, address: &ListenAddress, drops: u32) {
        self.metrics.kernel_drops_inherited.inc_by(i64::from(drops));
        if drops > 0 {
            tracing::warn!(
                %address,
                datagrams = drops,
                "the kernel dropped datagrams from this socket before this process read it; the nodes before it have \
                 counted them up to their end, and what was dropped since then is counted here only"
            );
        }
    }

    pub(super) fn start_recorders(
        &mut self,
        settings: &ServiceSettings,
        store: &Arc<dyn Recording>,
        spool: Option<&Spool>,
    ) -> Vec<mpsc::Sender<Delivery>> {
        let budget = Arc::new(DedupBudget::new(settings.dedup_users));
        let bytes = usize::try_from(settings.batcher.limits.bytes).unwrap_or(usize::MAX);
        let window = Arc::new(ReplayWindow::new(settings.replay_window, bytes));
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
