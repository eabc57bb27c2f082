//! What is wrong with relays. Pure.

use super::answer::RelayStatus;
use super::node_findings::silent;
use super::scene::Scene;
use crate::diagnosis::{Cause, Diagnosis};

pub(super) fn of(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let of_relay = |relay: &RelayStatus| {
        let found = if relay.silent {
            vec![silent(Cause::RelaySilent, relay.last_seen_seconds)]
        } else {
            let mut found = of_lines(relay);
            found.extend(of_process(relay));
            found
        };
        let place = format!("relay {}", relay.report.name);
        found.into_iter().map(move |it| it.at(&place))
    };
    scene.status.relays.iter().flat_map(of_relay).collect()
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

/// Lines that a relay sends nowhere.
fn of_lines(relay: &RelayStatus) -> Vec<Diagnosis> {
    let (report, mut found) = (&relay.report, Vec::new());
    let (recent, seconds) = (&report.recent, report.recent_seconds);
    let mut count = |cause, lines: u64, what: &str, why: String| {
        if lines > 0 {
            let what = format!("{lines} {what} in the last {seconds} s");
            found.push(Diagnosis::new(cause, why).what(what));
        }
    };
    let looped = example(relay, |reason| reason == "looped");
    let looped = format!("relays send to each other in a circle; {looped}");
    count(Cause::RelayLoop, recent.looped, "lines came back by other relays", looped);
    let rejected = example(relay, |reason| !["discarded", "looped"].contains(&reason));
    count(Cause::RelayRejects, recent.rejected, "lines rejected", rejected);
    let discarded = example(relay, |reason| reason == "discarded");
    let discarded = format!("they are no events, and rest.url is none:; {discarded}");
    count(Cause::RelayDiscards, recent.rest_discarded, "lines discarded", discarded);
    let to = &report.rest.to;
    if report.rest.is_loop {
        let what = format!("lines of the rest that it sends to {to} come back; it drops them");
        let why = "relays send the rest to each other in a circle";
        found.push(Diagnosis::new(Cause::RelayRestLoop, why).what(what));
    }
    let down = report.to.iter().filter(|target| !target.up);
    let down: Vec<_> = down.map(|target| &*target.to).collect();
    if !down.is_empty() {
        let why =
            "it has no address, refuses, or cannot be reached; the other nodes get every event";
        let what = format!("cannot send to {}", down.join(", "));
        found.push(Diagnosis::new(Cause::RelayNodeDown, why).what(what));
    }
    if !report.rest.up {
        let why = format!("{} lines wait for it, up to rest.queue_bytes", report.rest.queued);
        let what = format!("{} to {to}", Cause::RelayRestDown.what());
        found.push(Diagnosis::new(Cause::RelayRestDown, why).what(what));
    }
    found
}

fn of_process(relay: &RelayStatus) -> Vec<Diagnosis> {
    let (report, mut found) = (&relay.report, Vec::new());
    if report.sockets_failing > 0 {
        let what = format!("{} of its threads cannot read their socket", report.sockets_failing);
        found.push(Diagnosis::new(Cause::RelayFails, "its log says which and why").what(what));
    } else if !report.stalled.is_empty() {
        let stalled = Diagnosis::new(Cause::RelayFails, report.stalled.join(", "));
        found.push(stalled.what("makes no progress"));
    }
    if report.name_taken {
        let why = "what they report overwrites each other";
        found.push(Diagnosis::new(Cause::RelayNameTaken, why));
    }
    if !relay.readable {
        let why = "it is of another version, or no relay wrote it";
        found.push(Diagnosis::new(Cause::RelayReportUnreadable, why));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::diagnosis::Severity::{self, Critical, Warning};
    use crate::status::relay_page::status_of;
    use crate::status::{RelayReport, TargetReport, UnsentReport, findings};

    fn report() -> RelayReport {
        let place =
            |to: &str| TargetReport { to: to.to_owned(), up: true, ..TargetReport::default() };
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
        let ids: Vec<_> = found.iter().map(|it| (it.cause.id(), it.cause.severity())).collect();
        assert_eq!(ids, [(id, severity)]);
        let text = format!("{} {} {}", found[0].r#where, found[0].what, found[0].why);
        for word in ["relay east"].iter().chain(words) {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    fn unsent(reason: &str) -> Vec<UnsentReport> {
        let other = UnsentReport { reason: "other".to_owned(), ..UnsentReport::default() };
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
        let example = ["7 lines", "in the last 300 s", "gorets:1|c", "10.0.0.9:4242"];
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
        check(|it| it.recent.nowhere = 7, "relay-nowhere", Critical, &["7 events"]);
        check(
            |it| it.recent.rest_dropped = 7,
            "relay-rest-drops",
            Critical,
            &["7 lines of the rest"],
        );
        check(|it| it.recent.kernel_drops = 7, "relay-kernel-drops", Critical, &["7 datagrams"]);
        check(|it| it.sockets_failing = 1, "relay-fails", Critical, &["1 of its threads"]);
        check(
            |it| it.stalled = vec!["reader 0".to_owned()],
            "relay-fails",
            Critical,
            &["reader 0"],
        );
        check(|it| it.to[0].up = false, "relay-node-down", Warning, &["node-1:8094"]);
        check(|it| it.rest.up = false, "relay-rest-down", Warning, &["none:"]);
        check(|it| it.name_taken = true, "relay-name-taken", Warning, &[]);
    }
}
