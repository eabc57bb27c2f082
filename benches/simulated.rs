//! Counts the commands that up to a thousand nodes send to Redis: their workers and stores run in this process, with a
//! simulated Redis and a simulated clock. Times are not measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::ensure;
use async_trait::async_trait;
use coordination::memory::MemoryArbiter;
use event_data_service::event::{Batch, Minute, Partition};
use event_data_service::flush::{Destination, Flush, FlushSettings};
use event_data_service::ingest::{Delivery, QUEUED_BATCHES};
use event_data_service::node::{Clock, Intake, Node, Rng};
use event_data_service::output::{Output, SealedCounts, WriteError};
use event_data_service::store::OutputName;
use event_data_service::store::redis::RedisStore;
use event_data_service::telemetry::Metrics;
use testing::lua_redis::LuaRedis;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::load::{Recorders, partitions, store_settings};
use crate::measure::float;
use crate::report::{Report, Table, column};

const NODES: [usize; 4] = [1, 10, 100, 1000];
/// The start of the simulated time, at the start of a minute.
const BEGIN_NANOS: i64 = 1_700_000_040_000_000_000;
/// How long after its start a node is still looking for minutes that were left behind.
const STARTING: Duration = Duration::from_secs(20);
const AT_REST: Duration = Duration::from_secs(30);
/// The end of the second minute, in which there are events.
const END: Duration = Duration::from_secs(120);
/// By when the minute with the default settings is closed, counted and acknowledged.
const CLOSED: Duration = Duration::from_secs(15);
const SERIES: usize = 50;
const EVENTS: i64 = 60;

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let nodes = if report.is_quick() { &NODES[..2] } else { &NODES[..] };
    let columns = [
        column("commands/s in the first 20 s", 0),
        column("commands/s at rest", 1),
        column("the same, per node", 1),
        column("commands to close a minute of 50 series", 0),
        column("the same, per node", 1),
    ];
    let count = partitions().count();
    let title = format!("Commands of simulated nodes, `sets`, {count} partitions");
    let mut table = Table::new("scale-simulated", &title, &columns);
    for number in nodes {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let [starting, resting, closing] = runtime.block_on(commands(*number))?;
        let nodes = float(*number as u64);
        let resting = resting / AT_REST.as_secs_f64();
        let starting = starting / STARTING.as_secs_f64();
        let figures = [starting, resting, resting / nodes, closing, closing / nodes];
        table.row(&format!("{number} nodes"), figures);
    }
    report.add(table);
    Ok(())
}

/// Returns the number of commands while this many nodes start, while they are at rest, and from the end of a minute with
/// events until it is closed, without the commands of nodes at rest in that time.
async fn commands(nodes: usize) -> anyhow::Result<[f64; 3]> {
    let began = Instant::now();
    let now_nanos = move || {
        let elapsed = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        BEGIN_NANOS.saturating_add(elapsed)
    };
    let redis = Arc::new(LuaRedis::new(Box::new(move || now_nanos().div_euclid(1000)), None));
    let arbiter = Arc::new(MemoryArbiter::default());
    let output = Arc::new(Counting::default());
    let mut recorders = Vec::new();
    for number in 0..nodes {
        let node = Arc::new(Node::new(Clock::new(now_nanos), Rng::new(number as u64)));
        let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
        let settings = store_settings(redis.settings(), &format!("node{number}"));
        let store = Arc::new(RedisStore::new(&settings)?);
        if number == 0 {
            recorders = record(&store, &node, &metrics);
        }
        let destination = Destination {
            name: OutputName::default(),
            output: Arc::clone(&output) as _,
            write_counts_max: 2500,
        };
        let flush = Flush {
            store,
            outputs: vec![destination],
            arbiter: Arc::clone(&arbiter) as _,
            partitions: partitions(),
            settings: FlushSettings {
                interval: Duration::from_secs(1),
                grace: Duration::from_secs(5),
                max_hold: Duration::from_secs(60),
                window_hold: Duration::from_secs(3600),
                lease: Duration::from_secs(30),
                zeros: 0,
            },
            witness_file: None,
            contributions: None,
            node,
            metrics,
            stop: CancellationToken::new(),
            recorded: CancellationToken::new(),
        };
        for task in flush.into_tasks()? {
            tokio::spawn(task);
        }
    }
    sleep_until(began + STARTING).await;
    let starting = redis.commands();
    sleep(AT_REST).await;
    let resting = redis.commands() - starting;
    sleep_until(began + END / 2).await;
    for (partition, sender) in &recorders {
        sender.send(batch(*partition).into()).await?;
    }
    sleep_until(began + END).await;
    let before = redis.commands();
    sleep(CLOSED).await;
    let closing = redis.commands() - before;
    let counted = output.0.load(Ordering::Relaxed);
    ensure!(counted == SERIES, "{counted} counts were written, not {SERIES}");
    let resting = float(resting);
    let idle = resting * CLOSED.as_secs_f64() / AT_REST.as_secs_f64();
    Ok([float(starting), resting, float(closing) - idle])
}

/// Starts the recorders of a node, and returns the channels to them.
fn record(
    store: &Arc<RedisStore>,
    node: &Arc<Node>,
    metrics: &Arc<Metrics>,
) -> Vec<(Partition, mpsc::Sender<Delivery>)> {
    let of_node = Recorders::new(Arc::clone(store) as _, Arc::clone(node), Arc::clone(metrics));
    let start = |partition| {
        let (sender, batches) = mpsc::channel(QUEUED_BATCHES);
        tokio::spawn(of_node.of(partition, batches).run());
        (partition, sender)
    };
    let recorders = partitions().iter().map(start).collect();
    let batches: Vec<_> = partitions().iter().map(batch).collect();
    node.ledger.take_in(&Intake {
        queued: batches.iter().map(|batch| batch.events() as u64).sum(),
        queued_bytes: batches.iter().map(|batch| batch.bytes() as u64).sum(),
        ..Intake::default()
    });
    recorders
}

/// Returns the events of a partition in the second minute.
fn batch(partition: Partition) -> Batch {
    let (mut batch, at) = (Batch::default(), BEGIN_NANOS + 60_000_000_000);
    for series in (0..SERIES).map(|number| format!("product={number}")) {
        if partitions().of(&series, Minute::MIN) == partition {
            for event in 0..EVENTS {
                batch.push(Minute::of_nanos(at), &series, &format!("user{event}"), at + event);
            }
        }
    }
    batch
}

/// An output that only counts the written counts.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Output for Counting {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.0.fetch_add(counts.len(), Ordering::Relaxed);
        Ok(())
    }

    fn describe(&self) -> String {
        "counting".to_owned()
    }
}
