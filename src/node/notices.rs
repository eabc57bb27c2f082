//! [`Notices`]: what a process refuses or loses, for its log and its status.
//!
//! The log shows each cause at once, and then once a minute at most, with the number since the line before. The status shows the
//! last example of each cause. A cause is a label of a metric, so there are only as many as the program names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Throttle;
use crate::diagnosis::LossCause;
use crate::event::Rejection;

/// How often the log shows one cause, at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A reason for which a process refuses lines.
pub trait Refusal: Copy + PartialEq {
    /// Returns its label in the metrics.
    fn label(self) -> &'static str;
    /// Returns what the log says of such lines: what happens to them, why, and what to do.
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

/// A line that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedLine<R> {
    /// Why it is refused.
    pub reason: R,
    /// The address that it claims to come from, if that is known.
    pub source: Option<SocketAddr>,
    /// Its beginning, escaped.
    pub line: String,
}

/// The first refused line of each reason since they were taken.
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
            let line = line();
            self.0.push(RefusedLine { reason, source, line });
        }
    }

    /// Takes them.
    pub fn take(&mut self) -> Vec<RefusedLine<R>> {
        std::mem::take(&mut self.0)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Notices(Mutex<BTreeMap<&'static str, Notice>>);

#[derive(Debug)]
struct Notice {
    due: Throttle,
    /// The total when the log showed it last.
    logged: u64,
    example: Option<Example>,
}

/// The last line that was refused for a cause.
#[derive(Debug, Clone)]
pub struct Example {
    /// The address that it claims to come from, if that is known.
    pub source: Option<SocketAddr>,
    /// Its beginning, escaped.
    pub line: String,
}

impl Default for Notice {
    fn default() -> Self {
        Self { due: Throttle::new(LOG_INTERVAL), logged: 0, example: None }
    }
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Notice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many were added to `total` since the log last showed this cause, if there are any and it is time to show it.
    pub fn due(&self, cause: &'static str, total: u64) -> Option<u64> {
        let mut all = self.lock();
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
        let all = self.lock();
        let examples = all.iter();
        let examples = examples.filter_map(|(cause, it)| Some((*cause, it.example.clone()?)));
        examples.collect()
    }

    /// Keeps a line as the example of its reason, and logs it if it is time; `total` lines were refused for it.
    pub fn refused<R: Refusal>(&self, sample: RefusedLine<R>, total: u64) {
        let RefusedLine { reason, source, line } = sample;
        let (label, shown) = (reason.label(), source.map(tracing::field::display));
        if let Some(lines) = self.due(label, total) {
            let message = reason.message();
            tracing::warn!(reason = label, lines, source = shown, line, "{message}");
        } else {
            tracing::debug!(reason = label, source = shown, line, "refused a line");
        }
        self.lock().entry(label).or_default().example = Some(Example { source, line });
    }

    /// Logs a loss, if it is time; `total` were lost for this cause. To be called also when no more are.
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
            let line = line.to_owned();
            let source = None;
            let sample = RefusedLine { reason, source, line };
            notices.refused(sample, 1);
        }
        let examples = notices.examples();
        assert_eq!(examples.len(), 2, "{examples:?}");
        assert_eq!(examples["tags_missing"].line, "last");
        assert_eq!(examples["user_missing"].line, "other");
    }
}
