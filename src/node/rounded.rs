//! [`Rounded`]: detects timestamps so coarse that distinct events of a user count as one. Single duplicates are common, but
//! three consecutive events with the same user and timestamp are rarely duplicates, and a nanosecond clock lands on a whole
//! millisecond only one time in a million. Whole microseconds are not reported: two events of a user rarely share one.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::{Throttle, lock};
use crate::diagnosis::Cause;
use crate::event::Precision;

const MILLISECOND: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;
const WARN_INTERVAL: Duration = Duration::from_secs(3600);
/// Number of rounded events in a minute that indicates coarse timestamps.
pub(crate) const ROUNDED_MIN: u64 = 100;
/// Number of coinciding events in a minute that indicates a loss.
pub(crate) const COINCIDING_MIN: u64 = 10;
const SERIES_CHARS: usize = 80;

#[derive(Debug, Default)]
pub(crate) struct Rounded(Mutex<Collected>);

#[derive(Debug, Default)]
struct Collected {
    /// Due once a minute. Counting then restarts from zero.
    minute: Throttle,
    found: Found,
    warned: [Option<Instant>; 2],
    /// The timestamp unit and the series of the last event found.
    example: Option<(&'static str, String)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Events at whole milliseconds, although the input uses a finer unit.
    pub(crate) rounded: u64,
    /// Events with the same user and timestamp as the two events before.
    pub(crate) coinciding: u64,
}

impl Found {
    /// Examines consecutive events of a series. `is_same_user` returns whether the event at an index has the same user as
    /// the previous one. Also returns the coarse unit of the timestamps, or an empty string if it is fine enough.
    pub(crate) fn look(
        timestamps: impl Iterator<Item = i64>,
        is_same_user: impl Fn(usize) -> bool,
        precision: Precision,
    ) -> (Self, &'static str) {
        let mut found = Self::default();
        let (mut all_seconds, mut all_millis) = (true, true);
        let mut run = 0_u64;
        let mut last = None;
        for (place, timestamp) in timestamps.enumerate() {
            // Counts rounded events only up to the first that is not rounded, because a coarse clock rounds all timestamps.
            all_millis = all_millis && timestamp % MILLISECOND == 0;
            all_seconds = all_seconds && all_millis && timestamp % SECOND == 0;
            found.rounded += u64::from(all_millis);
            let is_same = last == Some(timestamp) && is_same_user(place);
            run = if is_same { run + 1 } else { 0 };
            found.coinciding += u64::from(run >= 2);
            last = Some(timestamp);
        }
        let unit = match (all_seconds, all_millis) {
            (true, _) => "seconds",
            (_, true) => "milliseconds",
            _ => "",
        };
        if precision.nanos() >= MILLISECOND {
            // The configuration asks for coarse timestamps.
            found.rounded = 0;
        }
        (found, unit)
    }
}

impl Rounded {
    /// Adds the counts of a series. Logs a warning and returns true if the counts of this minute are high enough.
    pub(crate) fn add(&self, found: Found, unit: &'static str, series: &str) -> bool {
        if found == Found::default() {
            return false;
        }
        let mut collected = lock(&self.0);
        if collected.minute.is_due() {
            collected.found = Found::default();
        }
        collected.found.rounded += found.rounded;
        collected.found.coinciding += found.coinciding;
        let shown: String = series.chars().take(SERIES_CHARS).collect();
        collected.example = Some((unit, shown));
        let Found { rounded, coinciding } = collected.found;
        for (kind, cause, events, events_min) in [
            (0, Cause::StampsCoincide, coinciding, COINCIDING_MIN),
            (1, Cause::StampsRounded, rounded, ROUNDED_MIN),
        ] {
            let warned = &mut collected.warned[kind];
            if events >= events_min && warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                *warned = Some(Instant::now());
                tracing::warn!(events, unit, series, "{cause}");
                return true;
            }
        }
        false
    }

    pub(crate) fn example(&self) -> Option<String> {
        let collected = lock(&self.0);
        let (unit, series) = collected.example.as_ref()?;
        Some(match *unit {
            "" => format!("for example, in {series}"),
            unit => format!("timestamps are whole {unit}, for example in {series}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first timestamp of a sender.
    const AT: i64 = 1_480_876_707_352_348_928;

    fn look_by(precision: Precision, events: &[(i64, &str)]) -> (u64, u64, &'static str) {
        let stamps = events.iter().map(|event| event.0);
        let is_same_user = |place: usize| events[place].1 == events[place - 1].1;
        let (found, unit) = Found::look(stamps, is_same_user, precision);
        (found.rounded, found.coinciding, unit)
    }

    fn look(events: &[(i64, &str)]) -> (u64, u64, &'static str) {
        look_by(Precision::Nanoseconds, events)
    }

    #[test]
    fn whole_milliseconds_and_seconds_are_rounded_and_microseconds_are_not() {
        let every = |step: i64| -> Vec<(i64, &'static str)> {
            (0..5).map(|i| (AT - AT % step + i * step, "u")).collect()
        };
        assert_eq!(look(&every(SECOND)), (5, 0, "seconds"));
        assert_eq!(look(&every(MILLISECOND)), (5, 0, "milliseconds"));
        assert_eq!(look(&every(1000)), (0, 0, ""));
        assert_eq!(look(&every(1)), (0, 0, ""));
        let configured = look_by(Precision::Milliseconds, &every(MILLISECOND));
        assert_eq!(configured.0, 0, "whole timestamps are configured");
    }

    #[test]
    fn a_third_event_of_a_user_with_one_timestamp_coincides_and_a_copy_does_not() {
        let twice = [(AT, "a"), (AT, "a"), (AT, "b"), (AT, "b"), (AT + 1, "b")];
        assert_eq!(look(&twice), (0, 0, ""));
        let often = [(AT, "a"); 100];
        assert_eq!(look(&often), (0, 98, ""));
        let configured = look_by(Precision::Seconds, &often);
        assert_eq!(configured.1, 98, "events are lost anyway");
    }

    #[tokio::test(start_paused = true)]
    async fn warning_is_logged_at_the_threshold_and_then_hourly() {
        let collected = Rounded::default();
        for (after_seconds, rounded, coinciding, warns) in [
            (0, 99, 0, false),
            (1, 1, 0, true),
            (1, 1000, 9, false),
            // Coinciding events are a different kind.
            (1, 0, 1, true),
            (97, 99, 9, false),
            // Nothing is left from the previous minute.
            (3600, 99, 9, false),
            (1, 0, 1, true),
        ] {
            tokio::time::advance(Duration::from_secs(after_seconds)).await;
            let found = Found { rounded, coinciding };
            let warned = collected.add(found, "milliseconds", "a=1");
            assert_eq!(warned, warns, "{after_seconds} {found:?}");
        }
        let example = collected.example().unwrap();
        assert_eq!(example, "timestamps are whole milliseconds, for example in a=1");
    }
}
