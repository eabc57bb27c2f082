//! What grows with the load: the cost of an event with series and nodes, which must not, and the bytes in Redis, which must.

use super::{ALL, BYTES, Bench, COLLECTD, Counter, Figures, LOG, MEMORY_STORE, SETS, eds, plot};
use crate::report::{Report, Table, column};

const SERIES: [u32; 4] = [50, 500, 5_000, 50_000];
const NODES: [u32; 4] = [1, 2, 4, 8];
const MASTERS: usize = 3;
/// Of a minute.
const EVENTS: [f64; 5] = [1e4, 1e5, 1e6, 1e7, 1e8];

/// CPU time an event, by a number that grows. The ratios are to its first.
struct Growth {
    counters: Vec<Counter>,
    /// For each counter, by the growing quantity.
    costs: Vec<(u32, Vec<f64>)>,
}

impl Growth {
    fn report(&self, report: &mut Report, id: &str, title: &str, what: &str) {
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
            table.row(&format!("{number} {what}"), ratios.chain(costs.iter().copied()));
        }
        let lines: Vec<_> = names.enumerate().map(|(at, name)| (name, lines(at))).collect();
        report.add(table);
        report
            .plot(id, plot::lines(title, what, ("CPU seconds per million events", false), &lines));
    }
}

/// With the number of series. Two of the numbers are measured already.
pub(crate) fn series(
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
    let title = "CPU time an event, by the number of series";
    Growth { counters, costs }.report(report, "growth-series", title, "series");
    Ok(())
}

/// With the number of nodes, on a Redis Cluster: each brings as many events, or they share them.
pub(crate) fn nodes(report: &mut Report, bench: &Bench) -> anyhow::Result<()> {
    let most = NODES[NODES.len() - 1];
    for (id, what) in [
        ("growth-nodes", "nodes with as many events each"),
        ("growth-shared", "nodes that share the events"),
    ] {
        let counters = bench.present(&[SETS, LOG]);
        let mut costs = Vec::new();
        for number in NODES {
            let parts = if id == "growth-nodes" { number } else { most };
            let flow = super::Flow {
                events: bench.base.events / most * parts,
                rate: bench.base.rate / most * parts,
                ..bench.base
            };
            let of_counter = |counter: &Counter| {
                let Counter::Eds(store) = *counter else {
                    return Ok(f64::NAN);
                };
                let cluster = eds::Cluster::of(store, MASTERS);
                cost(eds::count_with(cluster, &flow, number as usize)?, &flow)
            };
            let of_all: anyhow::Result<Vec<f64>> = counters.iter().map(of_counter).collect();
            costs.push((number, of_all?));
        }
        let title = format!(
            "CPU time an event, by the number of {what}, on {MASTERS} masters of a Redis Cluster"
        );
        Growth { counters, costs }.report(report, id, &title, "nodes");
    }
    Ok(())
}

/// CPU seconds per million events.
fn cost(figures: Figures, flow: &super::Flow) -> anyhow::Result<f64> {
    figures.of(flow, 0).first().copied().ok_or_else(|| anyhow::anyhow!("no figures"))
}

/// The memory of Redis by the events of a minute, computed from the bytes per event.
pub(crate) fn bytes(report: &mut Report, few_users: &Table, many_users: &Table) {
    let ways: Vec<_> = [("10 000 users", few_users), ("1 000 000 users", many_users)]
        .into_iter()
        .flat_map(|(users, table)| {
            [SETS, LOG].map(|it| (format!("{}, {users}", it.name()), table.get(it.name(), BYTES)))
        })
        .filter(|(_, bytes)| !bytes.is_nan())
        .collect();
    let columns: Vec<_> = ways.iter().map(|(name, _)| column(&format!("{name}: MB"), 1)).collect();
    let title = "Memory of Redis for an open minute, reckoned by the bytes that an event took";
    let mut table = Table::new("growth-bytes", title, &columns);
    for events in EVENTS {
        table.row(
            &format!("{events:.0} events of one node"),
            ways.iter().map(|(_, bytes)| bytes * events / 1e6),
        );
    }
    report.add(table);
    let line = |(name, bytes): &(String, f64)| {
        (name.clone(), EVENTS.iter().map(|it| (*it, bytes * it / 1e6)).collect::<Vec<_>>())
    };
    let lines: Vec<_> = ways.iter().map(line).collect();
    let lines: Vec<_> =
        lines.iter().map(|(name, points)| (name.as_str(), points.clone())).collect();
    report.plot("growth-bytes", plot::lines(title, "events of a minute", ("MB", true), &lines));
}
