//! The end: everything is counted, written once, and nothing is left but counts.

use std::collections::BTreeMap;

use event_data_service::store::memory::State;

use super::{Oracle, OutputBook, Verdict, must};

impl Oracle {
    /// Whether nothing is left to do in the store.
    pub(crate) fn is_drained(state: &State) -> bool {
        state.partitions.iter().all(|partition| {
            partition.waiting.is_empty()
                && partition.claims.is_empty()
                && partition.sending.values().all(BTreeMap::is_empty)
        })
    }

    /// Looks at everything after the schedule.
    pub(crate) fn finish(&self, now_ms: i64, state: &State) -> Verdict {
        must!(
            Self::is_drained(state),
            "faults are over since long, and minutes are still not done"
        );
        must!(state.bytes == 0, "{} bytes are not given back", state.bytes);
        self.forgetting.finish()?;
        for (at, book) in &self.places {
            must!(!book.has_sets(), "{at:?} has events that nobody counted");
            for (series, point) in &book.series {
                must!(
                    point.counts.is_some() || book.closed,
                    "series {series} of {at:?} was never counted"
                );
                let is_there = |of: &OutputBook| of.quarantined || (of.written && of.acknowledged);
                must!(
                    point.counts.is_none() || point.of[..self.outputs].iter().all(is_there),
                    "the counts of series {series} of {at:?} are nowhere: {point:?}"
                );
            }
            self.compare(*at, now_ms, state)?;
        }
        for partition in &state.partitions {
            for (minute, found) in &partition.minutes {
                must!(
                    found.sets.is_empty()
                        && found.unsent.is_empty()
                        && found.arrivals == 0
                        && found.idle.is_none()
                        && found.expires_ms.is_some(),
                    "{minute} has left more than counts: {found:?}"
                );
            }
        }
        Ok(())
    }
}
