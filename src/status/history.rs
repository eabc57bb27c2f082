//! [`History`]: totals of the last minutes, to compute rates and recent totals.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::time::Instant;

use super::report::ProcessReport;

/// The period of recent totals.
pub(super) const RECENT: Duration = Duration::from_secs(300);
/// The period of rates.
const RATED: Duration = Duration::from_secs(10);

/// The totals of a process since its start.
#[derive(Debug)]
pub(crate) struct History<T> {
    began: Instant,
    started: DateTime<Utc>,
    /// Oldest first.
    totals: VecDeque<(Instant, T)>,
}

impl<T: Copy + Default> History<T> {
    /// The history of a process that starts now and has counted nothing. `started` is the time by its clock.
    pub(crate) fn new(started: DateTime<Utc>) -> Self {
        let began = Instant::now();
        Self { began, started, totals: [(began, T::default())].into() }
    }

    /// Adds the present totals and removes those older than the longest period.
    pub(crate) fn add(&mut self, totals: T) {
        let now = Instant::now();
        while (self.totals.get(1)).is_some_and(|(at, _)| now - *at >= RECENT) {
            self.totals.pop_front();
        }
        self.totals.push_back((now, totals));
    }

    /// Returns the totals at the start of the recent period, and the seconds since then.
    pub(crate) fn recent(&self) -> (T, u64) {
        let (elapsed, totals) = self.before(RECENT);
        (totals, elapsed.as_secs())
    }

    /// Returns the rate per second at which a count grew to that of `totals`, to a tenth.
    pub(crate) fn rate(&self, totals: &T, count: impl Fn(&T) -> u64) -> f64 {
        let (elapsed, before) = self.before(RATED);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let growth = count(totals).saturating_sub(count(&before)) as f64;
        (growth / elapsed.as_secs_f64().max(0.001) * 10.0).round() / 10.0
    }

    fn before(&self, period: Duration) -> (Duration, T) {
        let mut newest_first = self.totals.iter().rev();
        let earlier = newest_first.find(|(at, _)| at.elapsed() >= period).or(self.totals.front());
        earlier.map_or_else(Default::default, |(at, totals)| (at.elapsed(), *totals))
    }

    /// Returns the report of a process called `name#number`, without counts.
    pub(crate) fn process(&self, identity: &str) -> ProcessReport {
        ProcessReport {
            name: identity.split('#').next().unwrap_or_default().to_owned(),
            instance: identity.to_owned(),
            version: crate::VERSION.to_owned(),
            started: self.started.to_rfc3339_opts(SecondsFormat::Secs, true),
            uptime_seconds: self.began.elapsed().as_secs(),
            ..ProcessReport::default()
        }
    }
}
