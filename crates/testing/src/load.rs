//! Generates millions of events from a seed.

use std::num::NonZeroU32;
use std::ops::Range;

use loadgen::Plan;

/// The number of nanoseconds in a minute.
pub const MINUTE_NS: i64 = 60_000_000_000;
/// The start of minute 0 of a load, 2016-12-04T18:38:00Z, in nanoseconds since the epoch.
pub const SEED_MINUTE_NS: i64 = 1_480_876_680_000_000_000;

/// Returns a seed for this run, and prints it. To reproduce a failure, set the environment variable `EDS_TEST_SEED` to the
/// printed value.
pub fn seed() -> u64 {
    let seed = std::env::var("EDS_TEST_SEED");
    let seed = seed.map_or_else(|_| rand::random(), |seed| seed.parse().expect("a whole number"));
    eprintln!("EDS_TEST_SEED={seed}");
    seed
}

/// Returns a load in random order. Its events are in these minutes, counted from [`SEED_MINUTE_NS`]. Some events are
/// repeated.
pub fn load(minutes: Range<i64>, events: u64, series: u32, users: u32) -> Plan {
    Plan {
        seed: seed(),
        events,
        series: NonZeroU32::new(series).expect("at least one series"),
        users: NonZeroU32::new(users).expect("at least one user"),
        start_nanos: SEED_MINUTE_NS + minutes.start * MINUTE_NS,
        span_nanos: (minutes.end - minutes.start) * MINUTE_NS,
        repeat: 0.01,
        shuffle: true,
    }
}
