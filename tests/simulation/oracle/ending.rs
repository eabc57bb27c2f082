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
                    point.counts.is_none() || point.outputs[..self.outputs].iter().all(is_there),
                    "the counts of series {series} of {at:?} are nowhere: {point:?}"
                );
            }
            self.compare(*at, now_ms, state)?;
        }
        Ok(())
    }
}
