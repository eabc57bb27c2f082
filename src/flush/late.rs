//! [`Late`]: events that came too late, gathered for the log.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::{Minute, Partition};
use crate::node::Throttle;

/// How often late events are logged, at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Late events that are not logged yet.
#[derive(Debug)]
pub(super) struct Late {
    throttle: Throttle,
    events: u64,
    partitions: BTreeSet<usize>,
    /// The oldest and the newest of their minutes, as far as they are known.
    minutes: Option<(Minute, Minute)>,
    /// The longest time from the end of a minute until they were found.
    longest: Duration,
}

impl Default for Late {
    fn default() -> Self {
        Self {
            throttle: Throttle::new(REPORT_INTERVAL),
            events: 0,
            partitions: BTreeSet::new(),
            minutes: None,
            longest: Duration::ZERO,
        }
    }
}

impl Late {
    /// So many were found in a partition, now (nanoseconds since the epoch). Of which minute is not known where the answer was lost.
    pub(super) fn add(
        &mut self,
        partition: Partition,
        minute: Option<Minute>,
        events: u64,
        now: i64,
    ) {
        self.events += events;
        self.partitions.insert(partition.index());
        let Some(minute) = minute else {
            return;
        };
        let (first, last) = self.minutes.unwrap_or((minute, minute));
        self.minutes = Some((first.min(minute), last.max(minute)));
        let after_ms = (now / 1_000_000).saturating_sub(minute.end_millis());
        let after = Duration::from_millis(u64::try_from(after_ms).unwrap_or_default());
        self.longest = self.longest.max(after);
    }

    /// Logs them, if there are any and it is time, or the node ends.
    pub(super) fn report(&mut self, at_end: bool) {
        if self.events == 0 || (!at_end && !self.throttle.is_due()) {
            return;
        }
        let minutes = self.minutes.map_or_else(
            || "unknown".to_owned(),
            |(first, last)| format!("{first} to {last}"),
        );
        let partitions: Vec<_> = self.partitions.iter().map(ToString::to_string).collect();
        let partitions = partitions.join(", ");
        tracing::warn!(
            events = self.events, partitions, minutes,
            after = %humantime::format_duration(self.longest),
            "events came when the counts of their minutes were sealed, so long after the end of the minute at most; they are \
             not published, unless they are copies of sealed ones: raise flush.grace if senders or the network are slow, \
             and see that the clocks of the senders are right"
        );
        let throttle = std::mem::replace(&mut self.throttle, Throttle::new(REPORT_INTERVAL));
        *self = Self {
            throttle,
            ..Self::default()
        };
    }
}
