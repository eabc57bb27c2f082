//! [`Notices`]: refused lines and losses of a process, for its log and its status.
//!
//! Each cause is logged at once, and then at most once a minute, with the number since the last time. The status shows the
//! last example of each cause. A cause is a label of a metric, so their number is fixed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use super::{Throttle, lock};
use crate::diagnosis::LossCause;
use crate::event::Rejection;

/// The minimum interval of log lines of one cause.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A reason to refuse lines.
pub trait Refusal: Copy + PartialEq {
    /// Returns its label in the metrics.
    fn label(self) -> &'static str;
    /// Returns the message for the log: the effect, the reason and the remedy.
    fn message(self) -> String;
}

impl Refusal for Rejection {
    fn label(self) -> &'static str {
        self.label()
    }

    fn message(self) -> String {
        let remedy = self.remedy();
        format!("rejected lines, which are not counted: {self}; {remedy}")
    }
}

/// A refused line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedLine<R> {
    /// The reason.
    pub reason: R,
    /// The source address that it claims, if known.
    pub source: Option<SocketAddr>,
    /// The beginning of the line, escaped.
    pub line: String,
}

/// The first refused line of each reason since the last [`Samples::take`].
#[derive(Debug)]
pub struct Samples<R>(Vec<RefusedLine<R>>);

impl<R> Default for Samples<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R: Refusal> Samples<R> {
    /// Keeps the line if it is the first one of its reason.
    pub fn add(&mut self, reason: R, source: Option<SocketAddr>, line: impl FnOnce() -> String) {
        if self.0.iter().all(|sample| sample.reason != reason) {
            self.0.push(RefusedLine { reason, source, line: line() });
        }
    }

    /// Takes the samples.
    pub fn take(&mut self) -> Vec<RefusedLine<R>> {
        std::mem::take(&mut self.0)
    }
}

/// Refused lines and losses by cause.
#[derive(Debug, Default)]
pub struct Notices(Mutex<BTreeMap<&'static str, Notice>>);

#[derive(Debug)]
struct Notice {
    due: Throttle,
    /// The total that was logged last.
    logged: u64,
    example: Option<Example>,
}

/// The last refused line of a cause.
#[derive(Debug, Clone)]
pub struct Example {
    /// The source address that it claims, if known.
    pub source: Option<SocketAddr>,
    /// The beginning of the line, escaped.
    pub line: String,
}

impl Default for Notice {
    fn default() -> Self {
        Self { due: Throttle::new(LOG_INTERVAL), logged: 0, example: None }
    }
}

impl Notices {
    /// Returns the increase of `total` since the cause was last logged, if there is one and the cause is due.
    pub fn due(&self, cause: &'static str, total: u64) -> Option<u64> {
        let mut all = lock(&self.0);
        let notice = all.entry(cause).or_default();
        let new = total.saturating_sub(notice.logged);
        (new > 0 && notice.due.is_due()).then(|| {
            notice.logged = total;
            new
        })
    }

    /// Returns the last example of each cause that has one.
    #[must_use]
    pub fn examples(&self) -> BTreeMap<&'static str, Example> {
        let all = lock(&self.0);
        all.iter().filter_map(|(cause, notice)| Some((*cause, notice.example.clone()?))).collect()
    }

    /// Keeps a line as the example of its reason, and logs it if due; `total` lines were refused for that reason.
    pub fn refused<R: Refusal>(&self, sample: RefusedLine<R>, total: u64) {
        let RefusedLine { reason, source, line } = sample;
        let (label, shown) = (reason.label(), source.map(tracing::field::display));
        if let Some(lines) = self.due(label, total) {
            let message = reason.message();
            tracing::warn!(reason = label, lines, source = shown, line, "{message}");
        } else {
            tracing::debug!(reason = label, source = shown, line, "refused a line");
        }
        lock(&self.0).entry(label).or_default().example = Some(Example { source, line });
    }

    /// Logs a loss if due; `total` were lost for this cause. Must be called repeatedly, also without new losses.
    pub fn lost(&self, cause: LossCause, total: u64) {
        if let Some(amount) = self.due(cause.label(), total) {
            let reason = cause.label();
            tracing::error!(reason, amount, "{cause}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_cause_is_due_once_a_minute_with_all_since() {
        let notices = Notices::default();
        assert_eq!(notices.due("a", 0), None, "there is nothing to show");
        assert_eq!(notices.due("a", 3), Some(3));
        assert_eq!(notices.due("b", 1), Some(1));
        assert_eq!(notices.due("a", 9), None);
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(notices.due("a", 10), Some(7));
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(notices.due("a", 10), None, "there are no more");
    }

    #[test]
    fn last_example_of_each_reason_is_kept() {
        let notices = Notices::default();
        for (reason, line) in [
            (Rejection::TagsMissing, "first"),
            (Rejection::UserMissing, "other"),
            (Rejection::TagsMissing, "last"),
        ] {
            notices.refused(RefusedLine { reason, source: None, line: line.to_owned() }, 1);
        }
        let examples = notices.examples();
        assert_eq!(examples.len(), 2, "{examples:?}");
        assert_eq!(examples["tags_missing"].line, "last");
        assert_eq!(examples["user_missing"].line, "other");
    }
}
