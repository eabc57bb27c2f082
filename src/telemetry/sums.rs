//! [`Sums`]: the metrics that a node reports of itself, summed over all labels.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::metrics::{Metrics, OfOutput, of_output};

/// What was counted so far, and how full things are. All but the last only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained where the metrics are")]
pub struct Sums {
    pub kernel_drops: u64,
    pub events_repeated: u64,
    pub events_late: u64,
    pub events_rounded: u64,
    pub events_coinciding: u64,
    pub events_forgotten: u64,
    pub minutes_unconfirmed: u64,
    pub series_sealed: u64,
    pub old_minutes_sealed: u64,
    pub points_sent: u64,
    pub points_quarantined: u64,
    pub points_discarded: u64,
    pub spool_bytes: u64,
}

impl Metrics {
    /// Those of all outputs of these names together.
    #[must_use]
    pub fn sums<'a>(&self, outputs: impl Iterator<Item = &'a str>) -> Sums {
        let outputs: Vec<&str> = outputs.collect();
        let sum = |family: &Family<OfOutput, Counter>| {
            let counts = outputs.iter().filter_map(|name| {
                let counter = family.get(&of_output(name));
                counter.map(|counter| counter.get())
            });
            counts.sum()
        };
        Sums {
            kernel_drops: self.kernel_drops.get(),
            events_repeated: self.events_repeated.get(),
            events_late: self.events_late.get(),
            events_rounded: self.events_rounded.get(),
            events_coinciding: self.events_coinciding.get(),
            events_forgotten: self.events_forgotten.get(),
            minutes_unconfirmed: self.publications_unconfirmed.get(),
            series_sealed: self.series_sealed.get(),
            old_minutes_sealed: self.old_seals.get(),
            points_sent: sum(&self.points_sent),
            points_quarantined: sum(&self.points_quarantined),
            points_discarded: sum(&self.points_discarded),
            spool_bytes: u64::try_from(self.spool_bytes.get()).unwrap_or(0),
        }
    }
}
