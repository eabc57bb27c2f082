//! [`Totals`]: the counts of a node for its report, summed over all labels.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::metrics::{Metrics, OfOutput, of_output};
use crate::diagnosis::{ByCause, LossCause};
use crate::node::LedgerTotals;

/// Declares totals: counts that only grow, and one level. `lost` lists the counts of losses.
macro_rules! totals {
    (
        $(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])* $count:ident,)* }
        level $level:ident
        lost $($lost:ident)*
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub(crate) struct $name {
            $($(#[doc = $doc])* pub(crate) $count: u64,)*
            pub(crate) $level: u64,
        }

        impl $name {
            /// Returns how much the counts grew, with the present level.
            pub(crate) const fn since(&self, then: &Self) -> Self {
                Self {
                    $($count: self.$count.saturating_sub(then.$count),)*
                    $level: self.$level,
                }
            }

            pub(crate) fn lost(&self) -> u64 {
                [$(self.$lost),*].into_iter().fold(0, u64::saturating_add)
            }
        }
    };
}
pub(crate) use totals;

totals! {
    /// Counts of a node since it started. Late events are not lost for certain: copies of published ones may be among them.
    Totals {
        received,
        recorded,
        /// Recorded events that the store had already.
        repeated,
        overflowed,
        rejected,
        /// For any reason, the following ones included.
        dropped,
        dropped_queue_full,
        dropped_spool_full,
        dropped_spool_failed,
        kernel_drops,
        forgotten,
        /// Minutes of partitions.
        unconfirmed,
        late,
        rounded,
        coinciding,
        /// Series of a minute.
        sealed,
        /// Minutes of partitions, sealed long after their end.
        old_minutes_sealed,
        /// Points, like the following two.
        sent,
        quarantined,
        discarded,
    }
    level queued
    lost dropped kernel_drops forgotten unconfirmed discarded
}

impl Metrics {
    /// Returns the totals of a node with these outputs.
    pub(crate) fn totals<'a>(
        &self,
        ledger: &LedgerTotals,
        outputs: impl Iterator<Item = &'a str>,
    ) -> Totals {
        let outputs: Vec<_> = outputs.map(of_output).collect();
        let sum = |family: &Family<OfOutput, Counter>| {
            let counters = outputs.iter().filter_map(|output| family.get(output));
            counters.map(|counter| counter.get()).sum()
        };
        let dropped = |cause: LossCause| ledger.dropped[cause as usize];
        Totals {
            received: ledger.received,
            recorded: ledger.recorded,
            repeated: self.events_repeated.get(),
            overflowed: ledger.overflowed,
            rejected: ledger.rejected.iter().sum(),
            dropped: ledger.dropped.iter().sum(),
            dropped_queue_full: dropped(LossCause::QueueFull),
            dropped_spool_full: dropped(LossCause::SpoolFull),
            dropped_spool_failed: dropped(LossCause::SpoolFailed),
            queued: ledger.queued,
            kernel_drops: self.kernel_drops.get(),
            forgotten: self.events_forgotten.get(),
            unconfirmed: self.publications_unconfirmed.get(),
            late: self.events_late.get(),
            rounded: self.events_rounded.get(),
            coinciding: self.events_coinciding.get(),
            sealed: self.series_sealed.get(),
            old_minutes_sealed: self.old_seals.get(),
            sent: sum(&self.points_sent),
            quarantined: sum(&self.points_quarantined),
            discarded: sum(&self.points_discarded),
        }
    }

    /// Returns what a node and its kernel dropped.
    pub(crate) fn dropped(&self, ledger: &LedgerTotals) -> ByCause {
        let mut dropped = ledger.dropped;
        dropped[LossCause::KernelDrops as usize] = self.kernel_drops.get();
        dropped
    }

    /// Returns the size of the spool's files.
    pub(crate) fn spooled_bytes(&self) -> u64 {
        u64::try_from(self.spool_bytes.get()).unwrap_or(0)
    }
}
