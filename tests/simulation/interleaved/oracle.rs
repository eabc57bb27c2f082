//! The expected counts, computed from the commands in the order in which they were executed.

use testing::prelude::*;

pub(super) type Event = (&'static str, &'static str, i64);
pub(super) type Counts = BTreeMap<String, (u64, u64)>;

/// The reply to a sealing step: how many series were sealed, how many events were late, and how many series are left.
pub(super) type Step = (u64, u64, u64);

#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    /// The events that are in no cut, as often as they were appended.
    open: Vec<Event>,
    cut: Vec<Event>,
    /// Whether a series of the cut has been sealed, which makes the cut final.
    is_begun: bool,
    /// How many series the steps of the cut have sealed so far, and how many events were late.
    told: (u64, u64),
    /// The series that were sealed before the cut.
    before: BTreeSet<String>,
    pub(super) sealed: Counts,
    pub(super) sent: Counts,
}

fn counts(events: &[Event]) -> Counts {
    type Sets<'a> = (BTreeSet<&'a str>, BTreeSet<(&'a str, i64)>);
    let mut sets: BTreeMap<String, Sets<'_>> = BTreeMap::new();
    for (series, user, timestamp) in events {
        let (users, all) = sets.entry((*series).to_owned()).or_default();
        users.insert(user);
        all.insert((user, *timestamp));
    }
    let sizes = |(users, all): Sets<'_>| (users.len() as u64, all.len() as u64);
    sets.into_iter().map(|(key, members)| (key, sizes(members))).collect()
}

impl Truth {
    pub(super) fn appended(&mut self, events: impl Iterator<Item = Event>) {
        self.open.extend(events);
    }

    /// Notes that the logs were cut. Until a series is sealed, a new cut also includes later events.
    pub(super) fn was_cut(&mut self) {
        if !self.is_begun {
            self.cut.append(&mut self.open);
        }
    }

    /// Checks a sealing step, after which the counts are `there`. Returns the number of copies that must be reported.
    pub(super) fn was_stepped(
        &mut self,
        step: Step,
        was_closed: bool,
        is_cut_gone: bool,
        there: &Counts,
    ) -> Result<u64, String> {
        let (sealed, late, left) = step;
        let expected = counts(&self.cut);
        let different: u64 = expected.values().map(|counts| counts.1).sum();
        let copies = self.cut.len() as u64 - different;
        let repeated = if self.is_begun { 0 } else { copies };
        let mut new = 0;
        for (series, counts) in there {
            if self.sealed.contains_key(series) {
                continue;
            }
            new += 1;
            if was_closed {
                return Err(format!("{series:?} is sealed in a closed minute"));
            }
            if expected.get(series) != Some(counts) {
                let right = expected.get(series);
                return Err(format!("{series:?} was sealed as {counts:?} instead of {right:?}"));
            }
            self.sealed.insert(series.clone(), *counts);
        }
        if new != sealed {
            return Err(format!("{new} series were sealed, but {sealed} were reported"));
        }
        self.told.0 += sealed;
        self.told.1 += late;
        self.is_begun |= sealed + late > 0;
        if !is_cut_gone {
            let stepped = left > 0 && left <= expected.len() as u64;
            let wrong = || format!("{left} of {} series are left", expected.len());
            return stepped.then_some(repeated).ok_or_else(wrong);
        }
        if (left > 0) == self.open.is_empty() {
            let open = &self.open;
            return Err(format!("{left} logs are left, which have {open:?}"));
        }
        let is_late = |series: &String| was_closed || self.before.contains(series);
        let late = expected.iter().filter(|(series, _)| is_late(series));
        let late: Vec<_> = late.map(|(_, counts)| counts.1).collect();
        let told = (expected.len() as u64 - late.len() as u64, late.iter().sum());
        if self.told != told {
            let wrong = self.told;
            return Err(format!("sealed and late: {wrong:?} were reported instead of {told:?}"));
        }
        self.before = self.sealed.keys().cloned().collect();
        self.cut.clear();
        self.is_begun = false;
        self.told = (0, 0);
        Ok(repeated)
    }

    /// Compares the counts in Redis with the expected counts. Counts of a closed minute may have expired.
    pub(super) fn agrees(&self, there: &Counts, is_closed: bool) -> Result<(), String> {
        for (series, counts) in there {
            if self.sealed.get(series) != Some(counts) {
                let sealed = self.sealed.get(series);
                return Err(format!("{series:?} is {counts:?}, was sealed as {sealed:?}"));
            }
        }
        let gone = self.sealed.keys().find(|series| !there.contains_key(*series));
        match gone {
            Some(series) if !is_closed => Err(format!("{series:?} was sealed but is missing")),
            _ => Ok(()),
        }
    }

    pub(super) fn was_sent(&mut self, series: &str, counts: (u64, u64)) -> Result<(), String> {
        if self.sealed.get(series) != Some(&counts) {
            return Err(format!("{series:?} is sent as {counts:?}"));
        }
        self.sent.insert(series.to_owned(), counts);
        Ok(())
    }

    pub(super) fn is_done(&self) -> Result<(), String> {
        if !self.open.is_empty() || !self.cut.is_empty() {
            let (open, cut) = (&self.open, &self.cut);
            return Err(format!("never counted: {open:?} and {cut:?}"));
        }
        if self.sent != self.sealed {
            return Err(format!("sent {:?} of {:?}", self.sent, self.sealed));
        }
        Ok(())
    }
}
