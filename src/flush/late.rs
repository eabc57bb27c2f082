//! [`Late`]: events that came too late, gathered for the log.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::diagnosis::LossCause;
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
        let minutes = self
            .minutes
            .map_or_else(|| "unknown".to_owned(), |(first, last)| format!("{first} to {last}"));
        let partitions: Vec<_> = self.partitions.iter().map(ToString::to_string).collect();
        let partitions = partitions.join(", ");
        tracing::warn!(
            events = self.events, partitions, minutes,
            after = %humantime::format_duration(self.longest),
            "events came when the counts of their minutes were sealed, so long after the end of the minute at most; they are \
             not published, unless they are copies of sealed ones; {}",
            LossCause::Late.remedy()
        );
        let throttle = std::mem::replace(&mut self.throttle, Throttle::new(REPORT_INTERVAL));
        *self = Self { throttle, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::Partitions;

    fn late(events: u64) -> Late {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let minute = Minute::from_epoch_minutes(1).unwrap();
        let mut late = Late::default();
        for seconds in [125, 130, 121] {
            let partition = partitions.of("a=1", minute);
            late.add(partition, Some(minute), events, seconds * 1_000_000_000);
        }
        late.add(partitions.of("a=1", minute), None, events, 0);
        late
    }

    #[test]
    fn the_longest_time_after_the_end_of_a_minute_is_kept() {
        let late = late(2);
        assert_eq!(late.events, 8);
        assert_eq!(late.longest, Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn late_events_are_reported_once_in_an_interval_and_at_the_end() {
        let mut nothing = Late::default();
        nothing.report(false);
        assert!(nothing.throttle.is_due(), "there was nothing to report");
        let mut late = late(1);
        late.report(false);
        assert_eq!(late.events, 0);
        late.events = 1;
        late.report(false);
        assert_eq!(late.events, 1, "they wait for the interval");
        late.report(true);
        assert_eq!(late.events, 0);
        late.events = 1;
        tokio::time::sleep(REPORT_INTERVAL).await;
        late.report(false);
        assert_eq!(late.events, 0);
    }
}
