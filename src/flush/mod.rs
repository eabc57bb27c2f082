//! From the store to the outputs.
//!
//! On every node one task seals, and one sends to each output. The `worker` goes round once an interval: it claims the
//! minutes that are finished, whichever node recorded them, and compacts them to counts. What is to be sent then it puts into
//! the `outbox` of each output, with what lapsed there. A `sender` sends it (`sending`), at the pace of its output.
//!
//! Recent minutes come before old ones: the worker seals these beside its rounds (`old`), a sender sends them last and in turns.
//!
//! `held` keeps the leases of what they work on, `delivery` finds out which counts an output refuses, `refused` puts these
//! into its quarantine, `breaker` decides when an output that fails is tried again, `settling` when minutes may be closed
//! after the store was away, `witness` what is handed back to a store that forgot it, `announcing` how other nodes learn it before anything is
//! written, `standing` whether this node agrees with the others, `rest` which partitions are left alone, `late` what is logged of events that came too late. Nobody keeps anything of a failed send: the claim lapses, and any node tries again.

mod announcing;
mod asking;
mod breaker;
mod delivery;
mod held;
mod late;
mod old;
mod outbox;
mod refused;
mod rest;
mod sender;
mod sending;
mod settling;
mod standing;
mod store_clock;
mod suspects;
mod watch;
mod witness;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Arbiter, InvalidSetting, Mutex};
use futures_util::future::BoxFuture;
pub use standing::look_for_leftovers;
use tokio_util::sync::CancellationToken;

use self::breaker::Breaker;
use self::old::OldMinutes;
use self::outbox::Outbox;
use self::sender::Sender;
use self::standing::Agreed;
use self::watch::Watches;
use self::worker::Worker;
use crate::event::Partitions;
use crate::node::Node;
use crate::output::Output;
use crate::store::{Draining, OutputName, Store};
use crate::telemetry::Metrics;

/// How a node flushes.
#[derive(Debug, Clone, Copy)]
pub struct FlushSettings {
    /// How long a round takes at least.
    pub interval: Duration,
    /// How long a minute that is over must be idle before it is closed.
    pub grace: Duration,
    /// When it is closed in any case, counted from its end or its first event.
    pub max_hold: Duration,
    /// How long a claim holds unless it is renewed.
    pub lease: Duration,
}

/// One of the outputs.
#[derive(Debug)]
pub struct Destination {
    /// What it is called, alike on all nodes.
    pub name: OutputName,
    /// Where the points go.
    pub output: Arc<dyn Output>,
    /// The most counts of a write; each is two points.
    pub write_counts_max: usize,
}

/// What flushing is made of.
#[derive(Debug)]
pub struct Flush {
    /// The shared memory.
    pub store: Arc<dyn Draining>,
    /// Where the points go: each gets all of them.
    pub outputs: Vec<Destination>,
    /// Says which node probes an output that is down.
    pub arbiter: Arc<dyn Arbiter>,
    /// The partitions to look after: all there are.
    pub partitions: Partitions,
    /// How it behaves.
    pub settings: FlushSettings,
    /// Where it is written down which minutes are published, to be known after a power cut; `None`: nowhere.
    pub witness_file: Option<PathBuf>,
    /// What it shares with the other parts of the node.
    pub node: Arc<Node>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
    /// Cancelled when nothing more is recorded.
    pub recorded: CancellationToken,
}

impl Flush {
    /// The tasks that run until they are stopped: the one that seals, and one for each output.
    pub fn into_tasks(self) -> Result<Vec<BoxFuture<'static, ()>>, InvalidSetting> {
        let watches = Arc::new(Watches::open(&self.partitions, self.witness_file));
        let is_alone = !self.store.capabilities().is_remote;
        let finished = CancellationToken::new();
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut outboxes = Vec::new();
        for destination in self.outputs {
            let name = destination.name;
            let breaker = if destination.output.has_server() {
                Breaker::untried()
            } else {
                Breaker::default()
            };
            let outbox = Arc::new(Outbox::new(name.clone()));
            let heartbeat = format!("the sender to output {name}");
            let turn = format!("probe-{name}");
            let sender = Sender {
                probing: Mutex::new(Arc::clone(&self.arbiter), &turn, self.settings.lease)?,
                output: Agreed {
                    store: Arc::clone(&self.store) as Arc<dyn Store>,
                    output: destination.output,
                },
                write_counts_max: destination.write_counts_max,
                store: Arc::clone(&self.store),
                outbox: Arc::clone(&outbox),
                watches: Arc::clone(&watches),
                totals: Arc::clone(&self.metrics),
                metrics: self.metrics.of_output(name.as_str()),
                settings: self.settings,
                node: Arc::clone(&self.node),
                breaker,
                // There is no other node that could send what is in this process' memory.
                stop: if is_alone { &finished } else { &self.stop }.clone(),
                finished: finished.clone(),
                name,
            };
            tasks.push(Box::pin(sender.run(self.node.progress.watch(heartbeat))));
            outboxes.push(outbox);
        }
        let worker = Worker {
            store: self.store,
            outputs: outboxes.iter().map(|outbox| outbox.name.clone()).collect(),
            outboxes,
            watches,
            partitions: self.partitions,
            settings: self.settings,
            heartbeat: self.node.progress.watch("the flush worker"),
            node: self.node,
            metrics: self.metrics,
            stop: if is_alone { self.recorded } else { self.stop },
            finished,
            is_alone,
            old: OldMinutes::default(),
        };
        tasks.push(Box::pin(worker.run()));
        Ok(tasks)
    }
}
