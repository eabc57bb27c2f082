//! Measures what nodes cost at rest and under a load that they share, on the masters of a Redis Cluster. `docs/scale.md` derives
//! its model from these values.

use std::thread;
use std::time::Duration;

use super::eds::{Cluster, Store, count_with};
use super::{BASE, Flow, QUICK_EVENTS, columns};
use crate::measure::{float, peak_memory_mb};
use crate::report::{Report, Table, column};

const MASTERS: usize = 3;
/// The numbers of nodes, and the events per second that they share.
const POINTS: [(u32, u32); 6] =
    [(1, 20_000), (8, 20_000), (32, 20_000), (1, 100_000), (8, 100_000), (32, 100_000)];
const SECONDS: u32 = 10;
/// How long nodes look for more after they have closed a minute.
const UNTIL_REST: Duration = Duration::from_secs(12);
const REST: Duration = Duration::from_secs(15);

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let masters = float(MASTERS as u64);
    for (id, layout) in [("scale-sets", "sets"), ("scale-log", "log")] {
        let title = format!("Nodes that share a load, `{layout}`, {MASTERS} masters, 50 series");
        let columns = [
            column("at rest: ms/s of a node", 1),
            column("at rest: ms/s of a master", 1),
            column("at rest: commands/s to a master", 0),
            column("at rest: kB/s to and from a master", 1),
            column("load: CPU s/M of all nodes", 3),
            column("load: CPU s/M of Redis", 3),
            column("load: commands/s to a master", 0),
            column("load: kB/s to and from a master", 0),
            column("MB of a node", 0),
        ];
        let mut table = Table::new(id, &title, &columns);
        for (nodes, rate) in POINTS {
            let events = if report.is_quick() { QUICK_EVENTS / 10 } else { SECONDS * rate };
            let flow = Flow { events, rate, ..BASE };
            let mut cluster = Cluster::of(Store::Redis(layout), MASTERS);
            let (fed, _) = cluster.feed(&flow, nodes as usize)?;
            cluster.wait_counted(events.into());
            thread::sleep(UNTIL_REST);
            let (traffic, cpu) = (cluster.traffic()?, cluster.cpu()?);
            thread::sleep(REST);
            let (rest, rest_cpu) = (cluster.traffic()?, cluster.cpu()?);
            let per_second = |after: f64, before: f64| (after - before) / REST.as_secs_f64();
            let of_load = |at: usize| fed.traffic[at] / fed.seconds / masters;
            let of_rest = |at: usize| per_second(rest[at], traffic[at]) / masters;
            let memory = cluster.nodes.iter().map(|node| peak_memory_mb(node.pid()));
            let memory = memory.collect::<Result<Vec<_>, _>>()?;
            let millions = f64::from(events) / 1e6;
            table.row(
                &format!("{nodes} nodes, {rate} events/s"),
                [
                    per_second(rest_cpu.0, cpu.0) * 1e3 / f64::from(nodes),
                    per_second(rest_cpu.1, cpu.1) * 1e3 / masters,
                    of_rest(0),
                    (of_rest(1) + of_rest(2)) / 1e3,
                    fed.cpu / millions,
                    fed.redis_cpu / millions,
                    of_load(0),
                    (of_load(1) + of_load(2)) / 1e3,
                    memory.into_iter().fold(0.0, f64::max),
                ],
            );
        }
        report.add(table);
    }
    Ok(())
}

/// Measures nodes that count a million series, with 3 events each, in a minute.
pub(crate) fn series(report: &mut Report) -> anyhow::Result<()> {
    const NODES: usize = 4;
    let series = if report.is_quick() { QUICK_EVENTS / 3 } else { 1_000_000 };
    let flow = Flow { series, events: 3 * series, rate: 100_000, ..BASE };
    let title =
        format!("{series} series, {} events, {NODES} nodes, {MASTERS} masters", flow.events);
    let mut table = Table::new("scale-series", &title, &columns());
    for layout in ["sets", "log"] {
        let cluster = Cluster::of(Store::Redis(layout), MASTERS);
        let figures = count_with(cluster, &flow, NODES)?;
        table.row(layout, figures.of(&flow, flow.users_of_all()));
    }
    report.add(table);
    Ok(())
}
