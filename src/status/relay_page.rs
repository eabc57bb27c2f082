//! [`relay_page`]: what a relay shows of itself at `/`, in the words of `eds status`.

use std::time::Duration;

use super::answer::{CauseStatus, Process, Status};
use super::losses::relay_losses;
use super::relay_report::RelayReport;
use super::{findings, table};

/// How wide the text is.
const WIDTH: usize = 100;

/// Returns what is wrong with a relay, as it reports itself, and its numbers.
#[must_use]
pub fn relay_page(at: String, report: RelayReport) -> String {
    let status = status_of(at, report);
    let findings = findings::of_relays(&status);
    let health = match findings.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let mut lines = vec![format!("eds relay: {health}, at {}", status.at)];
    lines.extend(table::findings(&findings, WIDTH));
    lines.push(String::new());
    lines.extend(table::relays(&status.relays, WIDTH));
    lines.push(String::new());
    lines.push("/healthz, /readyz and /metrics have the same for programs".to_owned());
    lines.join("\n") + "\n"
}

/// A status that knows one relay, with its losses of the last minutes, and nothing else.
pub(super) fn status_of(at: String, report: RelayReport) -> Status {
    let lost = relay_losses(&report.recent).into_iter();
    let losses = lost.filter(|(_, amount)| *amount > 0);
    let losses = losses.map(|(cause, amount)| CauseStatus {
        cause: cause.label().to_owned(),
        amount,
        nodes: vec![report.name.clone()],
        ..CauseStatus::default()
    });
    let losses = losses.collect();
    Status {
        at,
        relays: vec![Process::new(report, Duration::ZERO, true)],
        losses: Some(losses),
        ..Status::default()
    }
}
