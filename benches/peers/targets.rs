//! What is wanted of `eds`, beside what it is.

use super::limits::Limits;
use super::{ALL, BYTES, COLLECTD, Counter, LOG, MEMORY, MEMORY_STORE, OF_REDIS, SETS};
use crate::report::{Report, Table, digits, yes_or_no};

const WIDE: f64 = f64::NAN;

/// The table of targets, before all others.
pub(crate) fn add(report: &mut Report, [few, many, one, many_users]: [&Table; 4], limits: &Limits) {
    let columns = [
        digits("measured"),
        digits("at most"),
        digits("at least"),
        yes_or_no("met"),
    ];
    let mut table = Table::new("targets", "Targets", &columns);
    let mut add = |what: &str, measured: f64, most: f64, least: f64| {
        let is_met = match measured {
            measured if measured.is_nan() => f64::NAN,
            // A comparison with what is not a number is false.
            measured => f64::from(!(measured > most || measured < least)),
        };
        table.row(what, [measured, most, least, is_met]);
    };
    // The first row is that of collectd, unless that is missing.
    let of_collectd = |table: &Table, counter: Counter| {
        let is_there = !table.get(COLLECTD.name(), ALL).is_nan();
        if is_there {
            table.get(counter.name(), "ratio")
        } else {
            WIDE
        }
    };
    let third = 1.0 / 3.0;
    for (counter, series, of, most) in [
        (MEMORY_STORE, "50 series", few, 0.25),
        (MEMORY_STORE, "5 000 series", many, 0.25),
        (SETS, "50 series", few, 0.75),
        (SETS, "5 000 series", many, 0.75),
        (LOG, "50 series", few, third),
        (LOG, "5 000 series", many, 0.25),
    ] {
        let what = format!(
            "CPU of {} / CPU of {}, {series}",
            counter.name(),
            COLLECTD.name()
        );
        add(&what, of_collectd(of, counter), most, WIDE);
    }
    let log = LOG.name();
    for (series, of) in [("50 series", few), ("5 000 series", many)] {
        add(
            &format!("CPU of Redis with `log`, {series}, s per million events"),
            of.get(log, OF_REDIS),
            0.06,
            WIDE,
        );
    }
    add(
        "bytes of Redis an event and node with `log`, 1 000 000 users",
        many_users.get(log, BYTES),
        20.0,
        WIDE,
    );
    add(
        "memory of a node with `log`, its queue included, MB",
        few.get(log, MEMORY).max(many.get(log, MEMORY)),
        150.0,
        WIDE,
    );
    add(
        "CPU of eds, memory / CPU of receiving alone, one line a datagram",
        one.get(MEMORY_STORE.name(), "ratio"),
        1.25,
        WIDE,
    );
    add(
        "highest rate without loss with `log`, events/s",
        limits.highest.get(log, "events/s"),
        WIDE,
        1.4e6,
    );
    add(
        "a minute of 10 000 000 events counted by another node, `log`, s",
        limits.recovery.get(log, "seconds"),
        10.0,
        WIDE,
    );
    add(
        "memory of that node, MB",
        limits.recovery.get(log, "MB of the node"),
        1000.0,
        WIDE,
    );
    for counter in [SETS, LOG] {
        let commands = limits.idle.get(counter.name(), "Redis commands/s");
        add(
            &format!(
                "commands of Redis a second and node at rest, {}",
                counter.name()
            ),
            commands,
            40.0,
            WIDE,
        );
    }
    report.add_first(table);
}
