//! [`Notices`]: what a process refuses or drops, for its log and its status.
//!
//! The log shows each cause at once, and then once a minute at most, with the number since the line before. The status shows the
//! last example of each cause. A cause is a label of a metric, so there are only as many as the program names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{DropReason, Throttle};
use crate::event::Rejection;

/// How often the log shows one cause, at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A rejected line.
#[derive(Debug, PartialEq, Eq)]
pub struct RejectedLine {
    /// Why it was rejected.
    pub reason: Rejection,
    /// The address that it claims to come from, if that is known.
    pub source: Option<SocketAddr>,
    /// Its beginning, escaped.
    pub line: String,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Notices(Mutex<BTreeMap<&'static str, Notice>>);

#[derive(Debug)]
struct Notice {
    due: Throttle,
    /// The total when the log showed it last.
    logged: u64,
    example: String,
}

impl Default for Notice {
    fn default() -> Self {
        Self {
            due: Throttle::new(LOG_INTERVAL),
            logged: 0,
            example: String::new(),
        }
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

    /// Returns the last example of this cause; empty: there is none.
    #[must_use]
    pub fn example(&self, cause: &str) -> String {
        let all = self.lock();
        let notice = all.get(cause);
        notice.map(|it| it.example.clone()).unwrap_or_default()
    }

    /// Keeps a rejected line as the example of its reason, and logs it if it is time; `total` lines were rejected for it.
    pub fn rejected(&self, sample: RejectedLine, total: u64) {
        let RejectedLine {
            reason,
            source,
            line,
        } = sample;
        let (label, remedy) = (reason.label(), reason.remedy());
        let source = source.map(tracing::field::display);
        if let Some(lines) = self.due(label, total) {
            tracing::warn!(
                reason = label,
                lines,
                source,
                line,
                "rejected lines, which are not counted: {reason}; {remedy}"
            );
        } else {
            tracing::debug!(reason = label, source, line, "rejected a line: {reason}");
        }
        self.lock().entry(label).or_default().example = line;
    }

    /// Logs that events are dropped, if it is time; `total` were dropped for this reason. To be called also when no more are.
    pub fn dropped(&self, reason: DropReason, total: u64) {
        if let Some(events) = self.due(reason.label(), total) {
            tracing::error!(
                reason = reason.label(),
                events,
                "events are dropped, and lost unless another node has them: {}; {}",
                reason.cause(),
                reason.remedy()
            );
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
            let sample = RejectedLine {
                reason,
                source,
                line,
            };
            notices.rejected(sample, 1);
        }
        assert_eq!(notices.example("tags_missing"), "last");
        assert_eq!(notices.example("user_missing"), "other");
        assert_eq!(notices.example("not_utf8"), "");
    }
}
