//! Each alert with the series that a real node and a real relay report: it fires with its fault, as long as the fault lasts,
//! and stops soon after it.

use std::fmt::Write as _;

use testing::prelude::*;

use super::{path, texts, yaml};
use crate::world::World;

/// The fault begins after 30 minutes and lasts for two hours.
const BEGINS: u32 = 30;
const ENDS: u32 = 150;
const LASTS_UNTIL: u32 = 210;

/// How long after the fault nothing may be left of the alert.
const OVER_AFTER: u32 = 11;

/// What happens to a series. Everything that has no fault stays as the run left it.
enum Change {
    /// A level, before and after the fault, and in it.
    Level(&'static str, &'static str),
    /// A counter that rises once, when the fault begins.
    Rises,
    /// A counter that rises each minute, by this outside the fault and by that in it.
    Rate(u32, u32),
    /// There is no such series in the fault.
    Missing,
}
use Change::{Level, Missing, Rate, Rises};

struct Fault {
    alert: &'static str,
    /// The minute in which the alert must fire.
    at: u32,
    /// Job and instance, metric, labels, and the changes of the value.
    series: &'static [(Of, &'static str, &'static str, Change)],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Node,
    Other,
    Relay,
}
use Of::{Node, Other, Relay};

impl Of {
    const fn labels(self) -> &'static str {
        match self {
            Node => "job=\"eds\", instance=\"node\"",
            Other => "job=\"eds\", instance=\"other\"",
            Relay => "job=\"relay\", instance=\"relay\"",
        }
    }
}

/// An alert on what lasts fires still at the end of it.
const AT_THE_END: u32 = ENDS - 1;
/// An alert on a single event has stopped by then.
const AT_ONCE: u32 = BEGINS + 2;

const fn lasts(
    alert: &'static str,
    series: &'static [(Of, &'static str, &'static str, Change)],
) -> Fault {
    let at = AT_THE_END;
    Fault { alert, at, series }
}

const fn happens(
    alert: &'static str,
    series: &'static [(Of, &'static str, &'static str, Change)],
) -> Fault {
    let at = AT_ONCE;
    Fault { alert, at, series }
}

const OUTPUT: &str = "output=\"default\"";

static FAULTS: &[Fault] = &[
    lasts("EdsNodeGone", &[(Node, "eds_store_up", "", Missing), (Node, "up", "", Level("1", "0"))]),
    lasts(
        "EdsLossUnacknowledged",
        &[(Node, "eds_losses_unacknowledged", "reason=\"queue_full\"", Level("0", "7"))],
    ),
    lasts(
        "EdsLinesRejected",
        &[
            (Node, "eds_events_received_total", "", Rate(1000, 1000)),
            (Node, "eds_events_rejected_total", "reason=\"user_missing\"", Rate(0, 1000)),
        ],
    ),
    happens("EdsCountsDiscarded", &[(Node, "eds_points_discarded_total", OUTPUT, Rises)]),
    happens(
        "EdsEventsDropped",
        &[(Node, "eds_events_dropped_total", "reason=\"spool_full\"", Rises)],
    ),
    happens("EdsKernelDrops", &[(Node, "eds_kernel_drops_total", "", Rises)]),
    happens("EdsStoreForgot", &[(Node, "eds_events_forgotten_total", "", Rises)]),
    lasts(
        "EdsCoverageLow",
        &[
            (Node, "eds_events_recorded_total", "", Rate(600, 540)),
            (Node, "eds_events_repeated_total", "", Rate(300, 240)),
            (Node, "eds_events_seen_total", "", Rate(600, 540)),
            (Other, "eds_events_recorded_total", "", Rate(600, 600)),
            (Other, "eds_events_repeated_total", "", Rate(300, 300)),
            (Other, "eds_events_seen_total", "", Rate(600, 600)),
        ],
    ),
    happens("EdsEventsLate", &[(Node, "eds_events_late_total", "", Rises)]),
    lasts("EdsCountsQuarantined", &[(Node, "eds_counts_quarantined", OUTPUT, Level("0", "3"))]),
    lasts(
        "EdsQuarantineFilling",
        &[(Node, "eds_counts_quarantined", OUTPUT, Level("0", "200000"))],
    ),
    happens(
        "EdsSeriesOverflow",
        &[(Node, "eds_events_overflowed_total", "reason=\"too_many_series\"", Rises)],
    ),
    lasts("EdsStoreDown", &[(Node, "eds_store_up", "", Level("1", "0"))]),
    lasts("EdsOutputDown", &[(Node, "eds_output_up", OUTPUT, Level("1", "0"))]),
    lasts(
        "EdsPublishingBehind",
        &[(Node, "eds_oldest_unsent_minute_age_seconds", OUTPUT, Level("20", "900"))],
    ),
    lasts(
        "EdsOutputForgotten",
        &[(Node, "eds_backlog_unsent", "output=\"removed\"", Level("0", "3"))],
    ),
    lasts("EdsListenerFailing", &[(Node, "eds_listeners_failing", "", Level("0", "1"))]),
    lasts("EdsListenersFull", &[(Node, "eds_listeners_full", "", Level("0", "1"))]),
    lasts("EdsQueueFilling", &[(Node, "eds_events_queued", "", Level("0", "900000"))]),
    lasts("EdsSpooling", &[(Node, "eds_spool_bytes", "", Level("0", "4096"))]),
    lasts("EdsClockOffset", &[(Node, "eds_clock_offset_seconds", "", Level("0", "-3"))]),
    lasts("EdsSettingsDiffer", &[(Node, "eds_settings_differ", "", Level("0", "1"))]),
    lasts("EdsNameTaken", &[(Node, "eds_name_taken", "", Level("0", "1"))]),
    lasts(
        "EdsRelayGone",
        &[(Relay, "eds_relay_listeners_failing", "", Missing), (Relay, "up", "", Level("1", "0"))],
    ),
    happens("EdsRelayKernelDrops", &[(Relay, "eds_relay_kernel_drops_total", "", Rises)]),
    happens("EdsRelayEventsNowhere", &[(Relay, "eds_relay_events_nowhere_total", "", Rises)]),
    happens("EdsRelayLoop", &[(Relay, "eds_relay_lines_looped_total", "", Rises)]),
    happens(
        "EdsRelayRejects",
        &[(Relay, "eds_relay_lines_rejected_total", "reason=\"truncated\"", Rises)],
    ),
    happens(
        "EdsRelayDiscards",
        &[(Relay, "eds_relay_passthrough_dropped_total", "reason=\"discarded\"", Rises)],
    ),
    happens(
        "EdsRelayPassthroughDropped",
        &[(Relay, "eds_relay_passthrough_dropped_total", "reason=\"refused\"", Rises)],
    ),
    lasts(
        "EdsRelayNodeDown",
        &[(Relay, "eds_relay_node_up", "to=\"other:8094\"", Level("1", "0"))],
    ),
    lasts(
        "EdsRelayListenerFailing",
        &[(Relay, "eds_relay_listeners_failing", "", Level("0", "1"))],
    ),
];

impl Change {
    /// The values of a series in the notation of promtool, one a minute.
    fn values(&self, from: &str) -> String {
        let [before, fault, after] = [BEGINS - 1, ENDS - BEGINS - 1, LASTS_UNTIL - ENDS];
        match self {
            Level(well, bad) => format!("{well}+0x{before} {bad}+0x{fault} {well}+0x{after}"),
            Rises => format!("7+0x{before} 12+0x{}", LASTS_UNTIL - BEGINS),
            Rate(well, bad) => {
                let began = u64::from(BEGINS * well);
                let ended = began + u64::from((ENDS - BEGINS) * bad);
                format!("0+{well}x{before} {began}+{bad}x{fault} {ended}+{well}x{after}")
            }
            Missing => format!("{from}+0x{before} stale _x{fault} {from}+0x{after}"),
        }
    }
}

/// The series of a run: metric and labels, and the value.
type Run = BTreeMap<(String, String), String>;

/// Returns the series of a scrape that alerts use: metric, labels, value.
fn series(scrape: &str, looked_at: &BTreeSet<&str>) -> Run {
    let samples = scrape.lines().filter(|line| !line.starts_with('#'));
    let series = samples.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let (metric, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        let key = (metric.to_owned(), labels.to_owned());
        looked_at.contains(metric).then(|| (key, value.to_owned()))
    });
    series.collect()
}

fn names_of(labels: &str) -> Vec<&str> {
    let labels = labels.split(',').filter_map(|label| label.split('=').next());
    labels.collect()
}

/// Returns whether the run reports such a series, under any name of an output or node.
fn is_reported(run: &Run, metric: &str, labels: &str) -> bool {
    let is_named = labels.starts_with("output=") || labels.starts_with("to=");
    run.keys().any(|(name, known)| {
        name == metric && (known == labels || is_named && names_of(known) == names_of(labels))
    })
}

/// A test of promtool: the series of the run, with the fault in it.
fn unit_test(fault: &Fault, runs: &[(Of, Run)]) -> String {
    let mut text = format!("  - name: {}\n    interval: 1m\n    input_series:\n", fault.alert);
    let mut add = |of: Of, metric: &str, labels: &str, values: &str| {
        let comma = if labels.is_empty() { "" } else { ", " };
        let own = of.labels();
        writeln!(
            text,
            "      - {{ series: '{metric}{{{own}{comma}{labels}}}', values: '{values}' }}"
        )
        .unwrap();
    };
    for (of, run) in runs {
        for ((metric, labels), value) in run {
            let mut changed = fault.series.iter();
            let is_changed = changed.any(|it| it.0 == *of && it.1 == metric && it.2 == labels);
            if !is_changed {
                add(*of, metric, labels, &format!("{value}+0x{LASTS_UNTIL}"));
            }
        }
    }
    for (of, metric, labels, change) in fault.series {
        let run = runs.iter().find(|(it, _)| it == of);
        let run = &run.expect("each has a run").1;
        let known = *metric == "up" || is_reported(run, metric, labels);
        assert!(known, "nothing reports {metric}{{{labels}}}");
        let value = run.get(&((*metric).to_owned(), (*labels).to_owned()));
        add(*of, metric, labels, &change.values(value.map_or("0", |it| it)));
    }
    text.push_str("    promql_expr_test:\n");
    let firing = format!(
        "{{exp_samples: [{{labels: '{{alertname=\"{}\"}}', value: 1}}], eval_time: {}m, expr: ",
        fault.alert, fault.at
    );
    let of_alert = format!("{{alertname=\"{}\", alertstate=\"firing\"}}", fault.alert);
    writeln!(text, "      - {firing}'count by(alertname) (ALERTS{of_alert})'}}").unwrap();
    for over in [BEGINS - 1, ENDS + OVER_AFTER, LASTS_UNTIL] {
        writeln!(
            text,
            "      - {{exp_samples: [], eval_time: {over}m, expr: 'count by(alertname, alertstate) (ALERTS)'}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn each_alert_fires_during_its_fault_and_resolves() {
    let alerts = &yaml("dashboards/alerts.yml")[0];
    let named: BTreeSet<_> = texts(alerts, "alert").into_iter().collect();
    let tried: BTreeSet<_> = FAULTS.iter().map(|fault| fault.alert).collect();
    assert_eq!(named, tried);

    let world = World::start();
    // The node has published minutes of yesterday, and reports its backlog periodically.
    eventually("nothing waits", SOON, || {
        let scrape = world.node.get("/metrics").unwrap().body;
        let of_metric = |line: &&str| line.starts_with("eds_oldest_unsent_minute_age_seconds{");
        let ages: Vec<_> = scrape.lines().filter(of_metric).collect();
        let is_over = |line: &&str| line.ends_with(" 0.0") || line.ends_with(" 0");
        when(ages.iter().all(is_over), format!("{ages:?}"))
    });
    let expressions = texts(alerts, "expr").join(" ");
    let words = expressions.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let looked_at: BTreeSet<_> = words.filter(|word| word.starts_with("eds_")).collect();
    let scrape =
        |it: &crate::support::node::Node| series(&it.get("/metrics").unwrap().body, &looked_at);
    let node = scrape(&world.node);
    let runs = [(Node, node.clone()), (Other, node), (Relay, scrape(&world.relay))];
    let rules = path("dashboards/alerts.yml");
    let mut file = format!("rule_files: [{}]\nevaluation_interval: 1m\ntests:\n", rules.display());
    for fault in FAULTS {
        file.push_str(&unit_test(fault, &runs));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lifecycle.test.yml");
    std::fs::write(&path, &file).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&path)
        .output()
        .expect("promtool, of Debian's package prometheus");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{output:?}");
}
