//! [`Rounded`]: warns of timestamps that are rounded to seconds, by which events of a user become one.
//!
//! Repeats alone mean nothing: behind two relayers, or on two nodes, each event arrives twice on purpose. So it looks
//! only at events that were recorded together and all have whole seconds, which no clock gives by chance.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long events are collected before they are judged.
const COLLECTED_FOR: Duration = Duration::from_secs(60);
/// How often it warns, at most.
const WARN_INTERVAL: Duration = Duration::from_secs(3600);
/// Fewer events prove nothing.
const EVENTS_MIN: u64 = 100;
/// Of so many events one must be a repeat.
const NOTABLE_ONE_IN: u64 = 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Rounded(Mutex<Collected>);

#[derive(Debug, Default)]
struct Collected {
    since: Option<Instant>,
    events: u64,
    repeated: u64,
    warned: Option<Instant>,
}

impl Rounded {
    /// So many events with whole seconds were recorded together, and so many of them the store had already. Answers
    /// whether it warned.
    pub fn recorded(&self, events: u64, repeated: u64, now: Instant) -> bool {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.events += events;
        collected.repeated += repeated;
        if now - *collected.since.get_or_insert(now) < COLLECTED_FOR {
            return false;
        }
        let (events, repeated, warned) = (collected.events, collected.repeated, collected.warned);
        *collected = Collected {
            warned,
            ..Collected::default()
        };
        let warned_lately = warned.is_some_and(|at| now - at < WARN_INTERVAL);
        if warned_lately || events < EVENTS_MIN || repeated * NOTABLE_ONE_IN < events {
            return false;
        }
        collected.warned = Some(now);
        tracing::warn!(
            events,
            repeated,
            "timestamps are whole seconds, and many events were recorded before: the events of a user in one series and \
             second are counted as one. Copies by relayers and other nodes are among the repeated, too. Where these are \
             all, nothing is wrong; otherwise have the senders stamp more finely (in Telegraf: precision = \"1ns\")"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notable_share_is_warned_of_once_an_hour() {
        let rounded = Rounded::default();
        let began = Instant::now();
        let after = |seconds, events, repeated| {
            rounded.recorded(events, repeated, began + Duration::from_secs(seconds))
        };
        assert!(!after(0, 1000, 900));
        assert!(!after(59, 1000, 900));
        assert!(after(60, 1000, 900));
        assert!(!after(100, 1000, 900));
        assert!(!after(200, 1000, 900), "it warned a minute ago");
        assert!(!after(3700, 1000, 90));
        assert!(!after(3760, 1000, 90), "too few of them");
        assert!(!after(3800, 50, 50));
        assert!(!after(3860, 49, 49), "too few");
        assert!(!after(3900, 50, 50));
        assert!(after(3960, 50, 5));
    }
}
