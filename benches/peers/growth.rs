//! Measures how the cost grows with the load: CPU time per event, which should not grow with the number of series or nodes,
//! and memory of Redis, which is proportional to the number of events.

use std::time::Duration;

use anyhow::ensure;
use rustix::thread::CpuSet;

use super::{
    ALL, BASE, BYTES, Bench, COLLECTD, Counter, LOG, MEMORY_STORE, QUICK_EVENTS, SETS, columns,
    eds, plot,
};
use crate::measure::{Way, divided_cpus, on_cpus, side_by_side};
use crate::report::{Report, Table, column};

const SERIES: [u32; 4] = [50, 500, 5_000, 50_000];
const NODES: [(&str, usize); 4] = [("1 node", 1), ("2 nodes", 2), ("4 nodes", 4), ("8 nodes", 8)];
const MASTERS: usize = 3;
/// The duration of a load that several nodes share, in seconds.
const SECONDS: u32 = 58;
const ROUNDS: usize = 3;
/// The time after which a started node no longer checks in at every partition in every round.
const UNTIL_REST: Duration = Duration::from_secs(24);
/// The numbers of events per minute.
const EVENTS: [f64; 5] = [1e4, 1e5, 1e6, 1e7, 1e8];

/// Measures growth with the number of series. `few` and `many` are the results for 50 and 5,000 series, which have already
/// been measured.
pub(super) fn series(
    report: &mut Report,
    bench: &Bench,
    few: &Table,
    many: &Table,
) -> anyhow::Result<()> {
    let counters = bench.present(&[COLLECTD, MEMORY_STORE, SETS, LOG]);
    let id = "growth-series";
    let title = "CPU time per event, by number of series";
    let names = || counters.iter().map(|counter| counter.name());
    let ratios = names().map(|name| column(&format!("{name}: ratio"), 2));
    let columns = ratios.chain(names().map(|name| column(&format!("{name}: {ALL}"), 3)));
    let mut table = Table::new(id, title, &columns.collect::<Vec<_>>());
    let mut lines: Vec<_> = names().map(|name| (name, Vec::new())).collect();
    for number in SERIES {
        let flow = super::Flow { series: number, ..bench.base };
        let cost = |counter: &Counter| match number {
            50 => Ok(few.get(counter.name(), ALL)),
            5_000 => Ok(many.get(counter.name(), ALL)),
            _ => Ok(counter.count(&flow)?.of(&flow, 0)[0]),
        };
        let costs: Vec<f64> = counters.iter().map(cost).collect::<anyhow::Result<_>>()?;
        for ((_, points), cost) in lines.iter_mut().zip(&costs) {
            points.push((f64::from(number), *cost));
        }
        let ratios = lines.iter().map(|(_, points)| points[points.len() - 1].1 / points[0].1);
        table.row(&format!("{number} series"), ratios.chain(costs.iter().copied()));
    }
    report.add(table);
    let unit = ("CPU seconds per million events", false);
    report.plot(id, plot::lines(title, "series", unit, &lines));
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
    let events = if report.is_quick() { QUICK_EVENTS } else { BASE.rate * SECONDS };
    let flow = super::Flow { events, ..BASE };
    let columns = &columns()[..3];
    for (id, layout) in [("growth-sets", "sets"), ("growth-log", "log")] {
        let way = |(name, number)| {
            let run = move || {
                let mut cluster = eds::Cluster::of(eds::Store::Redis(layout), MASTERS);
                (cluster.senders, cluster.rest) = (Some(senders), UNTIL_REST);
                let figures = eds::count_with(cluster, &flow, number)?;
                ensure!(figures.events_lost == 0.0, "{} events were lost", figures.events_lost);
                Ok(figures.of(&flow, 0)[..columns.len()].to_vec())
            };
            Way { name, run: Box::new(run) }
        };
        let title = format!(
            "Nodes that share 300 000 events per second for {SECONDS} s of a minute, `{layout}`, {MASTERS} masters"
        );
        side_by_side(report, id, &title, ROUNDS, columns, &mut NODES.map(way))?;
    }
    Ok(())
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
