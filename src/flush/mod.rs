//! From the store to the outputs.
//!
//! On every node one task seals counts, and one sends them to each output. The `worker` runs a round once an interval: it claims
//! finished minutes, whichever node recorded them, and compacts them to counts. It hands the claims to send, new and lapsed
//! ones, to the outboxes (`claims`). A `sender` sends their counts, at the pace of its output. Recent minutes come before old
//! ones: the worker seals old ones concurrently with its rounds, a sender sends them last and in turns.
//!
//! `partitions` keeps the state of each partition between rounds: its `witness`, which is handed back to a store that forgot it, and
//! its `schedule`, the times of its check-ins and closings. `agreement` compares the settings of the nodes, `backlog` sets the
//! metrics, and `breaker` decides when to write again to an output that failed. A failed send leaves no state: the claim lapses,
//! and any node retries.

mod agreement;
mod backlog;
mod breaker;
mod claims;
mod counts;
mod partitions;
mod schedule;
mod sender;
mod witness;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Arbiter, InvalidSetting, Mutex};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

pub use self::agreement::look_for_leftovers;
use self::backlog::BacklogReport;
use self::breaker::Breaker;
use self::claims::{Held, OldMinutes, Outbox};
use self::partitions::PartitionStates;
use self::sender::Sender;
use self::worker::Worker;
use crate::event::Partitions;
use crate::node::Node;
use crate::output::Output;
use crate::store::{Draining, OutputName};
use crate::telemetry::Metrics;

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
        let Self { store, settings, node, metrics, stop, .. } = self;
        let states = Arc::new(PartitionStates::open(&self.partitions, self.witness_file));
        let is_alone = !store.capabilities().is_remote;
        let finished = CancellationToken::new();
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut outboxes = Vec::new();
        for Destination { name, output, write_counts_max } in self.outputs {
            let outbox = Arc::new(Outbox::new(name.clone()));
            let heartbeat = node.progress.watch(format!("the sender to output {name}"));
            let turn = format!("probe-{name}");
            let sender = Sender {
                store: Arc::clone(&store),
                breaker: if output.has_server() { Breaker::untried() } else { Breaker::default() },
                output,
                write_counts_max,
                probing: Mutex::new(Arc::clone(&self.arbiter), &turn, settings.lease)?,
                outbox: Arc::clone(&outbox),
                states: Arc::clone(&states),
                totals: Arc::clone(&metrics),
                metrics: metrics.of_output(name.as_str()),
                settings,
                node: Arc::clone(&node),
                last: None,
                // No other node could send the counts in this process' memory.
                stop: if is_alone { &finished } else { &stop }.clone(),
                finished: finished.clone(),
                name,
            };
            tasks.push(Box::pin(sender.run(heartbeat)));
            outboxes.push(outbox);
        }
        let outputs: Vec<_> = outboxes.iter().map(|outbox| outbox.name.clone()).collect();
        let backlog = BacklogReport::new(
            Arc::clone(&store),
            outputs.clone(),
            self.partitions.clone(),
            Arc::clone(&states),
            settings.interval,
            Arc::clone(&node),
            Arc::clone(&metrics),
        );
        let worker = Worker {
            store,
            outputs,
            outboxes,
            states,
            partitions: self.partitions,
            settings,
            heartbeat: node.progress.watch("the flush worker"),
            node,
            metrics,
            stop: if is_alone { self.recorded } else { stop },
            finished,
            is_alone,
            held: Held::default(),
            old: OldMinutes::default(),
        };
        tasks.push(Box::pin(worker.run(backlog)));
        Ok(tasks)
    }
}
