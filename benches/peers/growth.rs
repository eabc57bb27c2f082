//! Measures how the cost grows with the load: CPU time per event, which should not grow with the number of series or nodes,
//! and memory of Redis, which is proportional to the number of events.

use std::time::Duration;

use anyhow::ensure;
use rustix::thread::CpuSet;

use super::{
    ALL, BASE, BYTES, Bench, COLLECTD, Counter, Figures, LOG, MEMORY_STORE, QUICK_EVENTS, SETS,
    eds, plot,
};
use crate::measure::{divided_cpus, median, on_cpus};
use crate::report::{Report, Table, column};

const SERIES: [u32; 4] = [50, 500, 5_000, 50_000];
const NODES: [u32; 4] = [1, 2, 4, 8];
const MASTERS: usize = 3;
/// The duration of a load that several nodes share, in seconds.
const SECONDS: u32 = 58;
const ROUNDS: usize = 3;
/// The time after which a started node no longer checks in at every partition in every round.
const UNTIL_REST: Duration = Duration::from_secs(24);
/// The numbers of events per minute.
const EVENTS: [f64; 5] = [1e4, 1e5, 1e6, 1e7, 1e8];

/// The CPU time per event for increasing numbers of series or nodes. Ratios are relative to the smallest number.
struct Growth {
    counters: Vec<Counter>,
    /// For each number of series or nodes, the cost with each counter.
    costs: Vec<(u32, Vec<f64>)>,
}

impl Growth {
    fn report(&self, report: &mut Report, id: &str, title: &str, quantity: &str) {
        let names = self.counters.iter().map(|counter| counter.name());
        let ratios = names.clone().map(|name| column(&format!("{name}: ratio"), 2));
        let costs = names.clone().map(|name| column(&format!("{name}: {ALL}"), 3));
        let mut table = Table::new(id, title, &ratios.chain(costs).collect::<Vec<_>>());
        let lines = |at: usize| {
            let points = self.costs.iter();
            points.map(move |(number, costs)| (f64::from(*number), costs[at])).collect()
        };
        for (number, costs) in &self.costs {
            let first = &self.costs[0].1;
            let ratios = costs.iter().zip(first).map(|(cost, first)| cost / first);
            table.row(&format!("{number} {quantity}"), ratios.chain(costs.iter().copied()));
        }
        let lines: Vec<_> = names.enumerate().map(|(at, name)| (name, lines(at))).collect();
        report.add(table);
        report.plot(
            id,
            plot::lines(title, quantity, ("CPU seconds per million events", false), &lines),
        );
    }
}

/// Measures growth with the number of series. `few` and `many` are the results for 50 and 5,000 series, which have already
/// been measured.
pub(super) fn series(
    report: &mut Report,
    bench: &Bench,
    few: &Table,
    many: &Table,
) -> anyhow::Result<()> {
    let counters = bench.present(&[COLLECTD, MEMORY_STORE, SETS, LOG]);
    let mut costs = Vec::new();
    for number in SERIES {
        let flow = super::Flow { series: number, ..bench.base };
        let cost = |counter: &Counter| match number {
            50 => Ok(few.get(counter.name(), ALL)),
            5_000 => Ok(many.get(counter.name(), ALL)),
            _ => cost(counter.count(&flow)?, &flow),
        };
        let of_all: anyhow::Result<Vec<f64>> = counters.iter().map(cost).collect();
        costs.push((number, of_all?));
    }
    let title = "CPU time per event, by number of series";
    Growth { counters, costs }.report(report, "growth-series", title, "series");
    Ok(())
}

/// Measures growth with the number of nodes that share a load, on a Redis Cluster. The load lasts for nearly a minute, so that
/// the costs of a node per minute have the same share as in practice: for closing the minute and, with `sets`, for adding each
/// user once. The load begins when the nodes are at rest, because what a node costs while it starts does not depend on the
/// load. The nodes and servers run on one CPU, so that they do not slow each other down, and the sender on another one,
/// so that datagrams are never in the cache of the CPU that reads them, as they are not if they come from other hosts.
pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let [senders, last] = divided_cpus()?;
    on_cpus(&last, || shared(report, senders))
}

fn shared(report: &mut Report, senders: CpuSet) -> anyhow::Result<()> {
    let (events, rounds) =
        if report.is_quick() { (QUICK_EVENTS, 1) } else { (BASE.rate * SECONDS, ROUNDS) };
    let flow = super::Flow { events, ..BASE };
    let stores = ["sets", "log"].map(eds::Store::Redis);
    let measure = |store, number: u32| {
        let mut cluster = eds::Cluster::of(store, MASTERS);
        (cluster.senders, cluster.rest) = (Some(senders), UNTIL_REST);
        let figures = eds::count_with(cluster, &flow, number as usize)?;
        ensure!(figures.events_lost == 0.0, "{} events were lost", figures.events_lost);
        cost(figures, &flow)
    };
    let mut costs = vec![[const { Vec::new() }; 2]; NODES.len()];
    for _ in 0..rounds {
        for (of_number, number) in costs.iter_mut().zip(NODES) {
            for (of_store, store) in of_number.iter_mut().zip(stores) {
                of_store.push(measure(store, number)?);
            }
        }
    }
    let medians =
        |of_number: [Vec<f64>; 2]| of_number.map(|costs| median(costs.into_iter())).to_vec();
    let costs = NODES.into_iter().zip(costs.into_iter().map(medians)).collect();
    let title = format!(
        "CPU time per event, by number of nodes that share 300 000 events per second for {SECONDS} s of a minute, on \
         {MASTERS} masters of a Redis Cluster (medians of {rounds} rounds)"
    );
    let counters = stores.map(Counter::Eds).to_vec();
    Growth { counters, costs }.report(report, "growth-shared", &title, "nodes");
    Ok(())
}

/// Returns the CPU seconds per million events.
fn cost(figures: Figures, flow: &super::Flow) -> anyhow::Result<f64> {
    figures.of(flow, 0).first().copied().ok_or_else(|| anyhow::anyhow!("no figures"))
}

/// Reports the memory of Redis for increasing numbers of events in a minute, computed from the bytes per event.
pub(crate) fn bytes(report: &mut Report, few_users: &Table, many_users: &Table) {
    let ways: Vec<_> = [("10 000 users", few_users), ("1 000 000 users", many_users)]
        .into_iter()
        .flat_map(|(users, table)| {
            [SETS, LOG].map(|counter| {
                (format!("{}, {users}", counter.name()), table.get(counter.name(), BYTES))
            })
        })
        .filter(|(_, bytes)| !bytes.is_nan())
        .collect();
    let columns: Vec<_> = ways.iter().map(|(name, _)| column(&format!("{name}: MB"), 1)).collect();
    let title = "Memory of Redis for an open minute, computed from the bytes per event";
    let mut table = Table::new("growth-bytes", title, &columns);
    for events in EVENTS {
        table.row(
            &format!("{events:.0} events of one node"),
            ways.iter().map(|(_, bytes)| bytes * events / 1e6),
        );
    }
    report.add(table);
    let line = |(name, bytes): &(String, f64)| {
        (
            name.clone(),
            EVENTS.iter().map(|events| (*events, bytes * events / 1e6)).collect::<Vec<_>>(),
        )
    };
    let lines: Vec<_> = ways.iter().map(line).collect();
    let lines: Vec<_> =
        lines.iter().map(|(name, points)| (name.as_str(), points.clone())).collect();
    report.plot("growth-bytes", plot::lines(title, "events of a minute", ("MB", true), &lines));
}
