//! What a torture ends with: the ledger, and whether the published numbers are exact.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::truth::{Points, compare};
use crate::world::World;

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

pub(crate) struct Verdict {
    pub(crate) world: World,
    pub(crate) expected: Points,
    pub(crate) phases: usize,
    pub(crate) faults: usize,
    pub(crate) again: String,
}

impl Verdict {
    /// Waits for the last points, prints the ledger, and panics unless every number is right.
    pub(crate) fn give(mut self, within: Duration) {
        let began = Instant::now();
        let found = loop {
            let found = compare(&self.expected, &self.world.site.points());
            if found.is_ok() || began.elapsed() > within {
                break found;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        };
        eprintln!("ledger of all nodes:");
        let ledger = self.world.ledger();
        for (name, count) in &ledger {
            eprintln!("  {name:<30} {count:>12}");
        }
        let parts: u64 = ledger[1..5].iter().map(|(_, count)| count).sum();
        assert_eq!(
            ledger[0].1, parts,
            "received is not the sum of what became of it"
        );
        if let Err(differences) = found {
            eprintln!("NOT exact: {differences}");
            panic!(
                "not exact after {} phases; again by: {}",
                self.phases, self.again
            );
        }
        let minutes: BTreeSet<_> = self
            .expected
            .keys()
            .map(|point| point.minute_start_ns)
            .collect();
        let series: BTreeSet<_> = self.expected.keys().map(|point| &point.series).collect();
        let events: u64 = self
            .expected
            .iter()
            .filter(|(point, _)| point.measurement == "cumulative_user_event")
            .map(|(_, count)| count)
            .sum();
        self.world.site.wait_redis_clean();
        self.world.site.assert_one_value_a_point();
        eprintln!(
            "exact: {} minutes, {} series, {events} events, {} points, 0 lost; {} faults in {} phases; exact {:.1} s \
             after the last",
            minutes.len(),
            series.len(),
            self.expected.len(),
            self.faults,
            self.phases,
            began.elapsed().as_secs_f64()
        );
    }
}
