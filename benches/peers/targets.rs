//! The performance targets of `eds`, compared with the results.

use super::limits::Limits;
use super::{ALL, BYTES, COLLECTD, Counter, LOG, MEMORY, MEMORY_STORE, OF_REDIS, SETS};
use crate::report::{Report, Table, digits, yes_or_no};

/// The value of a bound that a target does not have.
const WIDE: f64 = f64::NAN;
/// Maximum CPU seconds of Redis per million events with `log`, on a machine on which collectd takes 1.65 with 50 series and
/// 2.83 with 5,000. On a slower machine, the ratio shows whether the target is met.
const REDIS_SECONDS: f64 = 0.06;

/// Adds the table of targets before all others.
pub(crate) fn add(
    report: &mut Report,
    [few, many, one_line, many_users]: [&Table; 4],
    limits: &Limits,
) {
    let columns = [digits("measured"), digits("at most"), digits("at least"), yes_or_no("met")];
    let mut table = Table::new("targets", "Targets", &columns);
    let mut add = |target: &str, measured: f64, most: f64, least: f64| {
        let is_met = match measured {
            measured if measured.is_nan() => f64::NAN,
            // Comparisons with NaN are always false.
            measured => f64::from(!(measured > most || measured < least)),
        };
        table.row(target, [measured, most, least, is_met]);
    };
    // The ratios are relative to collectd, which is the first row if it is installed.
    let of_collectd = |table: &Table, counter: Counter| {
        let is_there = !table.get(COLLECTD.name(), ALL).is_nan();
        if is_there { table.get(counter.name(), "ratio") } else { WIDE }
    };
    for (counter, series, figures, most) in [
        (MEMORY_STORE, "50 series", few, 0.15),
        (MEMORY_STORE, "5 000 series", many, 0.18),
        (SETS, "50 series", few, 0.70),
        (SETS, "5 000 series", many, 0.70),
        (LOG, "50 series", few, 0.22),
        (LOG, "5 000 series", many, 0.16),
    ] {
        let target = format!("CPU of {} / CPU of {}, {series}", counter.name(), COLLECTD.name());
        add(&target, of_collectd(figures, counter), most, WIDE);
    }
    let log = LOG.name();
    for (series, figures, collectd_then) in [("50 series", few, 1.65), ("5 000 series", many, 2.83)]
    {
        let redis = figures.get(log, OF_REDIS);
        let target = format!("CPU of Redis with `log`, {series}");
        add(&format!("{target}, s per million events"), redis, REDIS_SECONDS, WIDE);
        let ratio = redis / figures.get(COLLECTD.name(), ALL);
        let most = REDIS_SECONDS / collectd_then;
        add(&format!("{target} / CPU of {}", COLLECTD.name()), ratio, most, WIDE);
    }
    let ratio = one_line.get(MEMORY_STORE.name(), "ratio");
    let bytes = many_users.get(log, BYTES);
    let memory = few.get(log, MEMORY).max(many.get(log, MEMORY));
    let highest = limits.highest.get(log, "events/s");
    let seconds = limits.recovery.get(log, "seconds");
    let recovered = limits.recovery.get(log, "MB of the node");
    #[rustfmt::skip]
    let others = [
        ("bytes in Redis per event and node with `log`, 1 000 000 users", bytes, 20.0, WIDE),
        ("memory of a node with `log`, including its queue, MB", memory, 150.0, WIDE),
        ("CPU of eds, memory / CPU of receiving alone, one line per datagram", ratio, 1.25, WIDE),
        ("highest rate without loss with `log`, events/s", highest, WIDE, 1.4e6),
        ("a minute of 10 000 000 events counted by a different node, `log`, s", seconds, 10.0, WIDE),
        ("memory of that node, MB", recovered, 1000.0, WIDE),
    ];
    for (target, measured, most, least) in others {
        add(target, measured, most, least);
    }
    for counter in [SETS, LOG] {
        let commands = limits.idle.get(counter.name(), "Redis commands/s");
        add(
            &format!("Redis commands per second and idle node, {}", counter.name()),
            commands,
            40.0,
            WIDE,
        );
    }
    report.add_first(table);
}
