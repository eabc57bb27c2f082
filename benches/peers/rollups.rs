//! Measures what rollups add to the CPU time of a node and of Redis, including the sealing of the minute and its addition to
//! the open windows. Sealing a window is not included.

use super::eds::{Cluster, Keys, Store, count_with};
use super::{BASE, Flow, QUICK_EVENTS, ROUNDS, columns};
use crate::measure::{Way, side_by_side};
use crate::report::Report;

/// The rollups of every measurement, in the order in which they are added.
pub(super) const ALL: [Keys; 3] = [
    &[("name", "hourly"), ("every", "1h")],
    &[("name", "daily"), ("every", "1day")],
    &[("name", "products"), ("every", "1day"), ("by", "[\"product\"]")],
];

const WAYS: [(&str, &[Keys]); 3] =
    [("no rollup", &[]), ("1 hour", &[ALL[0]]), ("1 hour, 1 day, 1 day by product", &ALL)];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let events = if report.is_quick() { QUICK_EVENTS } else { BASE.events };
    for (id, layout, series) in [
        ("rollups-sets-50", "sets", 50),
        ("rollups-sets-5000", "sets", 5_000),
        ("rollups-log-50", "log", 50),
        ("rollups-log-5000", "log", 5_000),
    ] {
        let flow = Flow { events, series, ..BASE };
        let users = flow.users_of_all();
        let way = |(name, rollups): (&'static str, &'static [Keys])| Way {
            name,
            run: Box::new(move || {
                let mut cluster = Cluster::of(Store::Redis(layout), 1);
                cluster.rollups = rollups;
                Ok(count_with(cluster, &flow, 1)?.of(&flow, users))
            }),
        };
        let title = format!("Rollups, `{layout}`, {series} series, {events} events");
        side_by_side(report, id, &title, ROUNDS, &columns(), &mut WAYS.map(way))?;
    }
    Ok(())
}
