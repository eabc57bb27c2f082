//! Checks that the admission of a series is final and the same for all nodes, and that every event has a single series.

use event_data_service::store::Admission;

use super::super::event::overflow_of;
use super::{Oracle, PlaceBook, end_ms, must};
use crate::simulation::prelude::*;

impl PlaceBook {
    fn may_be_forgotten(&self, now_ms: i64) -> bool {
        let over = |until: Option<i64>| until.is_some_and(|until| until <= now_ms);
        !self.has_sets() && (over(self.keep_until_ms) || over(self.unused_until_ms))
    }

    fn begin_anew(&mut self) {
        self.admitted.clear();
        self.refused.clear();
        self.homes.clear();
        self.anew = true;
    }
}

impl Oracle {
    pub(crate) fn admitted(
        &mut self,
        at: Place,
        answers: &[(u8, Admission)],
        series_max: u64,
        now_ms: i64,
    ) -> Verdict {
        let retention_ms = self.retention_ms;
        let book = self.places.entry(at).or_default();
        if book.may_be_forgotten(now_ms) {
            book.begin_anew();
        }
        for &(series, answer) in answers {
            if answer == Admission::Refused {
                must!(
                    !book.admitted.contains(&series),
                    "series {series} of {at:?} was refused although it was admitted"
                );
                must!(
                    book.anew || book.admitted.len() as u64 >= series_max,
                    "series {series} of {at:?} was refused although there was room"
                );
                book.refused.insert(series);
            } else {
                must!(
                    !book.refused.contains(&series),
                    "series {series} of {at:?} was admitted although it was refused"
                );
                book.admitted.insert(series);
                must!(
                    book.admitted.len() as u64 <= series_max,
                    "{at:?} has more series than {series_max}: {:?}",
                    book.admitted
                );
            }
        }
        if book.homes.is_empty() {
            book.unused_until_ms = Some(now_ms.max(end_ms(at.1)) + retention_ms);
        }
        Ok(())
    }

    /// Checks that an event is always recorded under its own series if this is admitted, or else under the overflow series.
    pub(super) fn find_home(
        &mut self,
        partition: usize,
        (event, under): (Event, u8),
        now_ms: i64,
    ) -> Verdict {
        let at = (partition, event.minute());
        // Until a node notices that the store has forgotten the admissions, it uses the earlier answer.
        let forgot = self.forgetting.has_forgotten;
        let book = self.places.entry(at).or_default();
        if book.may_be_forgotten(now_ms) {
            book.begin_anew();
        }
        book.unused_until_ms = None;
        let answered = if under == event.series {
            book.admitted.contains(&event.series)
        } else {
            book.refused.contains(&event.series) && under == overflow_of(partition)
        };
        must!(
            answered || book.anew || forgot,
            "{event:?} was recorded under {under}, but no node was given that answer"
        );
        // Sealed counts of an overflow series fill the minute, although the store has forgotten which series were admitted.
        book.anew |= !answered;
        let key = (event.series, event.user, event.at);
        let home = *book.homes.entry(key).or_insert(under);
        must!(home == under || forgot, "{event:?} was recorded under {home} and under {under}");
        Ok(())
    }
}
