//! Checks the contents of sets, the counts, and which outputs have the counts.

use testing::lua_redis::keyspace::Set;

use super::super::event::{series_name, series_number, user_name};
use super::super::life::life_of;
use super::super::plan::output_number;
use super::super::state::minute;
use super::{Counted, CutBook, Oracle, PlaceBook, end_ms, must};
use crate::simulation::prelude::*;

impl PlaceBook {
    /// Removes the users and events of the selected series, and returns their counts.
    fn take_points(&mut self, is_taken: impl Fn(u8) -> bool) -> Counted {
        let points = self.series.iter_mut();
        let points =
            points.filter(|(series, point)| !point.events.is_empty() && is_taken(**series));
        let take = |(series, point): (&u8, &mut super::PointBook)| {
            let users = std::mem::take(&mut point.users);
            let events = std::mem::take(&mut point.events).len() as u64;
            let unique = users.len() as u64;
            if point.counts.is_none() {
                point.sealed_users.extend(users);
            }
            (*series, (unique, events))
        };
        points.map(take).collect()
    }

    /// Returns the next series of the cut and how many are left. Creates a cut if needed. `known` is the progress in Redis.
    /// `window` has the counts if this is a window.
    fn seal_cut(
        &mut self,
        most: usize,
        known: Option<usize>,
        window: Option<Counted>,
    ) -> (Counted, u64) {
        let mut cut = self.cut.take().unwrap_or_else(|| {
            // A minute that was added while the window was claimed is found by two claims.
            let is_filled = std::mem::take(&mut self.is_filled);
            let window = window.map(|counts| if is_filled { counts } else { Counted::new() });
            let mut series = window.unwrap_or_else(|| self.take_points(|_| true));
            series.sort_by_key(|(series, _)| series_name(*series));
            CutBook { series, done: 0 }
        });
        let to = known.unwrap_or(cut.done + most);
        let to = to.clamp(cut.done, cut.series.len());
        let sealing = cut.series[cut.done..to].to_vec();
        cut.done = to;
        let left = cut.series.len() - to;
        if left > 0 {
            self.cut = Some(cut);
        }
        (sealing, left as u64)
    }
}

impl Oracle {
    pub(crate) fn recorded(
        &mut self,
        partition: usize,
        events: &[(Event, u8)],
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        for &(event, under) in events {
            self.find_home(partition, (event, under), now_ms)?;
            let minute = event.minute();
            self.forgetting.returned(partition, event);
            let point = self.point(partition, event, under);
            must!(
                point.counts.is_none() || now_ms >= end_ms(minute),
                "{event:?} came before the end of its minute, which is counted already"
            );
            point.users.insert(event.user);
            point.events.insert((event.series, event.user, event.at));
            self.places.entry((partition, minute)).or_default().arrived(now_ms);
        }
        for minute in events.iter().map(|(event, _)| event.minute()) {
            self.compare((partition, minute), now_ms, state)?;
        }
        Ok(())
    }

    pub(crate) fn compacted(
        &mut self,
        claim: &Claim,
        series_max: usize,
        answer: &Compaction,
        (now_ms, deadline_ms): (i64, i64),
        state: &State<'_>,
    ) -> Verdict {
        let at = (claim.partition.index(), claim.minute.epoch_minutes());
        let minute = claim.minute;
        let mut expected = Compaction::default();
        let forgot = self.forgetting.has_forgotten;
        let window = self.window_counts(at);
        if window.is_some() && forgot {
            self.window_compacted(at, answer, state)?;
            return self.step_ended(claim, answer, (now_ms, deadline_ms), state);
        }
        let book = self.places.entry(at).or_default();
        let sealing = match self.layout {
            Layout::Sets if window.is_none() => {
                let left = state.series_with_sets(at);
                expected.left = left.len() as u64;
                book.take_points(|series| !left.contains(&series_name(series)))
            }
            _ => {
                // A life seals nothing if it continues a cut that Redis has forgotten.
                let known = forgot.then(|| state.cut_done(at)).flatten();
                let (sealing, left) = book.seal_cut(series_max, known, window);
                expected.left =
                    if left == 0 && book.has_sets() { answer.left.max(1) } else { left };
                sealing
            }
        };
        for (series, (users, events)) in sealing {
            let point = book.series.entry(series).or_default();
            if point.counts.is_none() && !book.closed {
                point.counts = Some((users, events));
                self.forgetting.seals((at.0, at.1, series), (users, events));
                expected.sealed += 1;
            } else {
                expected.late += events;
            }
        }
        let done = |compaction: &Compaction| (compaction.sealed, compaction.late, compaction.left);
        must!(
            done(answer) == done(&expected),
            "the compaction of {minute} returned {answer:?}, but did {expected:?}"
        );
        self.step_ended(claim, answer, (now_ms, deadline_ms), state)
    }

    fn step_ended(
        &mut self,
        claim: &Claim,
        answer: &Compaction,
        (now_ms, deadline_ms): (i64, i64),
        state: &State<'_>,
    ) -> Verdict {
        if answer.left == 0 {
            self.handed_out(claim, &answer.sending, (now_ms, deadline_ms))?;
        } else {
            self.renew(claim, deadline_ms);
        }
        let at = (claim.partition.index(), claim.minute.epoch_minutes());
        self.compare(at, now_ms, state)
    }

    /// Checks counts that an output has accepted.
    pub(crate) fn written(
        &mut self,
        output: usize,
        partition: usize,
        (minute, series): (i64, u8),
        counts: (u64, u64),
    ) -> Verdict {
        // The store may have forgotten the point in the meantime.
        let place = self.places.get_mut(&(partition, minute));
        let point = place.and_then(|place| place.series.get_mut(&series));
        must!(
            self.forgetting.sealed((partition, minute, series), counts),
            "{counts:?} was written for series {series} of minute {minute}; right is {point:?}"
        );
        if let Some(point) = point {
            point.outputs[output].written |= point.counts == Some(counts);
        }
        let point = (partition, minute, series);
        self.forgetting.takes(output, point, counts);
        Ok(())
    }

    pub(crate) const fn accepted(&mut self, output: usize) {
        self.writes[output] += 1;
        self.accepted[output] = self.writes[output];
    }

    pub(crate) fn rejected(
        &mut self,
        life: usize,
        output: usize,
        partition: usize,
        (minute, series): (i64, u8),
    ) {
        self.writes[output] += 1;
        // The store may have forgotten the point in the meantime.
        let place = self.places.get_mut(&(partition, minute));
        if let Some(point) = place.and_then(|place| place.series.get_mut(&series)) {
            point.outputs[output].rejected.insert(life, self.writes[output]);
        }
    }

    /// Notes that the store has quarantined counts, and checks that the output had rejected them from the same life.
    pub(crate) fn quarantine(
        &mut self,
        claim: &Claim,
        series: &[u8],
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        let at = (claim.partition.index(), claim.minute.epoch_minutes());
        let output = claim.output.as_ref().map_or(0, output_number);
        let forgot = self.forgetting.has_forgotten;
        let book = self.places.entry(at).or_default();
        for series in series {
            let point = book.series.entry(*series).or_default();
            if forgot && point.counts.is_none() {
                continue;
            }
            let rejected = point.outputs[output].rejected.get(&life_of(&claim.token)).copied();
            must!(
                point.counts.is_some() && (rejected.is_some() || forgot),
                "series {series} of {} was quarantined but never rejected alone",
                claim.minute
            );
            must!(
                rejected < Some(self.accepted[output]),
                "series {series} of {} was quarantined without a proof: nothing was accepted since it was rejected",
                claim.minute
            );
            point.outputs[output].quarantined = true;
        }
        self.compare(at, now_ms, state)
    }

    pub(super) fn compare(&self, at: Place, now_ms: i64, state: &State<'_>) -> Verdict {
        let name = minute(at);
        let empty = PlaceBook::default();
        let book = self.places.get(&at).unwrap_or(&empty);
        let reachable = state.is_reachable(at);
        must!(
            reachable || !book.has_sets(),
            "{name} has something to do, and no claim will find it"
        );
        for output in std::iter::once(None).chain(self.outputs_of(at.0).map(Some)) {
            let kind = output.map_or(0, |output| 1 + output);
            let held = state.token(at, output);
            must!(
                book.claims[kind].as_ref().map(|held| held.token.as_str()) == held,
                "{name} is not held by whom it should be"
            );
            // Nothing may be sent before the last set has been sealed.
            must!(
                kind == 0 || reachable || held.is_some() || !book.has_unsent(kind - 1),
                "{name} has something to send, and no claim will find it"
            );
        }
        for series in state.series_with_sets(at) {
            must!(
                book.series.contains_key(&series_number(series)),
                "{series} of {name} is not from an event"
            );
        }
        for series in state.admitted(at).into_iter().map(series_number) {
            must!(
                book.series.contains_key(&series) || state.counts(at, series).is_none(),
                "the counts of {series} of {name} are not from an event"
            );
        }
        let forgotten = book.keep_until_ms.is_some_and(|until| until <= now_ms) && !book.has_sets();
        for (&number, point) in &book.series {
            let series = series_name(number);
            if self.layout == Layout::Sets && self.rollup(at.0).is_none() {
                let [users, events] = state.sets(at, number);
                let members = (users.map_or(0, Set::len), events.map_or(0, Set::len));
                // Once the series has been counted, its users are no longer needed.
                let users_matter = point.counts.is_none() && !book.closed;
                must!(
                    members.1 == point.events.len()
                        && (members.0 == point.users.len() || !users_matter),
                    "the sets of {series} of {name} have {members:?} members instead of {point:?}"
                );
                let is_kept = |&(from, user, at): &(u8, u8, i64)| {
                    let member = format!("{}_{at}", user_name(user));
                    let gathered = format!("{member}_");
                    events.into_iter().flatten().any(|stored| {
                        if from == number {
                            *stored == member.as_bytes()
                        } else {
                            stored.starts_with(gathered.as_bytes())
                        }
                    })
                };
                must!(
                    point.events.iter().all(is_kept),
                    "the events of {series} of {name} are not those that were recorded"
                );
            }
            let counts = state.counts(at, number);
            must!(
                counts == point.counts || (forgotten && counts.is_none()),
                "the counts of {series} of {name} are {counts:?}; right is {:?}",
                point.counts
            );
            for output in self.outputs_of(at.0) {
                let output_book = &point.outputs[output];
                let is_unsent = state.is_unsent(at, output, number);
                let is_quarantined = state.is_quarantined(at, output, number);
                must!(
                    is_unsent == point.is_unsent(output)
                        && is_quarantined == output_book.quarantined,
                    "{series} of {name} is unsent: {is_unsent}, quarantined: {is_quarantined}, but {point:?}"
                );
                must!(
                    counts.is_none() || is_unsent || is_quarantined || output_book.written,
                    "the counts of {series} of {name} are nowhere"
                );
            }
        }
        Ok(())
    }
}
