//! The findings about relays. Pure.

use super::answer::{RelayStatus, Severity};
use super::findings::{ACKNOWLEDGE, Found, Rule, Scene, lost, silent};
use super::relay_report::RelayTotals;
use crate::node::LossCause;
use Severity::{Critical, Note, Warning};

/// What is wrong with each relay that this holds for.
fn relays(
    scene: &Scene<'_>,
    find: impl Fn(&RelayStatus) -> Option<(String, String)>,
) -> Vec<Found> {
    let live = scene.status.relays.iter().filter(|relay| !relay.silent);
    live.filter_map(|relay| {
        let (what, why) = find(relay)?;
        Some((format!("relay {}", relay.report.name), what, why, None))
    })
    .collect()
}

/// A count of the last minutes that should be 0.
fn recent(
    scene: &Scene<'_>,
    count: fn(&RelayTotals) -> u64,
    what: &str,
    why: impl Fn(&RelayStatus) -> String,
) -> Vec<Found> {
    relays(scene, |relay| {
        let (count, seconds) = (count(&relay.report.recent), relay.report.recent_seconds);
        (count > 0).then(|| {
            (
                format!("{count} {what} in the last {seconds} s"),
                why(relay),
            )
        })
    })
}

/// The last line that was sent nowhere for a reason like this.
fn example(relay: &RelayStatus, is_meant: impl Fn(&str) -> bool) -> String {
    let found = relay.report.unsent.iter().find(|it| is_meant(&it.reason));
    let Some(unsent) = found else {
        return "its log shows one of them".to_owned();
    };
    let source = unsent.source.as_ref();
    let source = source.map_or(String::new(), |source| format!(" from {source}"));
    format!("{}: {:?}{source}", unsent.reason, unsent.line)
}

fn is_rejection(reason: &str) -> bool {
    !["discarded", "looped"].contains(&reason)
}

pub(super) const REST_LOOP_REMEDY: &str =
    "name in rest.url of one of these relays the server that the lines are for";

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "relay-silent",
        severity: Critical,
        find: |scene| {
            let relays = scene.status.relays.iter().filter(|relay| relay.silent);
            silent(
                "relay",
                relays.map(|it| (&it.report.name, it.last_seen_seconds)),
            )
        },
        remedy: "look at its host: `systemctl status eds-relay`, `journalctl -u eds-relay`. What is sent to it meanwhile is lost",
    },
    Rule {
        id: "relay-loop",
        severity: Critical,
        find: |scene| {
            let why = |relay: &RelayStatus| {
                let example = example(relay, |reason| reason == "looped");
                format!("relays send to each other in a circle; {example}")
            };
            let events = recent(
                scene,
                |it| it.looped,
                "lines came back by other relays",
                why,
            );
            let rest = relays(scene, |relay| {
                let to = &relay.report.rest.to;
                let what =
                    format!("lines of the rest that it sends to {to} come back; it drops them");
                let why = "relays send the rest to each other in a circle";
                (relay.report.rest.is_loop).then(|| (what, why.to_owned()))
            });
            let rest = rest
                .into_iter()
                .map(|(place, what, why, _)| (place, what, why, Some(REST_LOOP_REMEDY.to_owned())));
            events.into_iter().chain(rest).collect()
        },
        remedy: "name only nodes in relay.to, or relays nearer to them: the relay at that source must not lead back to this one",
    },
    Rule {
        id: "relay-nowhere",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::RelayNowhere),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "relay-rest-drops",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::RelayRest),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "relay-kernel-drops",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::RelayKernelDrops),
        remedy: ACKNOWLEDGE,
    },
    Rule {
        id: "relay-fails",
        severity: Critical,
        find: |scene| {
            relays(scene, |relay| {
                let report = &relay.report;
                let failing = report.sockets_failing;
                if failing > 0 {
                    let what = format!("{failing} of its threads cannot read their socket");
                    return Some((what, "its log says which and why".to_owned()));
                }
                let what = || "makes no progress".to_owned();
                (!report.stalled.is_empty()).then(|| (what(), report.stalled.join(", ")))
            })
        },
        remedy: "look at its log, and restart it",
    },
    Rule {
        id: "relay-node-down",
        severity: Warning,
        find: |scene| {
            relays(scene, |relay| {
                let down = relay.report.to.iter().filter(|target| !target.up);
                let down: Vec<_> = down.map(|target| &*target.to).collect();
                let why = "it has no address, refuses, or cannot be reached; the other nodes get every event";
                (!down.is_empty()).then(|| {
                    (
                        format!("cannot send to {}", down.join(", ")),
                        why.to_owned(),
                    )
                })
            })
        },
        remedy: "start the node, or look at its address in relay.to and at the network between",
    },
    Rule {
        id: "relay-rest-down",
        severity: Warning,
        find: |scene| {
            relays(scene, |relay| {
                let rest = &relay.report.rest;
                let why = format!("{} lines wait for it, up to rest.queue_bytes", rest.queued);
                (!rest.up).then(|| (format!("cannot send the rest to {}", rest.to), why))
            })
        },
        remedy: "start the server, or look at rest.url and the network; what waits is sent when it is back",
    },
    Rule {
        id: "relay-rejects",
        severity: Warning,
        find: |scene| {
            recent(
                scene,
                |it| it.rejected,
                "lines rejected",
                |relay| example(relay, is_rejection),
            )
        },
        remedy: "have their sender write lines as docs/input.md has them; eds_relay_lines_rejected_total has every reason",
    },
    Rule {
        id: "relay-discards",
        severity: Warning,
        find: |scene| {
            let why = |relay: &RelayStatus| {
                let example = example(relay, |reason| reason == "discarded");
                format!("they are no events, and rest.url is none:; {example}")
            };
            recent(scene, |it| it.rest_discarded, "lines discarded", why)
        },
        remedy: "name in rest.url the server that they are for, or have their sender send them there",
    },
    Rule {
        id: "relay-name-taken",
        severity: Warning,
        find: |scene| {
            relays(scene, |relay| {
                let why = "what they report overwrites each other";
                let what = "another process uses its name";
                (relay.report.name_taken).then(|| (what.to_owned(), why.to_owned()))
            })
        },
        remedy: "give each relay a name of its own (node, EDS_NODE)",
    },
    Rule {
        id: "relay-report-unreadable",
        severity: Note,
        find: |scene| {
            relays(scene, |relay| {
                let what = "its report cannot be read in full";
                let why = "it is of another version, or no relay wrote it";
                (!relay.readable).then(|| (what.to_owned(), why.to_owned()))
            })
        },
        remedy: "ask by its own version of eds, or look at its page at /",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::relay_page::status_of;
    use crate::status::{RelayReport, TargetReport, UnsentReport, findings};

    fn report() -> RelayReport {
        let place = |to: &str| TargetReport {
            to: to.to_owned(),
            up: true,
            ..TargetReport::default()
        };
        RelayReport {
            name: "east".to_owned(),
            to: vec![place("node-1:8094")],
            rest: place("none:"),
            recent_seconds: 300,
            ..RelayReport::default()
        }
    }

    /// The only finding, which must be this one.
    #[track_caller]
    fn check(change: impl FnOnce(&mut RelayReport), id: &str, severity: Severity, words: &[&str]) {
        let mut changed = report();
        change(&mut changed);
        let found = findings::of_relays(&status_of(String::new(), changed));
        let ids: Vec<_> = found.iter().map(|it| (it.id, it.severity)).collect();
        assert_eq!(ids, [(id, severity)]);
        let text = format!("{} {} {}", found[0].r#where, found[0].what, found[0].why);
        for word in ["relay east"].iter().chain(words) {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    fn unsent(reason: &str) -> Vec<UnsentReport> {
        let other = UnsentReport {
            reason: "other".to_owned(),
            ..UnsentReport::default()
        };
        let meant = UnsentReport {
            reason: reason.to_owned(),
            source: Some("10.0.0.9:4242".to_owned()),
            line: "gorets:1|c".to_owned(),
        };
        vec![meant, other]
    }

    #[test]
    fn relay_that_is_well_has_no_finding() {
        let found = findings::of_relays(&status_of(String::new(), report()));
        assert_eq!(found, []);
    }

    #[test]
    fn lines_that_a_relay_sends_nowhere_are_found_with_an_example() {
        let example = [
            "7 lines",
            "in the last 300 s",
            "gorets:1|c",
            "10.0.0.9:4242",
        ];
        check(
            |it| {
                it.recent.looped = 7;
                it.unsent = unsent("looped");
            },
            "relay-loop",
            Critical,
            &example,
        );
        check(
            |it| {
                it.recent.rejected = 7;
                it.unsent = unsent("quote_unclosed");
            },
            "relay-rejects",
            Warning,
            &example,
        );
        check(
            |it| {
                it.recent.rest_discarded = 7;
                it.unsent = unsent("discarded");
            },
            "relay-discards",
            Warning,
            &example,
        );
    }

    #[test]
    fn what_a_relay_loses_and_whom_it_cannot_reach_is_found() {
        check(
            |it| it.recent.nowhere = 7,
            "relay-nowhere",
            Critical,
            &["7 events"],
        );
        check(
            |it| it.recent.rest_dropped = 7,
            "relay-rest-drops",
            Critical,
            &["7 lines of the rest"],
        );
        check(
            |it| it.recent.kernel_drops = 7,
            "relay-kernel-drops",
            Critical,
            &["7 datagrams"],
        );
        check(
            |it| it.sockets_failing = 1,
            "relay-fails",
            Critical,
            &["1 of its threads"],
        );
        check(
            |it| it.stalled = vec!["reader 0".to_owned()],
            "relay-fails",
            Critical,
            &["reader 0"],
        );
        check(
            |it| it.to[0].up = false,
            "relay-node-down",
            Warning,
            &["node-1:8094"],
        );
        check(
            |it| it.rest.up = false,
            "relay-rest-down",
            Warning,
            &["none:"],
        );
        check(|it| it.name_taken = true, "relay-name-taken", Warning, &[]);
    }
}
