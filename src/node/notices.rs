//! [`Notices`]: rejected lines and losses of a process, for its log and its status. Each cause, identified by its label, is
//! logged immediately when it first occurs, and then at most once a minute, with the count since the last message.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Mutex;

use super::{Throttle, lock};
use crate::diagnosis::LossCause;
use crate::event::Rejection;

const EXAMPLE_BYTES: usize = 120;

/// An example of a rejected line.
#[derive(Debug, Clone)]
pub struct Example {
    /// The source address of the line, if known. The sender may have spoofed it.
    pub source: Option<SocketAddr>,
    /// The start of the line, escaped.
    pub line: String,
}

impl Example {
    pub(crate) fn new(source: Option<SocketAddr>, line: &[u8]) -> Self {
        Self { source, line: beginning(line).to_string() }
    }
}

/// Returns the start of a line or datagram, escaped for the log.
pub(crate) fn beginning(bytes: &[u8]) -> impl Display {
    bytes.get(..EXAMPLE_BYTES).unwrap_or(bytes).escape_ascii()
}

#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<BTreeMap<&'static str, Notice>>);

#[derive(Debug, Default)]
struct Notice {
    due: Throttle,
    /// The total when the cause was last logged.
    logged: u64,
    example: Option<Example>,
}

impl Notices {
    /// Returns the increase of `total` since the cause was last logged, or `None` if it is zero or the cause is not due.
    fn due(&self, cause: &'static str, total: u64) -> Option<u64> {
        let mut all = lock(&self.0);
        let notice = all.entry(cause).or_default();
        let new = total.saturating_sub(notice.logged);
        (new > 0 && notice.due.is_due()).then(|| {
            notice.logged = total;
            new
        })
    }

    pub(crate) fn examples(&self) -> BTreeMap<&'static str, Example> {
        let all = lock(&self.0);
        all.iter().filter_map(|(cause, notice)| Some((*cause, notice.example.clone()?))).collect()
    }

    /// Keeps a rejected line as the example of its cause, and logs it if the cause is due. `total` is the number so far.
    pub(crate) fn refused(&self, cause: &'static str, message: &str, total: u64, example: Example) {
        let (source, line) = (example.source.map(tracing::field::display), &example.line);
        if let Some(lines) = self.due(cause, total) {
            tracing::warn!(reason = cause, lines, source, line, "{message}");
        } else {
            tracing::debug!(reason = cause, source, line, "rejected a line");
        }
        lock(&self.0).entry(cause).or_default().example = Some(example);
    }

    pub(crate) fn rejected(&self, reason: Rejection, total: u64, example: Example) {
        let message =
            format!("rejected lines, which are not counted: {reason}; {}", reason.remedy());
        self.refused(reason.label(), &message, total, example);
    }

    /// Logs the losses of a cause if due. Must be called repeatedly, because earlier losses may not have been logged yet.
    pub(crate) fn lost(&self, cause: LossCause, total: u64) {
        if let Some(amount) = self.due(cause.label(), total) {
            let reason = cause.label();
            tracing::error!(reason, amount, "{cause}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn each_cause_is_logged_once_a_minute_with_its_total() {
        let notices = Notices::default();
        assert_eq!(notices.due("a", 0), None, "there is nothing to show");
        assert_eq!(notices.due("a", 3), Some(3));
        assert_eq!(notices.due("b", 1), Some(1));
        assert_eq!(notices.due("a", 9), None);
        tokio::time::advance(MINUTE).await;
        assert_eq!(notices.due("a", 10), Some(7));
        tokio::time::advance(MINUTE).await;
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
            notices.rejected(reason, 1, Example::new(None, line.as_bytes()));
        }
        let examples = notices.examples();
        assert_eq!(examples.len(), 2, "{examples:?}");
        assert_eq!(examples["tags_missing"].line, "last");
        assert_eq!(examples["user_missing"].line, "other");
    }
}
