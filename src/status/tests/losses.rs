//! Findings about losses and rejected lines.

use super::*;
use crate::status::report::RejectedReport;

#[test]
fn loss_is_a_finding_until_acknowledged() {
    for (cause, id, severity, words) in [
        ("queue_full", "node-drops", Critical, ["queue overflowed", "input.queue_events"]),
        ("spool_full", "node-drops", Critical, ["the spool was full", "input.spool_max"]),
        (
            "spool_failed",
            "node-drops",
            Critical,
            ["disk that holds input.spool_dir", "or repair the disk"],
        ),
        ("shutdown", "node-drops", Critical, ["shut down before", "input.drain_timeout"]),
        ("kernel_drops", "kernel-drops", Critical, ["buffer was full", "input.receive_buffer"]),
        ("forgotten", "forgotten", Critical, ["earlier state", "min-replicas-to-write"]),
        ("unconfirmed", "unconfirmed", Critical, ["may be missing some", "append-only"]),
        ("discarded", "discarded", Critical, ["quarantine was full", "eds quarantine"]),
        ("late", "late", Warning, ["after their minute had closed", "flush.grace"]),
    ] {
        let key = format!("20161204:1118|{cause}|b#1");
        let losses = [(&*key, 5)];
        let finding = Seen::with_losses(&losses).finds(id, severity, &words);
        for word in ["node b", "5 ", "in the minute 20161204:1118", "eds loss acknowledge"] {
            let text = format!("{} {} {}", finding.r#where, finding.why, finding.remedy);
            assert!(text.contains(word), "{word:?} is missing from: {text}");
        }
        let lost = Seen::with_losses(&losses).status().is_anything_lost;
        let expected = if cause == "late" { Answer::Attention } else { Answer::Yes };
        assert_eq!(lost.answer, expected, "{}", lost.sentence);
        assert!(lost.sentence.contains(&format!("({cause})")), "{}", lost.sentence);
        let mut seen = Seen::with_losses(&losses);
        seen.losses[0].acknowledged = 5;
        let status = seen.status();
        assert!(status.healthy && status.findings.is_empty(), "{status:?}");
        assert_eq!(status.is_anything_lost.answer, Answer::No);
        assert_eq!(status.record.len(), 1, "the loss stays in the record");
    }
    Seen::with(|report| report.details.recent.overflowed = 1).finds(
        "overflow",
        Warning,
        &["max_series_per_minute"],
    );
}

#[test]
fn losses_of_one_cause_are_one_finding_with_all_nodes_and_minutes() {
    let seen = Seen::with_losses(&[
        ("20161204:1118|shutdown|a#1", 1),
        ("20161204:1120|shutdown|b#7", 2),
        ("20161204:1119|shutdown|b#9", 3),
        ("earlier|shutdown|", 4),
    ]);
    let words = ["nodes a, b", "10 events", "20161204:1118 to 20161204:1120"];
    seen.finds("node-drops", Critical, &words);
    // From a newer version.
    let unknown = Seen::with_losses(&[("20161204:1118|new_cause|b#1", 5)]).status();
    assert_eq!(unknown.is_anything_lost.answer, Answer::Yes);
}

#[test]
fn node_keeps_losses_missing_in_the_record() {
    let mut own = report();
    own.process.name = "a".to_owned();
    own.details.unrecorded = vec![Loss::of_key("20161204:1118|shutdown|a#1", 7).unwrap()];
    let unreachable = StoreError::unavailable("Connection refused");
    let seen = Surveyed::nothing("Redis at 127.0.0.1:6379".to_owned(), &unreachable);
    let status = summarize(now(), Some(own), &expected(), seen);
    assert_eq!(status.is_anything_lost.answer, Answer::Yes);
    assert_eq!(status.losses.unwrap()[0].amount, 7);
}

#[test]
fn rejected_lines_are_a_warning_when_they_are_many_and_a_note_when_few() {
    let rejecting = |rejected| {
        Seen::with(|report| {
            report.details.recent.received = 1000;
            report.details.recent.rejected = rejected;
            report.details.rejected = vec![RejectedReport {
                reason: "user_missing".to_owned(),
                lines: rejected,
                example: "page.views:1|c".to_owned(),
            }];
        })
    };
    let words = ["node b", "10 of 1000 lines (1%)", "page.views:1|c", "input.user_field"];
    rejecting(10).finds("rejects-lines", Warning, &words);
    let lost = rejecting(10).status().is_anything_lost;
    assert_eq!(lost.answer, Answer::Attention);
    assert!(lost.sentence.contains("10 of 1000"), "{}", lost.sentence);
    rejecting(9).finds("rejects-few", Note, &["9 of 1000", "page.views:1|c"]);
    assert_eq!(rejecting(9).status().is_anything_lost.answer, Answer::No);
    // A reason from a different version.
    let unknown = Seen::with(|report| {
        (report.details.recent.received, report.details.recent.rejected) = (1, 1);
        report.details.rejected =
            vec![RejectedReport { reason: "new".to_owned(), ..RejectedReport::default() }];
    });
    unknown.finds("rejects-lines", Warning, &["new", "docs/input.md"]);
}
