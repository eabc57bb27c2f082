//! Checks the ledger and the published numbers at the end of a run.
//!
//! All points must be exact, with two exceptions. Points that were open when Redis rolled back may lack as many events as
//! nodes counted as forgotten or late. A minute that is never idle lacks events from after `flush.max_hold` closed it.

use std::fmt::Write as _;

use testing::prelude::*;

use crate::world::{GRACE, LEDGER, World};

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// An event that is sent this long before its minute is closed must be counted, even on a slow machine.
const RECORDED_WITHIN: Duration = Duration::from_secs(4);
const UNIQUE: &str = "unique_user_event";
const CUMULATIVE: &str = "cumulative_user_event";

/// The users of each window, by its point for unique users.
pub(crate) type Windows = BTreeMap<Point, BTreeSet<String>>;

/// The maximum length of a window.
const WINDOW_MINUTES_MAX: i64 = 2;

/// Returns the windows that contain an event of this series and time. Archived events are not counted.
pub(crate) fn windows_with(series: &str, time_ns: i64) -> impl Iterator<Item = Point> {
    let product = series.split(',').next_back().unwrap_or_default();
    let windows = [("products", product, 1), ("two", series, WINDOW_MINUTES_MAX)];
    let is_counted = !series.starts_with("event_type=archived,");
    windows.into_iter().filter(move |_| is_counted).map(move |(name, group, minutes)| Point {
        minute_start_ns: time_ns.div_euclid(minutes * MINUTE_NS) * minutes * MINUTE_NS,
        series: group.to_owned(),
        measurement: format!("{UNIQUE}_{name}"),
    })
}

pub(crate) struct Rollback {
    /// The points that each InfluxDB had before the rollback, which must be exact.
    pub(crate) published: [Points; 2],
    /// The windows that each InfluxDB had. Redis may have lost the users of all others.
    pub(crate) windows: [Points; 2],
    /// The last minute that had events before the rollback.
    pub(crate) last_minute_ns: i64,
    /// How many events the anchor counted as forgotten plus all nodes counted as late in this phase.
    pub(crate) counted: u64,
}

/// A sender of events that keep a minute from becoming idle.
pub(crate) struct Straggler {
    minute_ns: i64,
    pub(crate) sent: Vec<Instant>,
}

impl Straggler {
    pub(crate) fn new(minute_ns: i64) -> Self {
        let sent = Vec::new();
        Self { minute_ns, sent }
    }

    pub(crate) fn line(&mut self) -> String {
        self.sent.push(Instant::now());
        let number = self.sent.len();
        // Both the user and the timestamp are unique.
        format!(
            "event_type=straggler,product=product0 value=user{number} {}{:06}",
            self.minute_ns / 1_000_000,
            number
        )
    }

    pub(crate) fn points(&self) -> [Point; 2] {
        [UNIQUE, CUMULATIVE].map(|measurement| Point {
            minute_start_ns: self.minute_ns,
            series: "event_type=straggler,product=product0".to_owned(),
            measurement: measurement.to_owned(),
        })
    }

    /// Removes the straggler's points from `found`, and checks that they include all events in time, but not all events.
    fn judge(&self, found: &mut Points, max_hold: Duration) -> Result<(), String> {
        let [unique, cumulative] = self.points().map(|point| found.remove(&point));
        let in_time = |at: &&Instant| at.duration_since(self.sent[0]) + RECORDED_WITHIN < max_hold;
        let (least, sent) = (self.sent.iter().filter(in_time).count(), self.sent.len());
        let range = least as u64..sent as u64;
        if unique == cumulative && unique.is_some_and(|count| range.contains(&count)) {
            return Ok(());
        }
        Err(format!(
            "a straggler's minute has {unique:?} users and {cumulative:?} events, outside of {range:?}\n"
        ))
    }
}

pub(crate) struct Verdict {
    pub(crate) world: World,
    pub(crate) expected: Points,
    /// The expected users of each window.
    pub(crate) windows: Windows,
    pub(crate) rollbacks: Vec<Rollback>,
    pub(crate) stragglers: Vec<Straggler>,
    pub(crate) max_hold: Duration,
    /// The longest time from the end of a minute to its publication in the harmless phases, if there were any.
    pub(crate) latest: Option<Duration>,
    pub(crate) phases: usize,
    pub(crate) faults: usize,
    pub(crate) again: String,
}

impl Verdict {
    /// Waits for the last points, prints the ledger and a report, and panics unless every number is correct.
    pub(crate) fn give(self, within: Duration) {
        let began = Instant::now();
        while let Err(differences) = self.judge() {
            if began.elapsed() > within {
                // The next step may fail as well.
                eprintln!("WRONG after {within:?}: {differences}");
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        let took = began.elapsed();
        self.world.wait_sealed(self.max_hold);
        eprintln!("ledger of all nodes:");
        let ledger = self.world.ledger();
        for (name, count) in &ledger {
            eprintln!("  {name:<30} {count:>12}");
        }
        let parts: u64 = LEDGER[1..5].iter().map(|name| ledger[name]).sum();
        assert_eq!(
            ledger["eds_events_received_total"], parts,
            "received is not the sum of recorded, rejected, dropped and queued"
        );
        let lost = self.judge().unwrap_or_else(|differences| {
            eprintln!("WRONG: {differences}");
            panic!("wrong after {} phases; repeat with: {}", self.phases, self.again);
        });
        for site in &self.world.sites {
            site.assert_one_value_a_point();
        }
        self.report(lost, took);
    }

    fn report(&self, lost: u64, took: Duration) {
        let was_open = |point: &Point| (0..2).any(|database| self.was_open(database, point));
        let (open, exact): (Vec<_>, Vec<_>) =
            self.expected.iter().partition(|entry| was_open(entry.0));
        let events = |points: &[(&Point, &u64)]| -> u64 {
            let cumulative = points.iter().filter(|entry| entry.0.measurement == CUMULATIVE);
            cumulative.map(|entry| entry.1).sum()
        };
        let minutes: BTreeSet<_> = exact.iter().map(|entry| entry.0.minute_start_ns).collect();
        let series: BTreeSet<_> = exact.iter().map(|entry| &entry.0.series).collect();
        eprintln!(
            "exact: {} minutes, {} series, {} events, {} points, 0 lost; {} faults in {} phases; exact {:.1} s after the \
             last",
            minutes.len(),
            series.len(),
            events(&exact),
            exact.len(),
            self.faults,
            self.phases,
            took.as_secs_f64()
        );
        let marked: usize = (0..2).map(|database| self.world.incomplete(database).len()).sum();
        eprintln!(
            "{} windows per database, {marked} numbers marked as incomplete",
            self.windows.len()
        );
        if !self.rollbacks.is_empty() {
            eprintln!(
                "Redis rolled back {} times: {} points were open; of their {} events, {lost} are lost and {} were counted",
                self.rollbacks.len(),
                open.len(),
                events(&open),
                self.counted()
            );
        }
        if let Some(latest) = self.latest {
            eprintln!(
                "over slow links: minutes were published at most {:.1} s after their end, with a grace of {GRACE:?}",
                latest.as_secs_f64()
            );
        }
        if !self.stragglers.is_empty() {
            eprintln!("closed by max_hold: {} minutes", self.stragglers.len());
        }
    }

    fn counted(&self) -> u64 {
        self.rollbacks.iter().map(|rollback| rollback.counted).sum()
    }

    /// Returns whether a point had events but was not in this InfluxDB when Redis rolled back.
    fn was_open(&self, database: usize, point: &Point) -> bool {
        self.rollbacks.iter().any(|rollback| {
            let is_published = rollback.published[database].contains_key(point);
            point.minute_start_ns <= rollback.last_minute_ns && !is_published
        })
    }

    /// Compares both databases with the expected points. Returns how many events the open points of a database lack at most.
    fn judge(&self) -> Result<u64, String> {
        let [first, second] = self.world.points();
        for (point, value) in &first {
            if second.get(point).is_some_and(|other| other != value) {
                return Err(format!("{point:?} is {value} in one and {} in two", second[point]));
            }
        }
        for (database, (points, windows)) in
            [&first, &second].into_iter().zip(self.world.windows()).enumerate()
        {
            let wrong = self.judge_windows(database, points, windows);
            wrong.map_err(|wrong| format!("windows in database {database}: {wrong}"))?;
        }
        Ok(self.judge_of(0, first)?.max(self.judge_of(1, second)?))
    }

    /// Asserts that each window has as many events as its minutes have, and all their users. Windows that may have been open
    /// when Redis rolled back may have more events than the points of their minutes, or be marked as incomplete. Those with a
    /// straggler may have any numbers.
    fn judge_windows(
        &self,
        database: usize,
        points: &Points,
        mut windows: Points,
    ) -> Result<(), String> {
        let mut events: BTreeMap<Point, u64> = BTreeMap::new();
        for (Point { minute_start_ns, series, measurement }, count) in points {
            if measurement == CUMULATIVE {
                for window in windows_with(series, *minute_start_ns) {
                    *events.entry(window).or_default() += count;
                }
            }
        }
        let incomplete = self.world.incomplete(database);
        for (window, users) in &self.windows {
            let straggles = |straggler: &Straggler| {
                windows_with(&window.series, straggler.minute_ns)
                    .any(|other| other.minute_start_ns == window.minute_start_ns)
            };
            let cumulative = Point {
                measurement: window.measurement.replace(UNIQUE, CUMULATIVE),
                ..window.clone()
            };
            let (unique, cumulative) = (windows.remove(window), windows.remove(&cumulative));
            let is_marked = incomplete.contains(window);
            let may_lose = self.rollbacks.iter().any(|rollback| {
                let is_published = rollback.windows[database].contains_key(window);
                window.minute_start_ns <= rollback.last_minute_ns && !is_published
            });
            let (users, sum) = (users.len() as u64, events.get(window).copied());
            let is_right = if self.stragglers.iter().any(straggles) {
                true
            } else if may_lose {
                // Some of these events may have been lost before their minute was sealed, or all counts of the window after
                // they were announced.
                is_marked || unique.is_none_or(|unique| unique <= users && cumulative >= sum)
            } else {
                !is_marked && unique == Some(users) && cumulative == sum
            };
            if !is_right {
                return Err(format!(
                    "{window:?} has {unique:?} users and {cumulative:?} events instead of {users} and {sum:?}; marked: {is_marked}"
                ));
            }
        }
        windows.retain(|point, _| {
            let holds = |straggler: &Straggler| {
                let minutes = straggler.minute_ns - point.minute_start_ns;
                (0..WINDOW_MINUTES_MAX * MINUTE_NS).contains(&minutes)
            };
            !self.stragglers.iter().any(holds)
        });
        if windows.is_empty() { Ok(()) } else { Err(format!("unexpected: {windows:?}")) }
    }

    fn judge_of(&self, database: usize, mut found: Points) -> Result<u64, String> {
        let mut report = String::new();
        for straggler in &self.stragglers {
            report += &straggler.judge(&mut found, self.max_hold).err().unwrap_or_default();
        }
        let mut lost = 0;
        let mut exact = self.expected.clone();
        for (point, expected) in &self.expected {
            if !self.was_open(database, point) {
                continue;
            }
            exact.remove(point);
            let lacks = found
                .remove(point)
                .map_or(Some(*expected), |written| expected.checked_sub(written));
            match lacks {
                None => _ = writeln!(report, "{point:?}: more than {expected}"),
                Some(events) if point.measurement == CUMULATIVE => lost += events,
                Some(_) => {}
            }
        }
        let counted = self.counted();
        if lost > counted {
            let _ = writeln!(
                report,
                "{lost} events lost when Redis rolled back, only {counted} counted"
            );
        }
        report += &compare(&exact, &found).err().unwrap_or_default();
        if report.is_empty() { Ok(lost) } else { Err(format!("database {database}: {report}")) }
    }
}
