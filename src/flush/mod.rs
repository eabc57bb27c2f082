//! From the store to the outputs. The `worker` claims and seals finished minutes, whichever node recorded them, and a `sender`
//! for each output sends their counts, recent minutes before old ones. A failed send leaves no state: the claim lapses, and any
//! node retries.

mod agreement;
mod backlog;
mod breaker;
mod claims;
mod partitions;
mod schedule;
mod sender;
mod witness;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Arbiter, InvalidSetting, Mutex};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use self::backlog::BacklogReport;
use self::breaker::Breaker;
use self::claims::{Claims, Inbox};
use self::partitions::PartitionStates;
use self::sender::Sender;
use self::worker::Worker;
use crate::event::{Minute, Partitions};
use crate::node::Node;
use crate::output::Output;
use crate::store::{Claim, Draining, OutputName, Store, StoreError, is_recent};
use crate::telemetry::Metrics;

/// The longest time that a step of a task continues after the stop.
const STEP_MAX: Duration = Duration::from_secs(2);
/// The interval of searches for keys that no node works on. A search reads all keys.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(600);
const LEFTOVERS_RETRY: Duration = Duration::from_secs(5);

/// How a node flushes.
#[derive(Debug, Clone, Copy)]
pub struct FlushSettings {
    /// The shortest time between the starts of two rounds.
    pub interval: Duration,
    /// The idle time of a finished minute before it is closed.
    pub grace: Duration,
    /// When a minute is closed in any case, counted from its end or its first event.
    pub max_hold: Duration,
    /// The lifetime of a claim that is not renewed.
    pub lease: Duration,
}

/// One of the outputs.
#[derive(Debug)]
pub struct Destination {
    /// The same on all nodes.
    pub name: OutputName,
    /// Where the points go.
    pub output: Arc<dyn Output>,
    /// The most counts of a write; each is two points.
    pub write_counts_max: usize,
}

/// The parts of flushing.
#[derive(Debug)]
pub struct Flush {
    /// The store that all nodes share.
    pub store: Arc<dyn Draining>,
    /// Each gets all points.
    pub outputs: Vec<Destination>,
    /// Selects the node that probes an output that is down.
    pub arbiter: Arc<dyn Arbiter>,
    /// All partitions.
    pub partitions: Partitions,
    /// The behaviour.
    pub settings: FlushSettings,
    /// The file of the published minutes, which are still known after a power cut; `None`: no file.
    pub witness_file: Option<PathBuf>,
    /// The state that it shares with the other parts of the node.
    pub node: Arc<Node>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Stops the tasks.
    pub stop: CancellationToken,
    /// Cancelled when nothing more is recorded.
    pub recorded: CancellationToken,
}

impl Flush {
    /// Returns the tasks that run until they are stopped: the worker, and a sender for each output.
    pub fn into_tasks(self) -> Result<Vec<BoxFuture<'static, ()>>, InvalidSetting> {
        let is_alone = !self.store.capabilities().is_remote;
        let finished = CancellationToken::new();
        let shared = Arc::new(Shared {
            outputs: self.outputs.iter().map(|output| output.name.clone()).collect(),
            states: PartitionStates::open(&self.partitions, self.witness_file),
            claims: Claims::new(Arc::clone(&self.store), self.settings.lease),
            store: self.store,
            partitions: self.partitions,
            settings: self.settings,
            node: self.node,
            metrics: self.metrics,
            // No other node could seal and send the counts in this process' memory.
            stop: if is_alone { finished.clone() } else { self.stop },
            finished,
        });
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut outboxes = BTreeMap::new();
        for destination in self.outputs {
            let Destination { name, output, .. } = &destination;
            let outbox = Arc::<Inbox>::default();
            outboxes.insert(name.clone(), Arc::clone(&outbox));
            let heartbeat = shared.node.progress.watch(format!("the sender to output {name}"));
            let turn = format!("probe-{name}");
            let sender = Sender {
                breaker: Breaker { is_known_well: !output.has_server(), ..Breaker::default() },
                probing: Mutex::new(Arc::clone(&self.arbiter), &turn, shared.settings.lease)?,
                outbox,
                metrics: shared.metrics.of_output(name.as_str()),
                last: None,
                shared: Arc::clone(&shared),
                destination,
            };
            tasks.push(Box::pin(sender.run(heartbeat)));
        }
        let worker = Worker {
            heartbeat: shared.node.progress.watch("the flush worker"),
            outboxes,
            recorded: self.recorded,
            is_alone,
            recent: Inbox::default(),
            old: Inbox::default(),
            shared: Arc::clone(&shared),
        };
        tasks.push(Box::pin(worker.run(BacklogReport::new(shared))));
        Ok(tasks)
    }
}

/// Has the store search for keys that no node works on, repeatedly. Never ends.
pub async fn look_for_leftovers(store: Arc<dyn Store>) {
    loop {
        let pause = match store.look_for_leftovers().await {
            Ok(()) => LEFTOVERS_INTERVAL,
            Err(error @ StoreError::Refused(_)) => {
                tracing::warn!(%error, "cannot search the store for minutes and counts outside the partitions of this node");
                LEFTOVERS_INTERVAL
            }
            Err(_away) => LEFTOVERS_RETRY,
        };
        tokio::time::sleep(pause).await;
    }
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Draining>,
    partitions: Partitions,
    outputs: Vec<OutputName>,
    settings: FlushSettings,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    states: PartitionStates,
    claims: Claims,
    /// Stops the tasks. Where the store ends with the process: when everything is sent.
    stop: CancellationToken,
    /// Cancelled when the worker passes on no more claims.
    finished: CancellationToken,
}

impl Shared {
    /// Does the work until it ends, or until its step takes too long after the stop: another node continues it.
    async fn until_overdue(&self, work: impl Future<Output = ()>) {
        let overdue = async {
            self.stop.cancelled().await;
            tokio::time::sleep(STEP_MAX).await;
        };
        tokio::select! {
            biased;
            () = work => {}
            () = overdue => {}
        }
    }

    fn is_recent(&self, minute: Minute) -> bool {
        is_recent(minute, self.node.clock.store_now_ms(), self.settings.grace)
    }

    /// Leaves a claim as it is. It lapses, and any node takes it over.
    fn claim_failed(&self, claim: &Claim, error: &StoreError) {
        if matches!(error, StoreError::ClaimLost) {
            self.metrics.claims_lost.inc();
        }
        let (minute, partition) = (claim.minute.shown(), claim.partition.index());
        tracing::warn!(minute, partition, %error, "cannot continue with a claim; the node that takes it over continues");
        self.claims.remove(claim);
    }
}
