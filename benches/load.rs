//! The events that are measured with: 50 series or more, 10 000 users, three minutes, in order of time.

use std::fmt::Write;
use std::num::NonZeroU16;
use std::time::Duration;

use event_data_service::event::{LineRules, Minute, Partitions, Window};
use event_data_service::ingest::{BatcherSettings, QueueLimits};

/// 2016-12-04 18:38:00 UTC, in nanoseconds.
pub(crate) const START_NANOS: i64 = 1_480_876_680_000_000_000;
const SPAN_NANOS: i64 = 180_000_000_000;
const SERIES: u32 = 50;
const USERS: u32 = 10_000;

/// One event.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) minute: Minute,
    pub(crate) series: u32,
    pub(crate) user: u32,
    pub(crate) timestamp: i64,
}

/// Events and the names in them.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) events: Vec<Event>,
    pub(crate) series: Vec<String>,
    pub(crate) users: Vec<String>,
}

impl Load {
    /// So many events, the same at every call. No two are equal.
    pub(crate) fn new(events: i64) -> Self {
        Self::of_series(events, SERIES)
    }

    /// The same with so many series.
    pub(crate) fn of_series(events: i64, all_series: u32) -> Self {
        let mut draw = Draw(42);
        let event = |index: i64| {
            let timestamp = START_NANOS + index * (SPAN_NANOS / events);
            Event {
                minute: Minute::of_nanos(timestamp),
                series: draw.below(all_series),
                user: draw.below(USERS),
                timestamp,
            }
        };
        let series = |n| format!("event_type=type-{},product=product-{}", n % 8, n / 8);
        Self {
            events: (0..events).map(event).collect(),
            series: (0..all_series).map(series).collect(),
            users: (0..USERS).map(|n| format!("testusername{n}")).collect(),
        }
    }

    pub(crate) fn series(&self, event: &Event) -> &str {
        &self.series[event.series as usize]
    }

    pub(crate) fn user(&self, event: &Event) -> &str {
        &self.users[event.user as usize]
    }

    /// The events as datagrams of so many lines in the seeds' form.
    pub(crate) fn datagrams(&self, lines: usize) -> Vec<String> {
        self.lines(lines, |text, series, user, timestamp| {
            write!(text, "{series} value={user} {timestamp}")
        })
    }

    /// The events as datagrams of so many lines of strict line protocol.
    pub(crate) fn strict_datagrams(&self, lines: usize) -> Vec<String> {
        self.lines(lines, |text, series, user, timestamp| {
            write!(text, "events,{series} value=\"{user}\" {timestamp}")
        })
    }

    fn lines(
        &self,
        lines: usize,
        line: impl Fn(&mut String, &str, &str, i64) -> std::fmt::Result,
    ) -> Vec<String> {
        let datagram = |events: &[Event]| {
            let mut text = String::new();
            for event in events {
                // Writing to a string cannot fail.
                let _ = line(
                    &mut text,
                    self.series(event),
                    self.user(event),
                    event.timestamp,
                );
                text.push('\n');
            }
            text
        };
        self.events.chunks(lines).map(datagram).collect()
    }
}

/// The partitions of the default configuration.
pub(crate) fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::MIN.saturating_add(31))
}

/// A batcher as the default configuration has it, for events of any age.
pub(crate) fn batcher_settings() -> BatcherSettings {
    BatcherSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::MAX, Duration::MAX),
        partitions: partitions(),
        limits: QueueLimits {
            events: 1_000_000,
            bytes: 256 << 20,
        },
    }
}

/// Chance with a seed: `SplitMix64`.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let upper = u64::from(bound) * (mixed >> 32);
        u32::try_from(upper >> 32).unwrap_or_default()
    }
}
