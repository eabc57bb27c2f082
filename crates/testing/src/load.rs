//! Events by the million from a seed.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Nanoseconds in a minute.
pub const MINUTE_NS: i64 = 60_000_000_000;
/// The minute of the seed: 2016-12-04T18:38:00Z.
pub const SEED_MINUTE_NS: i64 = 1_480_876_680_000_000_000;

/// A seed for this run, printed so that a failure can be had again by `EDS_TEST_SEED`.
pub fn seed() -> u64 {
    let seed = std::env::var("EDS_TEST_SEED");
    let seed = seed.map_or_else(
        |_| rand::random(),
        |seed| seed.parse().expect("a whole number"),
    );
    eprintln!("EDS_TEST_SEED={seed}");
    seed
}

/// The shape of a synthetic load.
#[derive(Debug, Clone)]
pub struct Load {
    pub seed: u64,
    /// The first instants of the minutes in which the events lie, evenly.
    pub minutes_ns: Vec<i64>,
    pub events: usize,
    pub series: u32,
    pub users: u32,
}

/// A datagram should fit a frame of Ethernet.
const LINES_PER_DATAGRAM: usize = 15;

impl Load {
    /// The datagrams of this load, always the same.
    pub fn datagrams(&self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let load = self.clone();
        let mut random = SmallRng::seed_from_u64(load.seed);
        (0..load.events)
            .step_by(LINES_PER_DATAGRAM)
            .map(move |first| {
                let lines = LINES_PER_DATAGRAM.min(load.events - first);
                let lines: Vec<_> = (0..lines).map(|_| load.line(&mut random)).collect();
                lines.join("\n").into_bytes()
            })
    }

    fn line(&self, random: &mut SmallRng) -> String {
        let series = random.random_range(0..self.series);
        let user = random.random_range(0..self.users);
        let minute = self.minutes_ns[random.random_range(0..self.minutes_ns.len())];
        // Coarse, so that now and then two events are one.
        let timestamp = minute + random.random_range(0..60_000) * 1_000_000;
        format!(
            "event_type=type{series},product=product{} value=user{user} {timestamp}",
            series % 7
        )
    }
}
