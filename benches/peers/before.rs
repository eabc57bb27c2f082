//! Measures other builds of `eds` and this one in turn. The environment variable `EDS_BENCH_BEFORE` contains the paths of the
//! other builds, separated by colons, and `EDS_BENCH_LOADS`, if set, lists the loads to measure, separated by spaces.

use anyhow::Context as _;

use super::eds::{Cluster, Keys, Store, count_with};
use super::{BASE, Flow, QUICK_EVENTS, columns, rollups};
use crate::measure::{Way, side_by_side};
use crate::report::Report;

const ROUNDS: usize = 3;
const MEMORY: Store = Store::Memory;
const SETS: Store = Store::Redis("sets");
const LOG: Store = Store::Redis("log");
const MANY: Flow = Flow { series: 5_000, ..BASE };
const MOST: Flow = Flow { series: 50_000, ..BASE };
const REQUESTS: Flow = Flow { lines: 5_000, clients: 1, ..BASE };

/// The name, the store, the rollups and the load of each measurement.
const LOADS: [(&str, Store, &[Keys], Flow); 13] = [
    ("memory-50", MEMORY, &[], BASE),
    ("memory-5000", MEMORY, &[], MANY),
    ("memory-50000", MEMORY, &[], MOST),
    ("sets-50", SETS, &[], BASE),
    ("sets-5000", SETS, &[], MANY),
    ("sets-50000", SETS, &[], MOST),
    ("sets-5000-rollup", SETS, &[rollups::ALL[0]], MANY),
    ("sets-requests", SETS, &[], REQUESTS),
    ("log-50", LOG, &[], BASE),
    ("log-5000", LOG, &[], MANY),
    ("log-50000", LOG, &[], MOST),
    ("log-5000-rollup", LOG, &[rollups::ALL[0]], MANY),
    ("log-requests", LOG, &[], REQUESTS),
];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let Some(before) = std::env::var_os("EDS_BENCH_BEFORE") else {
        println!("leaving out other builds: EDS_BENCH_BEFORE is not set");
        return Ok(());
    };
    let mut builds = Vec::new();
    for path in std::env::split_paths(&before) {
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        builds.push((path.display().to_string(), Some(path)));
    }
    builds.push(("this build".to_owned(), None));
    let wanted = std::env::var("EDS_BENCH_LOADS").unwrap_or_default();
    let wanted: Vec<_> = wanted.split_whitespace().collect();
    for (load, store, rollups, flow) in LOADS {
        if !wanted.is_empty() && !wanted.contains(&load) {
            continue;
        }
        let events = if report.is_quick() { QUICK_EVENTS } else { flow.events };
        let flow = Flow { events, ..flow };
        let users = flow.users_of_all();
        let way = |(name, binary)| Way {
            name,
            run: Box::new(move || {
                let mut cluster = Cluster::of(store, 1);
                cluster.rollups = rollups;
                cluster.binary.clone_from(binary);
                Ok(count_with(cluster, &flow, 1)?.of(&flow, users))
            }),
        };
        let mut ways: Vec<_> = builds.iter().map(|(name, binary)| way((name, binary))).collect();
        let (id, title) = (format!("before-{load}"), format!("Builds, {load}"));
        side_by_side(report, &id, &title, ROUNDS, &columns(), &mut ways)?;
    }
    Ok(())
}
