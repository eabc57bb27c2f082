//! Checks with the metrics of a real node and a real relay that each alert fires during its fault and stops soon afterwards.

use std::fmt::Write as _;

use testing::prelude::*;

use super::{path, texts, yaml};
use crate::world::World;

/// The minutes in which a fault begins and ends, and the length of the test.
const BEGINS: u32 = 30;
const ENDS: u32 = 150;
const LASTS_UNTIL: u32 = 210;

/// The time after the fault, in minutes, by which the alert must have stopped.
const OVER_AFTER: u32 = 11;

/// How a fault changes a series. All other series keep the values that were scraped.
enum Change {
    /// A gauge with one value before and after the fault, and a different value during the fault.
    Level(&'static str, &'static str),
    /// A counter that increases once, when the fault begins.
    Rises,
    /// The per-minute increase of a counter outside the fault, and during the fault.
    Rate(u32, u32),
    /// The series is missing during the fault.
    Missing,
}
use Change::{Level, Missing, Rate, Rises};

struct Fault {
    alert: &'static str,
    /// The minute in which the alert must fire.
    at: u32,
    /// For each changed series, its source, metric and labels, and the change.
    series: &'static [(Source, &'static str, &'static str, Change)],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Node,
    Other,
    Relay,
}
use Source::{Node, Other, Relay};

impl Source {
    const fn labels(self) -> &'static str {
        match self {
            Node => "job=\"eds\", instance=\"node\"",
            Other => "job=\"eds\", instance=\"other\"",
            Relay => "job=\"relay\", instance=\"relay\"",
        }
    }
}

/// An alert for a lasting condition still fires at the end of the fault.
const AT_THE_END: u32 = ENDS - 1;
/// An alert for a single event fires right after the event.
const AT_ONCE: u32 = BEGINS + 2;

const fn lasts(
    alert: &'static str,
    series: &'static [(Source, &'static str, &'static str, Change)],
) -> Fault {
    let at = AT_THE_END;
    Fault { alert, at, series }
}

const fn happens(
    alert: &'static str,
    series: &'static [(Source, &'static str, &'static str, Change)],
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
            (Node, "eds_events_by_http_total", "", Rate(0, 0)),
            (Other, "eds_events_recorded_total", "", Rate(600, 600)),
            (Other, "eds_events_repeated_total", "", Rate(300, 300)),
            (Other, "eds_events_seen_total", "", Rate(600, 600)),
            (Other, "eds_events_by_http_total", "", Rate(0, 0)),
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
    /// Returns the values of a series, one per minute, in promtool's notation.
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

/// The scraped value of each metric and labels.
type Run = BTreeMap<(String, String), String>;

/// Returns those series of a scrape that alerts use.
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

/// Returns whether the run contains this series. The name of an output or a node may differ.
fn is_reported(run: &Run, metric: &str, labels: &str) -> bool {
    let is_named = labels.starts_with("output=") || labels.starts_with("to=");
    run.keys().any(|(name, known)| {
        name == metric && (known == labels || is_named && names_of(known) == names_of(labels))
    })
}

/// Returns a promtool test with the series of the runs, changed by the fault.
fn unit_test(fault: &Fault, runs: &[(Source, Run)]) -> String {
    let mut text = format!("  - name: {}\n    interval: 1m\n    input_series:\n", fault.alert);
    let mut add = |source: Source, metric: &str, labels: &str, values: &str| {
        let comma = if labels.is_empty() { "" } else { ", " };
        let own = source.labels();
        writeln!(
            text,
            "      - {{ series: '{metric}{{{own}{comma}{labels}}}', values: '{values}' }}"
        )
        .unwrap();
    };
    for (source, run) in runs {
        for ((metric, labels), value) in run {
            let mut changed = fault.series.iter();
            let is_changed = changed
                .any(|change| change.0 == *source && change.1 == metric && change.2 == labels);
            if !is_changed {
                add(*source, metric, labels, &format!("{value}+0x{LASTS_UNTIL}"));
            }
        }
    }
    for (source, metric, labels, change) in fault.series {
        let run = runs.iter().find(|(candidate, _)| candidate == source);
        let run = &run.expect("every source has a run").1;
        let known = *metric == "up" || is_reported(run, metric, labels);
        assert!(known, "no run contains {metric}{{{labels}}}");
        let value = run.get(&((*metric).to_owned(), (*labels).to_owned()));
        add(*source, metric, labels, &change.values(value.map_or("0", |value| value)));
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
    eventually("nothing is queued or unsent", SOON, || {
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
        |node: &crate::support::node::Node| series(&node.get("/metrics").unwrap().body, &looked_at);
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
        .expect("promtool from the Debian package prometheus");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{output:?}");
}
