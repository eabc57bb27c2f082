//! Checks at the end that everything has been counted and written once, and that only counts are left.

use super::{Oracle, OutputBook, must};
use crate::simulation::prelude::*;

impl Oracle {
    pub(crate) fn finish(&self, now_ms: i64, state: &State<'_>) -> Verdict {
        must!(
            state.undone().is_none(),
            "long after the last fault, minutes are still not done: {:?}",
            state.undone()
        );
        must!(state.left_over().is_none(), "more is left than counts: {:?}", state.left_over());
        self.forgetting.finish()?;
        for (at, book) in &self.places {
            must!(!book.has_sets(), "{at:?} has events that nobody counted");
            for (series, point) in &book.series {
                must!(
                    point.counts.is_some() || book.closed,
                    "series {series} of {at:?} was never counted"
                );
                let is_there = |output: &OutputBook| {
                    output.quarantined || (output.written && output.acknowledged)
                };
                must!(
                    point.counts.is_none()
                        || self.outputs_of(at.0).all(|output| is_there(&point.outputs[output])),
                    "the counts of series {series} of {at:?} are nowhere: {point:?}"
                );
            }
            self.compare(*at, now_ms, state)?;
            self.finish_windows(*at)?;
        }
        Ok(())
    }

    /// Checks that the windows of a minute have their counts.
    fn finish_windows(&self, (partition, minute): Place) -> Verdict {
        if partition >= self.partitions || self.forgetting.has_forgotten {
            return Ok(());
        }
        for (number, rollup) in self.rollups.iter().enumerate() {
            let at = (self.partitions + number, rollup.last(minute));
            let points = self.places.get(&at).into_iter().flat_map(|book| &book.series);
            let sealed = points.filter_map(|(group, point)| Some((*group, point.counts?)));
            let (sealed, right) = (Some(sealed.collect()), self.window_counts(at));
            must!(sealed == right, "the window {at:?} has {sealed:?}; right is {right:?}");
        }
        Ok(())
    }
}
