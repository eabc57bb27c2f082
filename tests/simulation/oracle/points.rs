//! Points: what is in the sets, what is counted, and where the counts are.

use event_data_service::event::Minute;
use event_data_service::store::memory::State;
use event_data_service::store::{Claim, Compaction};

use super::super::event::{Event, series_name, series_number, user_name};
use super::super::plan::{output_name, output_number};
use super::{Oracle, Place, Verdict, end_ms, must};

impl Oracle {
    /// A recording was carried out.
    pub(crate) fn recorded(
        &mut self,
        partition: usize,
        events: &[(Event, u8)],
        now_ms: i64,
        state: &State,
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
            let book = self.places.entry((partition, minute)).or_default();
            let first = book.recorded_ms.map_or(now_ms, |(first, _)| first);
            book.recorded_ms = Some((first, now_ms));
            book.looked_ms = None;
            // A minute that was forgotten already is not saved by an event that comes now.
            if book.keep_until_ms.is_some_and(|until| until > now_ms) {
                book.keep_until_ms = None;
            }
        }
        for minute in events.iter().map(|(event, _)| event.minute()) {
            self.compare((partition, minute), now_ms, state)?;
        }
        Ok(())
    }

    /// A compaction of a current claim was carried out.
    pub(crate) fn compacted(
        &mut self,
        claim: &Claim,
        answer: &Compaction,
        (now_ms, deadline_ms): (i64, i64),
        state: &State,
    ) -> Verdict {
        let at = (claim.partition.index(), claim.minute.epoch_minutes());
        let minute = claim.minute;
        let there = state.partitions[at.0].minutes.get(&minute);
        let mut expected = Compaction::default();
        let book = self.places.entry(at).or_default();
        for (series, point) in &mut book.series {
            if point.events.is_empty() {
                continue;
            }
            if there.is_some_and(|there| there.sets.contains_key(series_name(*series))) {
                expected.left += 1;
                continue;
            }
            let users = std::mem::take(&mut point.users).len() as u64;
            let events = std::mem::take(&mut point.events).len() as u64;
            if point.counts.is_none() && !book.closed {
                point.counts = Some((users, events));
                self.forgetting
                    .seals((at.0, at.1, *series), (users, events));
                expected.sealed += 1;
            } else {
                expected.late += events;
            }
        }
        let done = |it: &Compaction| (it.sealed, it.late, it.left);
        must!(
            done(answer) == done(&expected),
            "the compaction of {minute} answered {answer:?}, and did {expected:?}"
        );
        if answer.left == 0 {
            self.handed_out(claim, &answer.sending, (now_ms, deadline_ms))?;
        } else {
            self.renew(claim, deadline_ms);
        }
        self.compare(at, now_ms, state)
    }

    /// Counts came to an output, which took them.
    pub(crate) fn written(
        &mut self,
        output: usize,
        partition: usize,
        (minute, series): (i64, u8),
        counts: (u64, u64),
    ) -> Verdict {
        // The store may have forgotten the point meanwhile.
        let place = self.places.get_mut(&(partition, minute));
        let point = place.and_then(|place| place.series.get_mut(&series));
        must!(
            self.forgetting.sealed((partition, minute, series), counts),
            "{counts:?} was written for series {series} of minute {minute}; right is {point:?}"
        );
        if let Some(point) = point {
            point.of[output].written |= point.counts == Some(counts);
        }
        let point = (partition, minute, series);
        self.forgetting.takes(output, point, counts);
        Ok(())
    }

    /// An output accepted a write as a whole.
    pub(crate) const fn accepted(&mut self, output: usize) {
        self.writes[output] += 1;
        self.accepted[output] = self.writes[output];
    }

    /// An output rejected a write of this count alone.
    pub(crate) fn rejected(
        &mut self,
        output: usize,
        partition: usize,
        (minute, series): (i64, u8),
    ) {
        self.writes[output] += 1;
        // The store may have forgotten the point meanwhile.
        let place = self.places.get_mut(&(partition, minute));
        if let Some(point) = place.and_then(|place| place.series.get_mut(&series)) {
            point.of[output].rejected = Some(self.writes[output]);
        }
    }

    /// An output refuses these for good, and the store keeps them apart.
    pub(crate) fn quarantine(
        &mut self,
        claim: &Claim,
        series: &[u8],
        now_ms: i64,
        state: &State,
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
            must!(
                point.counts.is_some() && (point.of[output].rejected.is_some() || forgot),
                "series {series} of {} was quarantined, and was never rejected alone",
                claim.minute
            );
            must!(
                point.of[output].rejected < Some(self.accepted[output]),
                "series {series} of {} was quarantined without a proof: nothing was accepted since it was rejected",
                claim.minute
            );
            point.of[output].quarantined = true;
        }
        self.compare(at, now_ms, state)
    }

    /// Compares a minute of the store with the model.
    pub(super) fn compare(
        &self,
        (partition, minute): Place,
        now_ms: i64,
        state: &State,
    ) -> Verdict {
        let name = Minute::from_epoch_minutes(minute).unwrap();
        let there = &state.partitions[partition];
        let found = there.minutes.get(&name);
        let empty = super::PlaceBook::default();
        let book = self.places.get(&(partition, minute)).unwrap_or(&empty);
        let reachable = there.waiting.contains(&name) || there.claims.contains_key(&name);
        must!(
            reachable || !book.has_sets(),
            "{name} has something to do, and no claim will find it"
        );
        let to_send = (0..self.outputs).map(|output| there.sending.get(&output_name(output)));
        let claims = std::iter::once(Some(&there.claims)).chain(to_send);
        for (kind, claims) in claims.enumerate() {
            let held = claims.and_then(|claims| claims.get(&name));
            must!(
                book.claims[kind].as_ref().map(|held| &held.token) == held.map(|held| &held.token),
                "{name} is not held by whom it should be"
            );
            // Before the last set is sealed nothing is to be sent.
            must!(
                kind == 0 || reachable || held.is_some() || !book.has_unsent(kind - 1),
                "{name} has something to send, and no claim will find it"
            );
        }
        if let Some(found) = found {
            for series in found.sets.keys().chain(found.counts.keys()) {
                must!(
                    book.series.contains_key(&series_number(series)),
                    "{series} of {name} is not from an event"
                );
            }
        }
        let forgotten = book.keep_until_ms.is_some_and(|until| until <= now_ms) && !book.has_sets();
        let open = found.map_or_else(Vec::new, |found| found.open_sets(name));
        for (series, point) in &book.series {
            let number = *series;
            let series = series_name(number);
            let sets = open.iter().find(|sets| sets.series == series);
            let members = sets.map_or((0, 0), |sets| (sets.users.len(), sets.events.len()));
            // Users are not handed over again once they are counted.
            let users_matter = point.counts.is_none() && !book.closed;
            must!(
                members.1 == point.events.len()
                    && (members.0 == point.users.len() || !users_matter),
                "the sets of {series} of {name} have {members:?} members instead of {point:?}"
            );
            if let Some(sets) = sets {
                let same = |&(from, user, at): &(u8, u8, i64)| {
                    let member = format!("{}_{at}", user_name(user));
                    if from == number {
                        sets.events.contains(&member)
                    } else {
                        let gathered = format!("{member}_");
                        sets.events.iter().any(|it| it.starts_with(&gathered))
                    }
                };
                must!(
                    point.events.iter().all(same),
                    "the events of {series} of {name} are not those that were recorded"
                );
            }
            let counts = found.and_then(|found| found.counts.get(series)).copied();
            must!(
                counts == point.counts || (forgotten && counts.is_none()),
                "the counts of {series} of {name} are {counts:?}; right is {:?}",
                point.counts
            );
            for output in 0..self.outputs {
                let (to, of) = (output_name(output), &point.of[output]);
                let unsent = found.and_then(|found| found.unsent.get(&to));
                let is_unsent = unsent.is_some_and(|unsent| unsent.contains(series));
                let quarantine = there.quarantine.get(&to).filter(|all| !all.is_empty());
                let is_quarantined =
                    quarantine.is_some_and(|all| all.contains_key(&(name, series.to_owned())));
                must!(
                    is_unsent == point.is_unsent(output) && is_quarantined == of.quarantined,
                    "{series} of {name} is unsent: {is_unsent}, quarantined: {is_quarantined}, but {point:?}"
                );
                must!(
                    counts.is_none() || is_unsent || is_quarantined || of.written,
                    "the counts of {series} of {name} are nowhere"
                );
            }
        }
        Ok(())
    }
}
