//! [`Late`]: events that came too late, gathered for the log.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::Minute;
use crate::node::Throttle;
use crate::store::Claim;

/// How often late events are told, at most.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// Late events that were not told yet.
#[derive(Debug)]
pub(super) struct Late {
    told: Throttle,
    events: u64,
    partitions: BTreeSet<usize>,
    /// The oldest and the newest of their minutes.
    minutes: Option<(Minute, Minute)>,
    /// The longest time from the end of a minute until they were found.
    longest: Duration,
}

impl Default for Late {
    fn default() -> Self {
        Self {
            told: Throttle::new(TELL_INTERVAL),
            events: 0,
            partitions: BTreeSet::new(),
            minutes: None,
            longest: Duration::ZERO,
        }
    }
}

impl Late {
    /// So many were found in a claim, now (nanoseconds since the epoch).
    pub(super) fn add(&mut self, claim: &Claim, events: u64, now: i64) {
        let minute = claim.minute;
        self.events += events;
        self.partitions.insert(claim.partition.index());
        let (first, last) = self.minutes.unwrap_or((minute, minute));
        self.minutes = Some((first.min(minute), last.max(minute)));
        let after_ms = (now / 1_000_000).saturating_sub(minute.end_millis());
        let after = Duration::from_millis(u64::try_from(after_ms).unwrap_or_default());
        self.longest = self.longest.max(after);
    }

    /// Tells them, if there are any and it is time, or the node ends.
    pub(super) fn tell(&mut self, at_end: bool) {
        let Some((first, last)) = self.minutes else {
            return;
        };
        if !at_end && !self.told.is_due() {
            return;
        }
        let partitions: Vec<_> = self.partitions.iter().map(ToString::to_string).collect();
        let partitions = partitions.join(", ");
        tracing::warn!(
            events = self.events, partitions, %first, %last,
            after = %humantime::format_duration(self.longest),
            "events came when the counts of their minutes were fixed, so long after the end of the minute at most; they are \
             not published, unless they are copies of counted ones: raise flush.grace if senders or the network are slow, \
             and see that the clocks of the senders are right"
        );
        let told = std::mem::replace(&mut self.told, Throttle::new(TELL_INTERVAL));
        *self = Self {
            told,
            ..Self::default()
        };
    }
}
