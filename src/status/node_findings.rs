//! The findings about nodes. Pure.

use super::answer::{NodeStatus, Severity};
use super::findings::{ACKNOWLEDGE, Found, Rule, Scene, lost, percent, silent};
use super::observer::Expected;
use super::redis_findings;
use super::report::{RejectedReport, Totals};
use crate::event::Rejection;
use crate::node::{COINCIDING_MIN, LossCause, ROUNDED_MIN};
use Severity::{Critical, Note, Warning};

/// A node that saw a smaller share than this of what another saw loses events on the way.
const COVERAGE_MIN: f64 = 0.99;
/// A node that rejects a smaller share of its lines, in percent, is well.
const REJECTED_PERCENT_MIN: u64 = 1;
/// A node may have events that it cannot record for so long before it is said.
const LAG_SECONDS_MAX: u64 = 10;

/// What is wrong with each node that this holds for.
fn nodes(scene: &Scene<'_>, find: impl Fn(&NodeStatus) -> Option<(String, String)>) -> Vec<Found> {
    let live = scene.status.nodes.iter().filter(|node| !node.silent);
    live.filter_map(|node| {
        let (what, why) = find(node)?;
        Some((format!("node {}", node.report.name), what, why, None))
    })
    .collect()
}

/// A count of the last minutes that should be 0.
pub(super) fn recent(
    scene: &Scene<'_>,
    count: fn(&NodeStatus) -> u64,
    what: &str,
    why: &str,
) -> Vec<Found> {
    nodes(scene, |node| {
        let (count, seconds) = (count(node), node.report.recent_seconds);
        (count > 0).then(|| {
            (
                format!("{count} {what} in the last {seconds} s"),
                why.to_owned(),
            )
        })
    })
}

/// The nodes that reject lines, with the most frequent reason, an example and the remedy of that reason.
fn rejections(scene: &Scene<'_>, is_meant: fn(&NodeStatus) -> bool) -> Vec<Found> {
    let live = scene.status.nodes.iter().filter(|node| !node.silent);
    let rejecting = live.filter(|node| node.report.recent.rejected > 0 && is_meant(node));
    let found = rejecting.map(|node| {
        let report = &node.report;
        let Totals {
            received, rejected, ..
        } = report.recent;
        let what = format!(
            "rejects {rejected} of {received} lines ({} %) in the last {} s; they are not counted",
            percent(rejected, received),
            report.recent_seconds
        );
        let (mut why, mut remedy) = ("its log says why".to_owned(), None);
        if let Some(RejectedReport {
            reason,
            lines,
            example,
        }) = report.rejected.first()
        {
            let known = Rejection::labelled(reason);
            let words = known.map_or_else(String::new, |it| format!(", {it}"));
            why = format!("{lines} of them: {reason}{words}; the last one begins: {example}");
            remedy = known.map(|it| it.remedy().to_owned());
        }
        (format!("node {}", report.name), what, why, remedy)
    });
    found.collect()
}

/// Whether a node rejects so much that somebody should look at it.
pub(super) fn rejects_much(node: &NodeStatus) -> bool {
    let recent = &node.report.recent;
    recent.rejected > 0 && percent(recent.rejected, recent.received) >= REJECTED_PERCENT_MIN
}

fn others_version(scene: &Scene<'_>) -> Vec<Found> {
    let live = || scene.status.nodes.iter().filter(|node| !node.silent);
    let count = |version: &str| live().filter(|it| it.report.version == version).count();
    // What most run; of as many, the later.
    let most = live()
        .map(|it| it.report.version.as_str())
        .max_by_key(|version| (count(version), *version));
    nodes(scene, |node| {
        let version = node.report.version.as_str();
        let most = most.filter(|most| *most != version)?;
        Some((
            format!("runs version {version}"),
            format!("other nodes run {most}"),
        ))
    })
}

fn coarse_stamps(node: &NodeStatus) -> String {
    let found = node.report.coarse_stamps.clone();
    found.unwrap_or_else(|| "their sender's clock is too coarse".to_owned())
}

/// How far a clock may be off.
fn clock_ms_max(expected: &Expected) -> u64 {
    u64::try_from(expected.grace.as_millis() / 2)
        .unwrap_or(u64::MAX)
        .max(1)
}

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "node-silent",
        severity: Critical,
        find: |scene| {
            let nodes = scene.status.nodes.iter().filter(|node| node.silent);
            silent(
                "node",
                nodes.map(|it| (&it.report.name, it.last_seen_seconds)),
            )
        },
        remedy: "look at its host: `systemctl status eds`, `journalctl -u eds`. Other nodes take over its work; what only it receives is lost",
    },
    Rule {
        id: "node-stalled",
        severity: Critical,
        find: |scene| {
            nodes(scene, |node| {
                let stalled = &node.report.stalled;
                (!stalled.is_empty()).then(|| ("makes no progress".to_owned(), stalled.join(", ")))
            })
        },
        remedy: "see that its log is read: a thread that logs waits for a full pipe or a stopped terminal; else restart it, and keep its log for a report",
    },
    Rule {
        id: "node-cannot-record",
        severity: Critical,
        find: |scene| {
            // What is wrong with Redis for all is said there.
            let redis = scene.status.redis.iter().flat_map(|it| &it.servers);
            let mut redis = redis.map(redis_findings::is_well);
            if !redis.all(|is_well| is_well) {
                return Vec::new();
            }
            nodes(scene, |node| {
                let why = node.report.store_error.clone()?;
                Some(("cannot use the store; events wait in it".to_owned(), why))
            })
        },
        remedy: "do what the message says; look at the network between this node and Redis",
    },
    Rule {
        id: "node-settings",
        severity: Critical,
        find: |scene| {
            nodes(scene, |node| {
                let why = node.report.settings_error.clone()?;
                let what = "closes no minute and sends nothing; others do it, if there are any";
                Some((what.to_owned(), why))
            })
        },
        remedy: "do what the message says; `eds settings show`, on that host, prints what differs",
    },
    Rule {
        id: "node-drops",
        severity: Critical,
        find: |scene| lost(scene, |cause| matches!(cause, LossCause::Dropped(_))),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "kernel-drops",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::KernelDrops),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "socket-fails",
        severity: Critical,
        find: |scene| {
            nodes(scene, |node| {
                let failing = node.report.sockets_failing;
                let what = format!("{failing} of its threads cannot read their socket");
                (failing > 0).then(|| (what, "its log says which and why".to_owned()))
            })
        },
        remedy: "look at its log, and restart it",
    },
    Rule {
        id: "forgotten",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::Forgotten),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "unconfirmed",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::Unconfirmed),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "spool-fills",
        severity: Critical,
        find: |scene| {
            nodes(scene, |node| {
                let spool = &node.report.spool;
                let percent = percent(spool.bytes, spool.bytes_max);
                let why = format!("{} events wait on its disk", spool.events);
                (spool.bytes_max > 0 && percent >= 80)
                    .then(|| (format!("its spool is {percent} % full"), why))
            })
        },
        remedy: "bring the store back or relieve it; raise input.spool_max",
    },
    Rule {
        id: "rejects-lines",
        severity: Warning,
        find: |scene| rejections(scene, rejects_much),
        remedy: "have the senders write lines as docs/input.md has them",
    },
    Rule {
        id: "queue-fills",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let queue = &node.report.queue;
                let fill = percent(queue.events, queue.events_max)
                    .max(percent(queue.bytes, queue.bytes_max));
                let why = format!("{} events wait to be recorded", queue.events);
                (fill >= 50).then(|| (format!("its queue is {fill} % full"), why))
            })
        },
        remedy: "bring the store back or relieve it; raise input.queue_events and input.queue_bytes, or set input.spool_dir",
    },
    Rule {
        id: "node-lags",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let report = &node.report;
                let what = format!("cannot record all that comes, for {} s", report.lag_seconds);
                let why = format!(
                    "events of {} partitions wait, {} on disk; no minute of these closes",
                    report.partitions_lagging, report.spool.events
                );
                (report.lag_seconds > LAG_SECONDS_MAX).then_some((what, why))
            })
        },
        remedy: "bring the store back or relieve it; look at the network between this node and Redis",
    },
    Rule {
        id: "node-loses",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let share = node.coverage.filter(|share| *share < COVERAGE_MIN)?;
                // What it has not recorded yet it may have seen.
                let report = &node.report;
                let waits = report.lag_seconds > 0 || report.store_error.is_some();
                let what = format!(
                    "saw {:.1} % of the events that another node saw in the last minutes",
                    share * 100.0
                );
                (!waits).then(|| {
                    (
                        what,
                        "the path to it loses events, or it gets none, or it slept".to_owned(),
                    )
                })
            })
        },
        remedy: "look at the network and the relays before it, at eds_kernel_drops_total, and at /api/v1/coverage",
    },
    Rule {
        id: "clock",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let offset = node.report.clock_offset_ms?;
                let (side, off) = (
                    if offset > 0 { "behind" } else { "ahead of" },
                    offset.unsigned_abs(),
                );
                #[expect(clippy::cast_precision_loss, reason = "it is only shown")]
                let what = format!(
                    "its clock is {:.1} s {side} that of the store",
                    off as f64 / 1000.0
                );
                let why = "its stamps, and what it takes for too old, are off as much".to_owned();
                (off > clock_ms_max(scene.expected)).then_some((what, why))
            })
        },
        remedy: "look at the clocks of its host and of the store's: `chronyc tracking`, `timedatectl`",
    },
    Rule {
        id: "late",
        severity: Warning,
        find: |scene| lost(scene, |cause| cause == LossCause::Late),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "unstamped-copies",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let other = node.report.unstamped_copies_at.as_ref()?;
                let what = format!(
                    "lines without a timestamp come to it and to node {other} within a second"
                );
                let why = "each node gives them the time of their arrival, so a copy is another event and counts again";
                Some((what, why.to_owned()))
            })
        },
        remedy: "have the senders write a timestamp into each line, or send to eds relay, which does so before it copies a line (docs/input.md)",
    },
    Rule {
        id: "stamps-coincide",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let (found, seconds) = (node.report.recent.coinciding, node.report.recent_seconds);
                let what = format!(
                    "{found} events in the last {seconds} s had the series, user and timestamp of those before them, and count as one with them"
                );
                (found >= COINCIDING_MIN).then(|| (what, coarse_stamps(node)))
            })
        },
        remedy: "have the senders stamp in nanoseconds, or count up in the last digits of a coarse time (docs/input.md); where they are copies, nothing is wrong",
    },
    Rule {
        id: "stamps-rounded",
        severity: Note,
        find: |scene| {
            nodes(scene, |node| {
                let (found, seconds) = (node.report.recent.rounded, node.report.recent_seconds);
                let what = format!(
                    "{found} events in the last {seconds} s had whole milliseconds or seconds with zeros behind: those of a user in one series with the same one count as one"
                );
                let is_said = node.report.recent.coinciding >= COINCIDING_MIN;
                (found >= ROUNDED_MIN && !is_said).then(|| (what, coarse_stamps(node)))
            })
        },
        remedy: "have the senders stamp in nanoseconds, or count up in the last digits (docs/input.md); if they have no finer clock on purpose, set input.timestamp_precision",
    },
    Rule {
        id: "overflow",
        severity: Warning,
        find: |scene| {
            recent(
                scene,
                |node| node.report.recent.overflowed,
                "events counted under an overflow series",
                "there are more series than input.max_series_per_minute",
            )
        },
        remedy: "look for a tag with too many values (/api/v1/series); or raise input.max_series_per_minute, for all nodes by `eds settings apply`, and restart them",
    },
    Rule {
        id: "version",
        severity: Warning,
        find: others_version,
        remedy: "finish the upgrade, or go back: docs/upgrades.md",
    },
    Rule {
        id: "name-taken",
        severity: Warning,
        find: |scene| {
            nodes(scene, |node| {
                let found = (
                    "another process uses its name",
                    "what they report overwrites each other",
                );
                node.report
                    .name_taken
                    .then(|| (found.0.to_owned(), found.1.to_owned()))
            })
        },
        remedy: "give each node a name of its own (node, EDS_NODE)",
    },
    Rule {
        id: "rejects-few",
        severity: Note,
        find: |scene| rejections(scene, |node| !rejects_much(node)),
        remedy: "have the senders write lines as docs/input.md has them",
    },
    Rule {
        id: "report-unreadable",
        severity: Note,
        find: |scene| {
            nodes(scene, |node| {
                let why = "it is of another version, or no node wrote it";
                (!node.readable).then(|| {
                    (
                        "its report cannot be read in full".to_owned(),
                        why.to_owned(),
                    )
                })
            })
        },
        remedy: "ask by its own version of eds, or look at its /metrics",
    },
];
