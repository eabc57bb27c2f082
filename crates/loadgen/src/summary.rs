//! The summary that is printed after sending.

use std::fmt;
use std::time::Duration;

/// The numbers of events and copies sent, dropped, refused and failed. `Display` prints them on one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Lines, whether synthetic or read from the input. A line counts once, however many addresses it is sent to.
    pub events: u64,
    /// Events whose copies were all dropped, refused or failed. The expected counts do not include them.
    pub events_unsent: u64,
    /// Datagrams, not counting copies.
    pub datagrams: u64,
    /// Copies that the kernel accepted and did not immediately report as refused.
    pub copies_sent: u64,
    /// Copies dropped because of the drop rate.
    pub copies_dropped: u64,
    pub(super) copies_failed: u64,
    /// Addresses where no process is listening, with the number of copies refused. The network may not report all refusals.
    pub(super) copies_refused: Vec<(String, u64)>,
    pub(super) events_untimely: u64,
    pub(super) retries: u64,
    pub(super) requests_repeated: u64,
    /// The median and the 99th percentile of the time until a request was recorded, in milliseconds.
    pub(super) latencies_ms: Option<(f64, f64)>,
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) seed: u64,
    pub(super) last_failure: Option<String>,
    /// The exit code for the signal that stopped sending; `None` if everything was sent.
    pub stopped: Option<u8>,
}

impl Summary {
    /// Returns true if no copy failed and none is known to have been refused.
    #[must_use]
    pub const fn is_well(&self) -> bool {
        self.copies_failed == 0 && self.copies_refused.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let rate = self.events as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(
            f,
            "{} events, {} datagrams, {} copies sent, {} copies dropped, {} bytes, {:.3} s, {rate:.0} events/s, seed {}",
            self.events,
            self.datagrams,
            self.copies_sent,
            self.copies_dropped,
            self.bytes,
            self.elapsed.as_secs_f64(),
            self.seed,
        )?;
        if self.events_unsent > 0 {
            write!(f, ", {} events not sent to any address", self.events_unsent)?;
        }
        if self.events_untimely > 0 {
            let events = self.events_untimely;
            write!(f, ", {events} events with a timestamp that nodes reject by default")?;
        }
        for (address, copies) in &self.copies_refused {
            write!(f, ", {copies} copies refused by {address}, where no process is listening")?;
        }
        if self.retries > 0 {
            write!(f, ", {} retries", self.retries)?;
        }
        if let Some((median, most)) = self.latencies_ms {
            let repeated = self.requests_repeated;
            write!(
                f,
                ", {repeated} requests repeated, recorded after {median:.1} ms (median) and {most:.1} ms (99%)"
            )?;
        }
        if let Some(failure) = &self.last_failure {
            write!(f, ", {} copies failed, most recently: {failure}", self.copies_failed)?;
        }
        if self.stopped.is_some() {
            f.write_str(", stopped by a signal")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_problems_that_occurred_are_listed() {
        let mut summary = Summary {
            events: 1_000,
            datagrams: 67,
            copies_sent: 130,
            copies_dropped: 4,
            bytes: 9_000,
            elapsed: Duration::from_millis(500),
            seed: 7,
            ..Summary::default()
        };
        let complete = "1000 events, 67 datagrams, 130 copies sent, 4 copies dropped, 9000 bytes, 0.500 s, \
                    2000 events/s, seed 7";
        assert_eq!(summary.to_string(), complete);
        assert!(summary.is_well());
        summary.events_unsent = 15;
        summary.events_untimely = 2;
        summary.copies_refused = vec![("127.0.0.1:9".to_owned(), 3)];
        summary.copies_failed = 1;
        summary.last_failure = Some("no buffer".to_owned());
        summary.stopped = Some(130);
        let with_problems = format!(
            "{complete}, 15 events not sent to any address, 2 events with a timestamp that nodes reject by default, 3 copies refused \
             by 127.0.0.1:9, where no process is listening, 1 copies failed, most recently: no buffer, stopped by a signal"
        );
        assert_eq!(summary.to_string(), with_problems);
        assert!(!summary.is_well());
    }
}
