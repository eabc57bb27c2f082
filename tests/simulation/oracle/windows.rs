//! Checks that a window has the users and events of its sealed minutes, and that none of its minutes is sealed afterwards.

use super::super::event::GROUP;
use super::super::plan::ROLLUP;
use super::super::rollup::RollupPlan;
use super::forgetting::Final;
use super::{Counted, Oracle, Violation, end_ms, millis, must};
use crate::simulation::prelude::*;

/// The users and events of each group.
type Groups = BTreeMap<u8, (BTreeSet<u8>, u64)>;

/// An attempt to add a minute of a partition, `source`, to a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contribution {
    pub(crate) life: usize,
    pub(crate) window: Place,
    pub(crate) source: Place,
    /// Whether the minute has no users of the rollup.
    pub(crate) is_empty: bool,
    /// The answer of the store.
    pub(crate) is_open: bool,
}

fn add(groups: &mut Groups, rollup: RollupPlan, minute: &Final) {
    for (&series, (users, events)) in minute {
        if let Some(group) = rollup.group(series) {
            let sum = groups.entry(group).or_default();
            sum.0.extend(users);
            sum.1 += events;
        }
    }
}

impl Oracle {
    pub(super) fn rollup(&self, partition: usize) -> Option<RollupPlan> {
        self.rollups.get(partition.checked_sub(self.partitions)?).copied()
    }

    /// Returns the sealed series of a minute.
    pub(super) fn sealed_series(&self, at: Place) -> Final {
        let series = self.places.get(&at).into_iter().flat_map(|book| &book.series);
        let sealed = series.filter_map(|(series, point)| {
            Some((*series, (point.sealed_users.clone(), point.counts?.1)))
        });
        sealed.collect()
    }

    fn sources(&self, rollup: RollupPlan, last: i64) -> impl Iterator<Item = Place> + use<> {
        let partitions = self.partitions;
        rollup
            .window(last)
            .flat_map(move |minute| (0..partitions).map(move |partition| (partition, minute)))
    }

    /// Returns the counts of a window, according to the minutes that have been sealed.
    pub(super) fn window_counts(&self, at: Place) -> Option<Counted> {
        let rollup = self.rollup(at.0)?;
        let mut groups = Groups::new();
        for source in self.sources(rollup, at.1) {
            add(&mut groups, rollup, &self.sealed_series(source));
        }
        let counts = groups.into_iter();
        Some(counts.map(|(group, (users, events))| (group, (users.len() as u64, events))).collect())
    }

    pub(crate) fn contributed(
        &mut self,
        contribution: Contribution,
        now_ms: i64,
        state: &State<'_>,
    ) -> Result<&'static str, Violation> {
        let Contribution { life, window, source, is_empty, is_open } = contribution;
        let rollup = self.rollup(window.0).unwrap();
        let forgot = self.forgetting.has_forgotten;
        let mut groups = Groups::new();
        add(&mut groups, rollup, &self.sealed_series(source));
        let book = self.places.entry(window).or_default();
        let words = if book.added.contains_key(&source) {
            "again"
        } else if is_open {
            must!(!book.closed, "{source:?} was added to the window {window:?}, which is closed");
            must!(
                forgot || groups.is_empty() == is_empty,
                "{source:?} was added to the window {window:?} without {groups:?}"
            );
            let has_other = book.added.values().any(|other| *other != life);
            book.added.insert(source, life);
            if !is_empty {
                book.is_filled = true;
                book.arrived(now_ms);
            }
            if has_other { "as a further node" } else { "first" }
        } else {
            must!(forgot, "{source:?} was not added to the window {window:?}");
            "too late"
        };
        let is_added = |(number, rollup): (usize, &RollupPlan)| {
            let window = (self.partitions + number, rollup.last(source.1));
            self.places.get(&window).is_some_and(|book| book.added.contains_key(&source))
        };
        if self.rollups.iter().enumerate().all(is_added)
            && let Some(book) = self.places.get_mut(&source)
        {
            let sealed = book.series.values_mut().filter(|point| point.counts.is_some());
            sealed.for_each(|point| point.outputs[ROLLUP].written = true);
        }
        self.compare(window, now_ms, state)?;
        Ok(words)
    }

    /// Checks an attempt to close the minutes of a window in a partition.
    pub(crate) fn settled(
        &mut self,
        life: usize,
        (partition, window): (usize, [Minute; 2]),
        request: &ClaimRequest,
        is_settled: bool,
        now_ms: i64,
        state: &State<'_>,
    ) -> Verdict {
        let [first, last] = window.map(Minute::epoch_minutes);
        let wait = if state.lags(partition, now_ms) {
            request.grace.max(request.max_hold)
        } else {
            request.grace
        };
        for at in (first..=last).map(|minute| (partition, minute)) {
            let is_listed = state.closing(at).is_some();
            let book = self.places.entry(at).or_default();
            let is_new = is_listed && !book.closed;
            if !is_settled && !is_new {
                continue;
            }
            let is_claimed = [0, 1 + ROLLUP].iter().any(|kind| book.claims[*kind].is_some());
            must!(
                !book.has_sets() && !is_claimed,
                "the window until {last} was closed although {at:?} had something to do"
            );
            must!(
                !is_new || now_ms - end_ms(last) >= millis(wait),
                "the window until {last} was closed at {now_ms}, which is too early"
            );
            book.closed = true;
            let mut alive = self.forgetting.alive(partition, now_ms);
            let deaf = alive.find(|other| *other != life && !self.has_heard(*other, at));
            must!(
                !is_settled || !is_listed || deaf.is_none(),
                "{at:?} is said to be heard of by all, and {deaf:?} has not"
            );
        }
        Ok(())
    }

    /// Checks a step of sealing a window after Redis has lost something.
    pub(super) fn window_compacted(
        &mut self,
        at: Place,
        answer: &Compaction,
        state: &State<'_>,
    ) -> Verdict {
        let mut sealed = 0;
        for group in 0..=GROUP {
            let is_known =
                self.places.get(&at).and_then(|book| book.series.get(&group)?.counts).is_some();
            let Some(counts) = state.counts(at, group).filter(|_| !is_known) else {
                continue;
            };
            self.may_count(at, group, counts, state.is_incomplete(at, group))?;
            let book = self.places.entry(at).or_default();
            must!(!book.closed, "the window {at:?} was sealed although it is closed");
            book.series.entry(group).or_default().counts = Some(counts);
            self.forgetting.seals((at.0, at.1, group), counts);
            sealed += 1;
        }
        must!(sealed == answer.sealed, "the compaction of {at:?} sealed {sealed}, not {answer:?}");
        self.places.entry(at).or_default().is_filled = answer.left > 0;
        Ok(())
    }

    /// Checks counts of a window that were sealed after Redis had lost something.
    fn may_count(
        &self,
        at: Place,
        group: u8,
        (users, events): (u64, u64),
        is_incomplete: bool,
    ) -> Verdict {
        let rollup = self.rollup(at.0).unwrap();
        let mut most = Groups::new();
        let mut possible = BTreeSet::from([(BTreeSet::<u8>::new(), 0)]);
        for source in self.sources(rollup, at.1) {
            let (finals, is_known) = self.forgetting.finals(source);
            let mut options: BTreeSet<(BTreeSet<u8>, u64)> = BTreeSet::new();
            for minute in finals {
                let mut groups = Groups::new();
                add(&mut groups, rollup, minute);
                add(&mut most, rollup, minute);
                options.insert(groups.remove(&group).unwrap_or_default());
            }
            if !is_known || options.is_empty() {
                options.insert((BTreeSet::new(), 0));
            }
            let with = |(users, events): &(BTreeSet<u8>, u64)| {
                let (users, events) = (users.clone(), *events);
                let option =
                    move |(added, number): &(BTreeSet<u8>, u64)| (&users | added, events + number);
                options.iter().map(option).collect::<Vec<_>>()
            };
            possible = possible.iter().flat_map(with).collect();
        }
        let most = most.remove(&group).unwrap_or_default();
        let is_possible =
            possible.iter().any(|(all, number)| (all.len() as u64, *number) == (users, events));
        must!(
            is_possible || (is_incomplete && users <= most.0.len() as u64 && events <= most.1),
            "group {group} of the window {at:?} was sealed with {users}:{events}, incomplete: {is_incomplete}; \
             right is one of {possible:?}"
        );
        Ok(())
    }
}
