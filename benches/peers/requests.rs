//! Measures the cost of receiving events by HTTP instead of UDP, and the time clients wait for an answer.

use super::eds::{Cluster, Keys, Store, count_with};
use super::{ALL, BASE, Flow, OF_PROGRAM, OF_REDIS, QUICK_EVENTS};
use crate::measure::{Way, side_by_side};
use crate::report::{Report, column};

const ROUNDS: usize = 3;
/// Settings with which datagrams are recorded in transactions of as many events as for a request of 5,000 lines.
const AT_ONCE: Keys = &[("input.linger", "16ms"), ("input.linger_max", "16ms")];
/// A setting with which requests wait as long as datagrams.
const LINGERING: Keys = &[("input.http.linger", "1s")];
/// The name, events per second, lines per datagram or request, connections (0 for datagrams) and settings of each way.
const WAYS: [(&str, u32, usize, usize, Keys); 9] = [
    ("datagrams of 15 lines", BASE.rate, 15, 0, &[]),
    ("datagrams of 15 lines, linger of 16 ms", BASE.rate, 15, 0, AT_ONCE),
    ("requests of 5,000 lines, 1 client", BASE.rate, 5_000, 1, &[]),
    ("requests of 5,000 lines, 80 clients, linger of 1 s", BASE.rate, 5_000, 80, LINGERING),
    ("datagrams of 15 lines, 50,000 events/s", 50_000, 15, 0, &[]),
    ("requests of 5,000 lines, 1 client, 50,000 events/s", 50_000, 5_000, 1, &[]),
    (
        "requests of 5,000 lines, 16 clients, linger of 1 s, 50,000 events/s",
        50_000,
        5_000,
        16,
        LINGERING,
    ),
    ("datagrams of 15 lines, 10,000 events/s", 10_000, 15, 0, &[]),
    ("requests of 100 lines, 4 clients, 10,000 events/s", 10_000, 100, 4, &[]),
];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let is_quick = report.is_quick();
    for (id, layout) in [("requests-sets", "sets"), ("requests-log", "log")] {
        let way = |(name, rate, lines, clients, settings): (_, u32, _, _, _)| Way {
            name,
            run: Box::new(move || {
                let events = BASE.events / (BASE.rate / rate);
                let events = if is_quick { events.min(QUICK_EVENTS) } else { events };
                let flow = Flow { events, rate, lines, clients, ..BASE };
                let mut cluster = Cluster::of(Store::Redis(layout), 1);
                cluster.settings = settings;
                let figures = count_with(cluster, &flow, 1)?;
                let all = figures.of(&flow, flow.users_of_all());
                Ok([&all[..3], &figures.waits_ms, &all[4..5]].concat())
            }),
        };
        let columns = [
            column(ALL, 3),
            column(OF_PROGRAM, 3),
            column(OF_REDIS, 3),
            column("ms to the answer, median", 1),
            column("99%", 1),
            column("events lost, %", 2),
        ];
        let title = format!("UDP and HTTP, `{layout}`, 50 series");
        side_by_side(report, id, &title, ROUNDS, &columns, &mut WAYS.map(way))?;
    }
    Ok(())
}
