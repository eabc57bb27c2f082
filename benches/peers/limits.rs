//! Measures limits: the cost of Redis alone, the highest rate of a node, the time to count a minute that was recorded by a
//! different node, and the cost of an idle node.

use std::thread;
use std::time::{Duration, Instant};

use testing::eventually::{eventually, when};
use testing::redis::RedisServer;

use super::eds::{Cluster, PATIENCE, Store};
use super::flow::Flow;
use super::{Bench, Counter, LOG, MEMORY_STORE, SETS};
use crate::load::partitions;
use crate::measure::{float, peak_memory_mb, process_cpu};
use crate::node;
use crate::report::{Report, Table, column};

/// The duration of a load in the search for the highest rate.
const SECONDS: u32 = 4;
/// The range in which the highest rate is searched by bisection, in events per second.
const RATES: (f64, f64) = (300_000.0, 12_800_000.0);
const HALVINGS: u32 = 7;
/// The number of events in a minute that one node records and a different node counts.
const LEFT: u32 = 10_000_000;
const LEFT_RATE: u32 = 400_000;
const REST: Duration = Duration::from_secs(10);

/// The results that are compared with the targets.
pub(crate) struct Limits {
    pub(crate) highest: Table,
    pub(crate) recovery: Table,
    pub(crate) idle: Table,
}

/// Measures the minimum cost of any program that keeps events or users in Redis: that of the commands alone, in large
/// pipelines.
pub(crate) fn redis(report: &mut Report) -> anyhow::Result<()> {
    const COMMANDS: u32 = 2_000;
    const EVENTS: u32 = 1_000;
    let mut table = Table::new(
        "redis",
        &format!("Redis alone, {EVENTS} events per command, {} events", COMMANDS * EVENTS),
        &[column("CPU s/M", 3), column("bytes per event", 1)],
    );
    let append = |number: u32| {
        let mut command = redis::cmd("APPEND");
        command.arg(format!("minute:{}", number % 32)).arg(vec![7_u8; 8 * EVENTS as usize]);
        command
    };
    let sadd = |number: u32| {
        let mut command = redis::cmd("SADD");
        command.arg(format!("users:{}", number % 50));
        for event in 0..EVENTS {
            command.arg(format!("user-{}", number / 50 * EVENTS + event));
        }
        command
    };
    let ways: [(&str, &dyn Fn(u32) -> redis::Cmd); 2] =
        [("APPEND, 8 bytes per event", &append), ("SADD, a new user per event", &sadd)];
    for (name, command) in ways {
        let server = RedisServer::start(&[]);
        let mut connection = server.connection();
        let memory = || server.query::<String>(&["INFO", "memory"]);
        let used = |info: String| {
            let mut lines = info.lines();
            let used =
                lines.find_map(|line| line.strip_prefix("used_memory:")?.parse::<f64>().ok());
            used.unwrap_or(f64::NAN)
        };
        let (bytes, before) = (used(memory()), process_cpu(server.pid())?);
        for first in (0..COMMANDS).step_by(20) {
            let mut pipeline = redis::pipe();
            for number in first..first + 20 {
                pipeline.add_command(command(number)).ignore();
            }
            pipeline.query::<()>(&mut connection)?;
        }
        let events = f64::from(COMMANDS * EVENTS);
        let cpu = process_cpu(server.pid())? - before;
        table.row(name, [cpu * 1e6 / events, (used(memory()) - bytes) / events]);
    }
    report.add(table);
    Ok(())
}

/// Returns the name and the store of each given counter that is available.
fn stores(bench: &Bench, counters: &[Counter]) -> Vec<(&'static str, Store)> {
    let store = |counter: Counter| match counter {
        Counter::Eds(store) => Some((counter.name(), store)),
        _ => None,
    };
    bench.present(counters).into_iter().filter_map(store).collect()
}

/// Measures the highest rate of one node without loss, with the sender and Redis on the same cores. The other columns are from
/// the lowest rate that failed, and show what failed: the sender was late, the kernel dropped datagrams, or events were queued
/// because the node or Redis was too slow.
pub(crate) fn highest(report: &mut Report, bench: &Bench) -> anyhow::Result<Table> {
    let title = "Highest rate without loss, sender and Redis on the same cores; at the next rate:";
    let columns = [
        column("events/s", 0),
        column("sent in time, %", 0),
        column("dropped by the kernel, %", 3),
        column("queued, ms", 0),
        column("CPU of the sender, %", 0),
        column("of the node, %", 0),
        column("of Redis, %", 0),
    ];
    let mut table = Table::new("highest", title, &columns);
    for (name, store) in stores(bench, &[MEMORY_STORE, SETS, LOG]) {
        let (mut taken, mut lost) = RATES;
        let mut failed = [f64::NAN; 6];
        for _ in 0..HALVINGS {
            let rate = (taken * lost).sqrt();
            let flow = Flow { rate: whole(rate), events: whole(rate) * SECONDS, ..bench.base };
            match try_rate(store, &flow)? {
                None => taken = rate,
                Some(found) => (lost, failed) = (rate, found),
            }
        }
        // The lowest rate has not been measured.
        let highest = if taken > RATES.0 { taken } else { f64::NAN };
        let [sent, dropped, queued, sender, node, redis] = failed;
        table.row(name, [highest, sent, dropped, queued, sender, node, redis]);
    }
    report.add(table.clone());
    Ok(table)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate, between the two of RATES"
)]
fn whole(rate: f64) -> u32 {
    rate as u32
}

/// Returns None if a node sustains this load: it is sent on time, and all of it is recorded without much delay. Otherwise,
/// returns the columns that show why.
fn try_rate(store: Store, flow: &Flow) -> anyhow::Result<Option<[f64; 6]>> {
    let mut cluster = Cluster::of(store, 1);
    let (fed, _) = cluster.feed(flow, 1)?;
    let recorded = node::count(&cluster.nodes, "eds_events_recorded_total");
    let in_time = flow.lasts().as_secs_f64() / fed.sent.seconds;
    let is_taken = in_time > 1.0 / 1.03
        && recorded == u64::from(flow.events)
        && fed.backlog < u64::from(flow.rate / 2);
    let dropped = float(fed.datagrams_dropped) * float(flow.lines as u64) / f64::from(flow.events);
    let queued = float(fed.backlog) / f64::from(flow.rate);
    let cpu = [fed.sent.cpu, fed.cpu, fed.redis_cpu].map(|cpu| 100.0 * cpu / fed.sent.seconds);
    let [sender, node, redis] = cpu;
    let figures = [100.0 * in_time.min(1.0), 100.0 * dropped, 1e3 * queued, sender, node, redis];
    Ok((!is_taken).then_some(figures))
}

/// Measures the time and memory needed to count a minute that was recorded by a different node, which has died.
pub(crate) fn recovery(report: &mut Report, bench: &Bench) -> anyhow::Result<Table> {
    let events = if report.is_quick() { LEFT / 10 } else { LEFT };
    let flow = Flow { events, rate: LEFT_RATE, ..bench.base };
    let mut table = Table::new(
        "recovery",
        &format!(
            "A minute of {events} events counted by a different node than the one that recorded it"
        ),
        &[column("seconds", 1), column("MB of the node", 0), column("events lost", 0)],
    );
    for (name, store) in stores(bench, &[SETS, LOG]) {
        let mut cluster = Cluster::of(store, 1);
        cluster.feed(&flow, 1)?;
        let recorded = node::count(&cluster.nodes, "eds_events_recorded_total");
        cluster.nodes[0].kill();
        cluster.nodes.clear();
        cluster.start_node();
        eventually("the minute is claimed", PATIENCE, || {
            let claims: Vec<String> = cluster.servers[0].query(&["KEYS", "*:claims"]);
            // Sets are counted so quickly that polling may not see a claim.
            let sealed = node::count(&cluster.nodes, "eds_series_sealed_total");
            when(!claims.is_empty() || sealed > 0, "no claim")
        });
        let began = Instant::now();
        let (counted, _) = cluster.wait_counted(recorded);
        let seconds = began.elapsed().as_secs_f64();
        let memory = peak_memory_mb(cluster.nodes[0].pid())?;
        table.row(name, [seconds, memory, f64::from(events) - float(counted)]);
    }
    report.add(table.clone());
    Ok(table)
}

/// Measures the CPU time of Redis and of a node that does not receive any events.
pub(crate) fn idle(report: &mut Report, bench: &Bench) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "idle",
        &format!("An idle node, {} partitions", partitions().count()),
        &[
            column("Redis commands/s", 1),
            column("of Redis, ms/s", 1),
            column("of the node, ms/s", 1),
        ],
    );
    for (name, store) in stores(bench, &[SETS, LOG]) {
        let mut cluster = Cluster::of(store, 1);
        cluster.start_node();
        // A new node inspects every partition for about 15 s.
        thread::sleep(2 * REST);
        let (commands, cpu) = (cluster.info("total_commands_processed")?, cluster.cpu()?);
        thread::sleep(REST);
        let after = cluster.cpu()?;
        // Leave out the second INFO command itself.
        let commands = cluster.info("total_commands_processed")? - commands - 1.0;
        let seconds = REST.as_secs_f64();
        table.row(
            name,
            [
                commands / seconds,
                (after.1 - cpu.1) * 1e3 / seconds,
                (after.0 - cpu.0) * 1e3 / seconds,
            ],
        );
    }
    report.add(table.clone());
    Ok(table)
}
