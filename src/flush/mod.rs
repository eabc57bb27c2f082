//! Moves counts from the store to the outputs. The `worker` claims and seals finished minutes, whichever node recorded them.
//! For each output, a `sender` sends the counts. After a failed attempt, the claim lapses, and any node can retry.

mod agreement;
mod backlog;
mod breaker;
mod claims;
mod contributions;
mod contributor;
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
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::backlog::BacklogReport;
use self::breaker::Breaker;
use self::claims::{Claims, Inbox};
use self::contributions::Contributions;
use self::contributor::Contributor;
use self::partitions::PartitionStates;
use self::sender::Sender;
use self::worker::Worker;
use crate::event::{Minute, Partitions};
use crate::node::Node;
use crate::output::Output;
use crate::store::{Claim, Draining, OutputName, Store, StoreError, is_recent};
use crate::telemetry::Metrics;

/// The maximum time for a task to finish its current step on shutdown.
const STEP_MAX: Duration = Duration::from_secs(2);
/// Interval between searches for keys that no node is working on. It is long because each search reads all keys.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(600);
const LEFTOVERS_RETRY: Duration = Duration::from_secs(5);

/// The settings for flushing.
#[derive(Debug, Clone, Copy)]
pub struct FlushSettings {
    /// Minimum time between the starts of two rounds.
    pub interval: Duration,
    /// The time a finished minute must be idle before it is closed.
    pub grace: Duration,
    /// Maximum time that a minute stays open after its end, or after its first event if that is later.
    pub max_hold: Duration,
    /// Maximum time that a window stays open after its end, or after its first minute was added if that is later, while a node
    /// has events that it has not recorded. Longer than for a minute, because these may be the events of an outage.
    pub window_hold: Duration,
    /// The duration of a claim that is not renewed.
    pub lease: Duration,
    /// For how many minutes after its last events a series gets counts of zero.
    pub zeros: u32,
}

/// One configured output.
#[derive(Debug)]
pub struct Destination {
    /// The name, which is the same on all nodes.
    pub name: OutputName,
    /// The output that points are written to.
    pub output: Arc<dyn Output>,
    /// Maximum number of counts per write; each count is two points.
    pub write_counts_max: usize,
}

/// Everything that flushing needs.
#[derive(Debug)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Flush {
    pub store: Arc<dyn Draining>,
    /// The outputs, each of which gets all points.
    pub outputs: Vec<Destination>,
    /// Chooses which node probes an output that is down.
    pub arbiter: Arc<dyn Arbiter>,
    pub partitions: Partitions,
    pub settings: FlushSettings,
    /// The file that keeps the list of published minutes across power failures; `None` if the list is only in memory.
    pub witness_file: Option<PathBuf>,
    /// The directory that keeps what this node has added to open windows, and its maximum size in bytes.
    pub contributions: Option<(PathBuf, u64)>,
    pub node: Arc<Node>,
    pub metrics: Arc<Metrics>,
    /// Stops the tasks when cancelled.
    pub stop: CancellationToken,
    /// Cancelled once no more events will be recorded.
    pub recorded: CancellationToken,
}

impl Flush {
    /// Returns the tasks, which run until stopped: the worker, and a sender for each output.
    pub fn into_tasks(self) -> Result<Vec<BoxFuture<'static, ()>>, InvalidSetting> {
        let is_alone = !self.store.capabilities().is_remote;
        let finished = CancellationToken::new();
        let outputs = self.outputs.iter().map(|output| output.name.clone());
        let rollup = self.partitions.rollups().next().map(|_| OutputName::rollup());
        let has_rollups = rollup.is_some();
        let contributions = self.contributions.filter(|_| has_rollups);
        let contributions = contributions.and_then(|(directory, bytes_max)| {
            let opened = Contributions::open(directory, bytes_max, &self.partitions);
            let logged = opened.inspect_err(|error| {
                tracing::error!(%error, "cannot keep what is added to windows; if Redis loses it, their points have complete=false");
            });
            logged.ok().map(Arc::new)
        });
        let shared = Arc::new(Shared {
            outputs: outputs.chain(rollup).collect(),
            states: PartitionStates::open(&self.partitions, self.witness_file),
            claims: Claims::new(Arc::clone(&self.store), self.settings.lease),
            store: self.store,
            contributions,
            hand_back: Notify::new(),
            partitions: self.partitions,
            settings: self.settings,
            node: self.node,
            metrics: self.metrics,
            // If the store is in memory, the tasks run until they have sent everything, because no other node could do so.
            stop: if is_alone { finished.clone() } else { self.stop },
            finished,
        });
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut outboxes = BTreeMap::new();
        for destination in self.outputs {
            let Destination { name, output, .. } = &destination;
            let outbox = Arc::<Inbox>::default();
            outboxes.insert(name.clone(), Arc::clone(&outbox));
            let heartbeat = shared.node.progress.watch(format!("the sender for output {name}"));
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
        if has_rollups {
            let outbox = Arc::<Inbox>::default();
            outboxes.insert(OutputName::rollup(), Arc::clone(&outbox));
            let heartbeat = shared.node.progress.watch("the rollups");
            let contributor = Contributor { shared: Arc::clone(&shared), outbox };
            tasks.push(Box::pin(contributor.run(heartbeat)));
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

/// Repeatedly makes the store search for keys that no node is working on. Never returns.
pub async fn look_for_leftovers(store: Arc<dyn Store>) {
    loop {
        let pause = match store.look_for_leftovers().await {
            Ok(()) => LEFTOVERS_INTERVAL,
            Err(error @ StoreError::Refused(_)) => {
                tracing::warn!(%error, "cannot search the store for minutes and counts outside this node's partitions");
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
    /// The outputs and, if there are rollups, [`OutputName::rollup`] at the end.
    outputs: Vec<OutputName>,
    settings: FlushSettings,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    states: PartitionStates,
    contributions: Option<Arc<Contributions>>,
    /// Notified when contributions may have to be added again.
    hand_back: Notify,
    claims: Claims,
    /// Stops the tasks. If the store ends with the process, this is not cancelled until everything has been sent.
    stop: CancellationToken,
    /// Cancelled once the worker has passed on its last claim.
    finished: CancellationToken,
}

impl Shared {
    /// Runs the work to completion, unless it takes too long on shutdown. In that case, another node continues the work.
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

    /// Logs why work on a claim failed, and stops renewing the claim, so that it lapses and any node can take it over.
    fn claim_failed(&self, claim: &Claim, error: &StoreError) {
        if matches!(error, StoreError::ClaimLost) {
            self.metrics.claims_lost.inc();
        }
        let (minute, partition) = (claim.minute.shown(), claim.partition.index());
        tracing::warn!(minute, partition, %error, "cannot continue with a claimed minute; the node that takes over the claim will finish it");
        self.claims.remove(claim);
    }
}
