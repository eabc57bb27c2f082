//! Tracks what nodes know, and what they must restore in a store that has rolled back.

use super::super::script::Part;
use super::{Oracle, PlaceBook, must};
use crate::simulation::prelude::*;

/// What the model knows about each minute, and the store may forget.
pub(crate) type Places = BTreeMap<Place, PlaceBook>;

type Point = (usize, i64, u8);

#[derive(Debug, Default)]
pub(super) struct ForgettingBook {
    pub(super) has_forgotten: bool,
    sealed: BTreeMap<Point, BTreeSet<(u64, u64)>>,
    taken: BTreeSet<(usize, Point, (u64, u64))>,
    /// The points that an output has or may still get, with the lives that know them.
    published: BTreeMap<Point, Published>,
    /// For each recent confirmation, its time in milliseconds, the life, the partition and the event.
    confirmed: Vec<(i64, usize, usize, Event)>,
    /// The life, partition and event of each recording that must be repeated.
    owed: BTreeSet<(usize, usize, Event)>,
    /// The life, partition and minute for each life that knows that a minute is closed or announced.
    heard: BTreeSet<(usize, usize, i64)>,
    /// For each life and partition, until when the life counts as alive, in milliseconds.
    alive: BTreeMap<(usize, usize), i64>,
    /// The life, partition and minute for each life that may write a minute, because all live nodes have learned of it.
    may_write: BTreeSet<(usize, usize, i64)>,
    excused: BTreeSet<usize>,
    ended: BTreeSet<usize>,
    /// The counts of each minute whenever all live nodes had learned that it was closed.
    finals: BTreeMap<Place, BTreeSet<Final>>,
}

/// The users and the number of events of each sealed series.
pub(super) type Final = BTreeMap<u8, (BTreeSet<u8>, u64)>;

#[derive(Debug)]
struct Published {
    values: (u64, u64),
    knowers: BTreeSet<usize>,
}

impl ForgettingBook {
    pub(super) fn seals(&mut self, point: Point, values: (u64, u64)) {
        self.sealed.entry(point).or_default().insert(values);
    }

    pub(super) fn takes(&mut self, output: usize, point: Point, values: (u64, u64)) {
        self.taken.insert((output, point, values));
    }

    pub(super) fn sealed(&self, point: Point, values: (u64, u64)) -> bool {
        let sealed = self.sealed.get(&point);
        sealed.is_some_and(|sealed| sealed.contains(&values))
    }

    pub(super) fn alive(&self, partition: usize, now_ms: i64) -> impl Iterator<Item = usize> {
        let here = self.alive.iter().filter(move |((_, at), _)| *at == partition);
        let alive = here.filter(move |(_, until_ms)| **until_ms > now_ms);
        alive.map(|((life, _), _)| *life)
    }

    pub(super) fn is_final(&mut self, at: Place, minute: Final) {
        if !minute.is_empty() {
            self.finals.entry(at).or_default().insert(minute);
        }
    }

    /// Returns the final counts of a minute, and whether a life that can restore it to the store knows that it is closed.
    pub(super) fn finals(&self, at: Place) -> (impl Iterator<Item = &Final>, bool) {
        let mut heard = self.heard.iter();
        let is_known = heard.any(|(life, partition, minute)| {
            (*partition, *minute) == at && !self.excused.contains(life)
        });
        (self.finals.get(&at).into_iter().flatten(), is_known)
    }

    pub(super) fn returned(&mut self, partition: usize, event: Event) {
        self.owed.retain(|&(_, in_partition, owed)| (in_partition, owed) != (partition, event));
    }

    pub(super) fn finish(&self) -> Verdict {
        let owed = self.owed.iter().find(|(life, ..)| !self.excused.contains(life));
        must!(owed.is_none(), "the store forgot an event that nobody recorded again: {owed:?}");
        Ok(())
    }
}

impl Oracle {
    /// Excuses a sleeping life, because it cannot restore anything.
    pub(crate) fn sleeps(&mut self, life: usize) {
        self.forgetting.excused.insert(life);
    }

    /// Excuses a life that has ended.
    pub(crate) fn ends(&mut self, life: usize) {
        self.forgetting.ended.insert(life);
        self.forgetting.excused.insert(life);
    }

    pub(crate) fn writing(&mut self, life: usize, point: Point, values: (u64, u64)) -> Verdict {
        let book = &mut self.forgetting;
        let (partition, minute, _) = point;
        must!(
            book.may_write.contains(&(life, partition, minute)),
            "life {life} begins to write {point:?} before the other nodes have heard of it"
        );
        let heard = book.heard.iter();
        let heard = heard.filter(|(_, heard_partition, heard_minute)| {
            (*heard_partition, *heard_minute) == (partition, minute)
        });
        let knowers = heard.map(|(life, ..)| *life).collect();
        let published = book.published.entry(point).or_insert(Published { values, knowers });
        if published.values != values {
            let witness = published.knowers.difference(&book.excused).next();
            must!(
                witness.is_none(),
                "{point:?} gets {values:?} although life {witness:?} knows of {:?}",
                published.values
            );
            published.values = values;
        }
        published.knowers.insert(life);
        Ok(())
    }

    /// Notes that a life may write these minutes, because all live nodes have learned of the announcement.
    pub(crate) fn may_write(&mut self, life: usize, partition: usize, minutes: &[Minute]) {
        let minutes = minutes.iter().map(|minute| minute.epoch_minutes());
        let may_write = minutes.map(|minute| (life, partition, minute));
        self.forgetting.may_write.extend(may_write);
    }

    pub(super) fn has_heard(&self, life: usize, (partition, minute): Place) -> bool {
        self.forgetting.heard.contains(&(life, partition, minute))
    }

    pub(crate) fn checked_in(&mut self, life: usize, partition: usize, until_ms: i64) {
        self.forgetting.alive.insert((life, partition), until_ms);
    }

    pub(crate) fn knows(&mut self, life: usize, partition: usize, closed: &[Minute]) {
        let book = &mut self.forgetting;
        for minute in closed {
            let heard = (life, partition, minute.epoch_minutes());
            book.heard.insert(heard);
            let from = (partition, minute.epoch_minutes(), 0);
            let to = (partition, minute.epoch_minutes(), u8::MAX);
            for (_, published) in book.published.range_mut(from..=to) {
                // If neither the store nor any life knows a point any longer, a point with the same name is a new point.
                let is_known = published.knowers.difference(&book.excused).next().is_some();
                if is_known || !book.has_forgotten {
                    published.knowers.insert(life);
                }
            }
        }
    }

    pub(crate) fn keeps(&mut self, life: usize, partition: usize, events: &[Event], now_ms: i64) {
        let kept = events.iter().map(|&event| (now_ms, life, partition, event));
        self.forgetting.confirmed.extend(kept);
    }

    pub(crate) fn places(&self) -> Places {
        self.places.clone()
    }

    /// Rolls back to the state at `saved_ms`. Recordings confirmed since then and after `owed_from_ms` must be repeated.
    pub(crate) fn forget(
        &mut self,
        mut places: Places,
        part: Part,
        saved_ms: i64,
        owed_from_ms: i64,
    ) {
        let partitions = self.partitions;
        let is_lost = |(partition, _): &Place| {
            let own = if *partition < partitions { Part::Series } else { Part::Windows };
            part == Part::All || part == own
        };
        places.retain(|at, _| is_lost(at));
        self.places.retain(|at, _| !is_lost(at));
        self.places.append(&mut places);
        let book = &mut self.forgetting;
        book.has_forgotten = true;
        // The store does not know whether a life is alive until the life has checked in again.
        book.alive.retain(|(_, partition), _| !is_lost(&(*partition, 0)));
        book.excused.clone_from(&book.ended);
        for &(output, (partition, minute, series), values) in &book.taken {
            let place = self.places.get_mut(&(partition, minute));
            if let Some(point) = place.and_then(|place| place.series.get_mut(&series)) {
                point.outputs[output].written |= point.counts == Some(values);
            }
        }
        let lost = book.confirmed.iter().filter(|(at, ..)| *at > saved_ms.max(owed_from_ms));
        book.owed.extend(lost.map(|&(_, life, partition, event)| (life, partition, event)));
    }
}
