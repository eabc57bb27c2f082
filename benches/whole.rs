//! Measures the complete daemon: `eds run` receives a load from `eds send`, with 15 lines per datagram, and runs until the
//! counts of every minute have been written.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use testing::redis::RedisServer;

use crate::measure::{Way, process_cpu, side_by_side};
use crate::node::{Node, eds};
use crate::report::{Report, column};

const EVENTS: u32 = 1_500_000;
const ROUNDS: usize = 3;
/// Events per second. One core can easily send at this rate, and a second core can easily count the events.
const RATE: u32 = 150_000;
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let server = RedisServer::start(&[]);
    let with_redis = || {
        server.query::<()>(&["FLUSHALL", "SYNC"]);
        let before = process_cpu(server.pid())?;
        let mut figures = daemon(&server.url())?;
        figures[1] = (process_cpu(server.pid())? - before) * 1e6 / f64::from(EVENTS);
        Ok(figures)
    };
    side_by_side(
        report,
        "whole",
        &format!("the whole daemon, {EVENTS} events, {RATE} per second"),
        ROUNDS,
        &[column("CPU s/M", 2), column("Redis CPU s/M", 2), column("events lost", 0)],
        &mut [
            Way { name: "eds run, memory", run: Box::new(|| daemon("memory:")) },
            Way { name: "eds run, Redis", run: Box::new(with_redis) },
        ],
    )?;
    Ok(())
}

fn daemon(store: &str) -> anyhow::Result<Vec<f64>> {
    let keys = [("store.url", store), ("flush.grace", "1s"), ("log.level", "warn")];
    let node = Node::start("bench", &keys);
    let sent = eds()
        .args(["send", "--quiet", "--seed", "1", "--minutes", "3"])
        .args(["--to", &node.udp().to_string()])
        .args(["--events", &EVENTS.to_string(), "--rate", &RATE.to_string()])
        .stderr(Stdio::null())
        .status()?;
    ensure!(sent.success(), "eds send failed");
    // Gauges are updated periodically, so the node has finished once they have been zero several times in a row.
    let mut idle = 0;
    while idle < 5 {
        thread::sleep(POLL);
        let metrics = node.metrics();
        let busy = [
            "eds_events_queued",
            "eds_backlog_pending",
            "eds_backlog_claimed",
            "eds_backlog_unsent",
        ];
        let is_busy = busy.iter().any(|name| metrics.count(name) > 0);
        idle = if is_busy { 0 } else { idle + 1 };
    }
    let recorded = node.metrics().value("eds_events_recorded_total");
    let cpu = process_cpu(node.pid())?;
    let lost = f64::from(EVENTS) - recorded;
    Ok(vec![cpu * 1e6 / recorded, 0.0, lost])
}
