//! Measures recording in Redis: four plain commands per event, compared with the recorders of a node.
//!
//! Both alternatives use the same client crate and the same Redis server, several pipelines in flight, and events prepared
//! in memory. The cost of building the commands is included. Afterwards, the members of the sets are counted to verify that
//! all events have been recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use event_data_service::event::{Batch, Minute, Partition};
use event_data_service::ingest::QUEUED_BATCHES;
use event_data_service::node::{Intake, Node};
use event_data_service::store::Recording;
use event_data_service::store::redis::RedisStore;
use event_data_service::telemetry::Metrics;
use futures_util::{StreamExt, TryStreamExt, stream};
use loadgen::Event;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use testing::redis::RedisServer;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::load::{Load, Recorders, SERIES, partitions, store_settings};
use crate::measure::{Way, figure, process_cpu, side_by_side};
use crate::report::{Report, column};
use crate::without::{LeftOut, Without};

const EVENTS: u64 = 1_500_000;
/// The number of series in the case in which admission costs most, because there are few events per series.
const MANY_SERIES: u32 = 5_000;
const ROUNDS: usize = 5;
/// The number of events per pipeline. With 100 to 1,000 events per pipeline, 2 to 8 pipelines in flight, or more
/// connections, the results differ only within the noise.
const PIPELINE_EVENTS: usize = 1_000;
const PIPELINES: usize = 4;
/// The number of events that arrive during the linger at full speed: 1 M/s for 100 ms.
const ARRIVING: usize = 100_000;

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let columns = [column("events/s", 0), column("Redis CPU s/M", 2), column("own CPU s/M", 2)];
    let runtime = Runtime::new()?;
    let server = RedisServer::start(&[]);
    let load = Load::new(EVENTS, SERIES);
    let site = Site { runtime: &runtime, server: &server, load: &load };
    side_by_side(
        report,
        "recording",
        &format!("recording {EVENTS} events in Redis"),
        ROUNDS,
        &columns,
        &mut [
            Way { name: "four commands per event, pipelined", run: Box::new(|| site.seeds()) },
            site.recorders("the recorders of eds", LeftOut::Nothing),
            site.recorders("the same, without admission", LeftOut::Admission),
            site.recorders("the same, without reporting coverage", LeftOut::Coverage),
        ],
    )?;
    let load = Load::new(EVENTS, MANY_SERIES);
    let site = Site { load: &load, ..site };
    side_by_side(
        report,
        "recording-5000",
        &format!("recording {EVENTS} events of {MANY_SERIES} series in Redis"),
        ROUNDS,
        &columns,
        &mut [
            site.recorders("the recorders of eds", LeftOut::Nothing),
            site.recorders("the same, without admission", LeftOut::Admission),
            site.recorders("the same, without reporting coverage", LeftOut::Coverage),
        ],
    )?;
    Ok(())
}

/// The runtime, the server and the load for a measurement of recording.
#[derive(Clone, Copy)]
struct Site<'a> {
    runtime: &'a Runtime,
    server: &'a RedisServer,
    load: &'a Load,
}

impl<'a> Site<'a> {
    fn measured(
        self,
        record: impl FnOnce(&RedisServer) -> anyhow::Result<f64>,
    ) -> anyhow::Result<Vec<f64>> {
        let server = self.server;
        server.query::<()>(&["FLUSHALL", "SYNC"]);
        let (redis, own) = (process_cpu(server.pid())?, process_cpu(std::process::id())?);
        let seconds = record(server)?;
        let own = process_cpu(std::process::id())? - own;
        let redis = process_cpu(server.pid())? - redis;
        let keys = server.keys().into_iter();
        let sets = keys.filter(|key| key.contains("cumulative_user"));
        let recorded: usize = sets.map(|key| server.query::<usize>(&["SCARD", &key])).sum();
        ensure!(
            recorded == self.load.events.len(),
            "{recorded} events are in Redis, not {}",
            self.load.events.len()
        );
        let events = figure(self.load.events.len());
        Ok(vec![events / seconds, redis * 1e6 / events, own * 1e6 / events])
    }

    fn seeds(self) -> anyhow::Result<Vec<f64>> {
        self.measured(|server| self.runtime.block_on(seeds_way(server, self.load)))
    }

    fn recorders(self, name: &'static str, left_out: LeftOut) -> Way<'a> {
        let run = move || {
            let batches = batches(self.load);
            self.measured(|server| {
                let store = Arc::new(RedisStore::new(&store_settings(server.settings(), "bench"))?);
                let store: Arc<dyn Recording> = Arc::new(Without { store, left_out });
                let events = self.load.events.len();
                self.runtime.block_on(recorders_way(store, batches, events))
            })
        };
        Way { name, run: Box::new(run) }
    }
}

/// Records each event with four commands: one ZADD for the minute, and one SADD each for the series, the user and the event.
/// Returns the time in seconds.
async fn seeds_way(server: &RedisServer, load: &Load) -> anyhow::Result<f64> {
    let client = redis::Client::open(server.url())?;
    // The client's default timeout of half a second is too short on a busy machine.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let began = Instant::now();
    stream::iter(load.events.chunks(PIPELINE_EVENTS))
        .map(|events| send_pipeline(load, events, connection.clone()))
        .buffer_unordered(PIPELINES)
        .try_collect::<()>()
        .await?;
    Ok(began.elapsed().as_secs_f64())
}

async fn send_pipeline(
    load: &Load,
    events: &[Event],
    mut connection: MultiplexedConnection,
) -> anyhow::Result<()> {
    let mut pipeline = redis::pipe();
    let first = Minute::of_nanos(events[0].nanos);
    let mut minute = (first, first.to_string());
    for event in events {
        let of_event = Minute::of_nanos(event.nanos);
        if minute.0 != of_event {
            minute = (of_event, of_event.to_string());
        }
        let name = &minute.1;
        let (series, user) = (load.series(event), load.user(event));
        pipeline
            .zadd("minutes", name, of_event.epoch_minutes())
            .ignore()
            .sadd(format!("{name}:event_types"), series)
            .ignore()
            .sadd(format!("{name}:unique_user:{series}"), user)
            .ignore()
            .sadd(format!("{name}:cumulative_user:{series}"), format!("{user}_{}", event.nanos))
            .ignore();
    }
    Ok(pipeline.exec_async(&mut connection).await?)
}

/// Returns the batches of each partition, as a listener would make them at full speed.
fn batches(load: &Load) -> Vec<(Partition, Vec<Batch>)> {
    let mut queues: Vec<_> = partitions().iter().map(|p| (p, Vec::new())).collect();
    for arriving in load.events.chunks(ARRIVING) {
        let mut open: Vec<_> = queues.iter().map(|_| Batch::default()).collect();
        for event in arriving {
            let (series, user) = (load.series(event), load.user(event));
            let batch = &mut open[partitions().of(series, Minute::MIN).index()];
            batch.push(Minute::of_nanos(event.nanos), series, user, event.nanos);
        }
        for ((_, queue), batch) in queues.iter_mut().zip(open) {
            if !batch.is_empty() {
                queue.push(batch);
            }
        }
    }
    queues
}

async fn recorders_way(
    store: Arc<dyn Recording>,
    batches: Vec<(Partition, Vec<Batch>)>,
    events: usize,
) -> anyhow::Result<f64> {
    let node = Arc::new(Node::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
    let recorders = Recorders::new(store, Arc::clone(&node), metrics);
    let bytes: usize = batches.iter().flat_map(|(_, b)| b).map(Batch::bytes).sum();
    node.ledger.take_in(&Intake {
        queued: events as u64,
        queued_bytes: bytes as u64,
        ..Intake::default()
    });
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for (partition, queue) in batches {
        let (sender, receiver) = mpsc::channel(QUEUED_BATCHES);
        tasks.spawn(recorders.of(partition, receiver).run());
        tasks.spawn(async move {
            for batch in queue {
                // Ignore the error that occurs if a recorder has panicked, because the check of the sets then fails.
                let _ = sender.send(batch.into()).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(began.elapsed().as_secs_f64())
}
