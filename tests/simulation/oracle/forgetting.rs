//! A store that rolls back: what nodes know, and what they must restore.

use super::{Oracle, PlaceBook, must};
use crate::simulation::prelude::*;

/// The model's knowledge of all minutes that a store can forget.
pub(crate) type Places = BTreeMap<Place, PlaceBook>;

type Point = (usize, i64, u8);

#[derive(Debug, Default)]
pub(super) struct ForgettingBook {
    pub(super) has_forgotten: bool,
    sealed: BTreeMap<Point, BTreeSet<(u64, u64)>>,
    taken: BTreeSet<(usize, Point, (u64, u64))>,
    /// The points that an output has or may get, and the lives that know them.
    published: BTreeMap<Point, Published>,
    /// Recent confirmations: time in ms, life, partition.
    confirmed: Vec<(i64, usize, usize, Event)>,
    /// The events that a life must record again.
    owed: BTreeSet<(usize, usize, Event)>,
    /// The lives that know a minute as closed or announced.
    heard: BTreeSet<(usize, usize, i64)>,
    /// By life and partition: until when, in ms, a life counts as alive.
    alive: BTreeMap<(usize, usize), i64>,
    /// The lives that were told that all live nodes have heard.
    may_write: BTreeSet<(usize, usize, i64)>,
    excused: BTreeSet<usize>,
    ended: BTreeSet<usize>,
}

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

    pub(super) fn returned(&mut self, partition: usize, event: Event) {
        self.owed.retain(|&(_, of, owed)| (of, owed) != (partition, event));
    }

    pub(super) fn finish(&self) -> Verdict {
        let owed = self.owed.iter().find(|(life, ..)| !self.excused.contains(life));
        must!(owed.is_none(), "the store forgot an event that nobody recorded again: {owed:?}");
        Ok(())
    }
}

impl Oracle {
    /// A sleeping life cannot restore anything.
    pub(crate) fn sleeps(&mut self, life: usize) {
        self.forgetting.excused.insert(life);
    }

    /// Neither can an ended one.
    pub(crate) fn ends(&mut self, life: usize) {
        self.forgetting.ended.insert(life);
        self.forgetting.excused.insert(life);
    }

    pub(crate) fn writing(&mut self, life: usize, point: Point, values: (u64, u64)) -> Verdict {
        let book = &mut self.forgetting;
        let (partition, minute, _) = point;
        must!(
            book.may_write.contains(&(life, partition, minute)),
            "life {life} begins to write {point:?} before the other nodes have heard so"
        );
        let heard = book.heard.iter();
        let heard = heard.filter(|(_, at, of)| (*at, *of) == (partition, minute));
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

    /// A life was told that all live nodes have heard that these minutes will be written.
    pub(crate) fn may_write(&mut self, life: usize, partition: usize, minutes: &[Minute]) {
        let minutes = minutes.iter().map(|minute| minute.epoch_minutes());
        let may_write = minutes.map(|minute| (life, partition, minute));
        self.forgetting.may_write.extend(may_write);
    }

    /// Returns whether a life knows a minute as closed or announced.
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
                // If the store and all lives that knew a point are gone, a point of the same name is a new one.
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

    /// The store rolled back to its state at `saved_ms`. Confirmations since then and after `owed_from_ms` must be
    /// repeated.
    pub(crate) fn forget(&mut self, places: Places, saved_ms: i64, owed_from_ms: i64) {
        self.places = places;
        let book = &mut self.forgetting;
        book.has_forgotten = true;
        // A life that has not checked in again is unknown there, or known by an earlier check-in.
        book.alive.clear();
        book.excused.clone_from(&book.ended);
        for &(output, (partition, minute, series), values) in &book.taken {
            let place = self.places.get_mut(&(partition, minute));
            if let Some(point) = place.and_then(|place| place.series.get_mut(&series)) {
                point.of[output].written |= point.counts == Some(values);
            }
        }
        let lost = book.confirmed.iter().filter(|(at, ..)| *at > saved_ms.max(owed_from_ms));
        book.owed.extend(lost.map(|&(_, life, partition, event)| (life, partition, event)));
    }
}
