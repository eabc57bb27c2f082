//! Compares `eds`, with each of its stores, with other programs that count events: by CPU time per event, losses, and memory
//! in Redis.
//!
//! All programs receive the same events at the same rate from the same sender, within one minute. The clock is set so that
//! the minute ends right after the last event. The cost includes sealing.

pub(crate) mod before;
pub(crate) mod day;
mod eds;
pub(crate) mod flow;
pub(crate) mod growth;
mod limits;
mod plot;
mod program;
pub(crate) mod receiving;
pub(crate) mod requests;
pub(crate) mod rollups;
pub(crate) mod scale;
mod targets;

pub(crate) use eds::{SETTLED, settle};
use flow::{Flow, Protocol};

use crate::measure::{Way, figure, float, side_by_side};
use crate::report::{Column, Report, Table, column};

const ROUNDS: usize = 5;
/// The base load. Every other load differs from the base load in one parameter.
pub(crate) const BASE: Flow =
    Flow { events: 3_000_000, rate: 300_000, series: 50, users: 10_000, lines: 15, clients: 0 };
const QUICK_EVENTS: u32 = 450_000;

/// The names of the columns that plots, growth and targets read.
const ALL: &str = "CPU s/M";
const OF_PROGRAM: &str = "of the program";
const OF_REDIS: &str = "of Redis";
const BYTES: &str = "bytes in Redis per event";
const MEMORY: &str = "MB of the program";

fn columns() -> [Column; 8] {
    [
        column(ALL, 3),
        column(OF_PROGRAM, 3),
        column(OF_REDIS, 3),
        column("of the sender", 3),
        column("events lost, %", 2),
        column("users missed, %", 2),
        column(BYTES, 1),
        column(MEMORY, 0),
    ]
}

/// The measurements of a program for a whole load. CPU times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    cpu: f64,
    redis_cpu: f64,
    sender_cpu: f64,
    /// Datagrams that the kernel dropped, which do not cost the program anything.
    datagrams_dropped: u64,
    events_lost: f64,
    users: f64,
    redis_bytes: f64,
    memory_mb: f64,
    /// The median and the 99th percentile of the time to the answer of a request.
    waits_ms: [f64; 2],
}

impl Figures {
    fn of(self, flow: &Flow, users_sent: usize) -> Vec<f64> {
        let events = f64::from(flow.events);
        let dropped = self.datagrams_dropped * flow.lines as u64;
        let taken = events - float(dropped);
        let per_million = |cpu: f64| cpu * 1e6 / taken;
        vec![
            per_million(self.cpu + self.redis_cpu),
            per_million(self.cpu),
            per_million(self.redis_cpu),
            self.sender_cpu * 1e6 / events,
            self.events_lost * 100.0 / events,
            100.0 - self.users * 100.0 / figure(users_sent),
            self.redis_bytes / taken,
            self.memory_mb,
        ]
    }
}

/// A program that counts events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counter {
    Collectd(Protocol),
    Statsd(Protocol),
    Eds(eds::Store),
    /// Only receives datagrams. The cost is a lower bound for every program.
    Receiving,
}

const COLLECTD: Counter = Counter::Collectd(Protocol::Sets);
const MEMORY_STORE: Counter = Counter::Eds(eds::Store::Memory);
const SETS: Counter = Counter::Eds(eds::Store::Redis("sets"));
const LOG: Counter = Counter::Eds(eds::Store::Redis("log"));

impl Counter {
    const fn name(self) -> &'static str {
        match self {
            Self::Collectd(Protocol::SetsAndCounters) => "collectd, users and events",
            Self::Collectd(_) => "collectd, users",
            Self::Statsd(_) => "statsd, users",
            Self::Eds(eds::Store::Memory) => "eds, memory",
            Self::Eds(eds::Store::Redis(layout)) => match layout.as_bytes() {
                b"sets" => "eds, Redis, sets",
                _ => "eds, Redis, log",
            },
            Self::Receiving => "receiving alone",
        }
    }

    /// Returns whether the program can be measured on this machine. If not, prints the reason.
    fn is_there(self) -> bool {
        let is_missing = match self {
            Self::Collectd(_) => program::collectd_is_missing(),
            Self::Statsd(_) => program::statsd_is_missing(),
            Self::Eds(store) => store.is_missing(),
            Self::Receiving => None,
        };
        if let Some(remedy) = &is_missing {
            println!("leaving out {}: {remedy}", self.name());
        }
        is_missing.is_none()
    }

    fn count(self, flow: &Flow) -> anyhow::Result<Figures> {
        match self {
            Self::Collectd(protocol) => program::collectd(flow, protocol),
            Self::Statsd(protocol) => program::statsd(flow, protocol),
            Self::Eds(store) => eds::count(store, flow),
            Self::Receiving => receiving::count(flow),
        }
    }
}

/// The counters that are available on this machine, and the base load.
struct Bench {
    counters: Vec<Counter>,
    base: Flow,
}

impl Bench {
    /// Returns the given counters that are available on this machine.
    fn present(&self, counters: &[Counter]) -> Vec<Counter> {
        let counters = counters.iter().copied();
        counters.filter(|counter| self.counters.contains(counter)).collect()
    }

    fn side_by_side(
        &self,
        report: &mut Report,
        (id, load): (&str, &str),
        rounds: usize,
        flow: Flow,
        counters: &[Counter],
    ) -> anyhow::Result<Table> {
        let users = flow.users_of_all();
        let way = |counter: Counter| Way {
            name: counter.name(),
            run: Box::new(move || Ok(counter.count(&flow)?.of(&flow, users))),
        };
        let mut ways: Vec<_> = self.present(counters).into_iter().map(way).collect();
        let title = format!("{load}, {} events at {} per second", flow.events, flow.rate);
        side_by_side(report, id, &title, rounds, &columns(), &mut ways)
    }
}

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let others =
        [COLLECTD, Counter::Collectd(Protocol::SetsAndCounters), Counter::Statsd(Protocol::Sets)];
    let stores = [MEMORY_STORE, SETS, LOG];
    let all = [&others[..], &stores, &[Counter::Receiving]].concat();
    let events = if report.is_quick() { QUICK_EVENTS } else { BASE.events };
    let bench = Bench {
        counters: all.iter().copied().filter(|counter| counter.is_there()).collect(),
        base: Flow { events, ..BASE },
    };
    let base = bench.base;
    let few = bench.side_by_side(report, ("peers-50", "50 series"), ROUNDS, base, &all)?;
    let flow = Flow { series: 5_000, ..base };
    let counters = [&others[..], &stores].concat();
    let many = ("peers-5000", "5 000 series");
    let many = bench.side_by_side(report, many, ROUNDS, flow, &counters)?;
    let flow = Flow { lines: 1, ..base };
    let counters = [&[Counter::Receiving, COLLECTD], &stores[..]].concat();
    let one_line = ("peers-1-line", "One line per datagram");
    let one_line = bench.side_by_side(report, one_line, ROUNDS, flow, &counters)?;
    let counters = [&[COLLECTD], &stores[..]].concat();
    let mut users = Vec::new();
    for (id, load, users_each) in [
        ("peers-1000-users", "1 000 users per series", 1_000),
        ("peers-1000000-users", "1 000 000 users per series", 1_000_000),
    ] {
        let flow = Flow { users: users_each, ..base };
        users.push(bench.side_by_side(report, (id, load), 1, flow, &counters)?);
    }
    let groups = [("50 series", &few), ("5 000 series", &many)];
    let title = "CPU seconds per million events";
    report.plot("peers", plot::bars(title, &groups, &bench.counters));
    growth::series(report, &bench, &few, &many)?;
    growth::bytes(report, &few, &users[1]);
    limits::redis(report)?;
    let limits = limits::Limits {
        highest: limits::highest(report, &bench)?,
        recovery: limits::recovery(report, &bench)?,
        idle: limits::idle(report, &bench)?,
    };
    targets::add(report, [&few, &many, &one_line, &users[1]], &limits);
    Ok(())
}
