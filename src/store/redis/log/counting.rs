//! Counts distinct fingerprints per series in bounded memory, if necessary in several passes over ranges of fingerprints.

use std::time::Duration;

use ::redis::{Cmd, cmd};
use hashbrown::HashMap;
use tokio::time::Instant;

use super::Logs;
use super::frame::{self, Event, Events, FRAME_BYTES, Piece};
use crate::store::off_runtime;
use crate::store::redis::counted::{Length, log_key};
use crate::store::redis::gateway::At;
use crate::store::redis::keys::Scope;
use crate::store::{Result, SeriesCounts, StoreError};

/// The maximum size of a read in bytes, so that it does not block Redis for long.
const READ_BYTES: usize = 512 << 10;
/// The maximum size of a read in bytes while all replies are small, because fast small replies say little about large ones.
const UNTRIED_BYTES: usize = 64 << 10;

impl ReadBudget {
    /// Reads the next frames of a log, or returns None if none are left. Missing frames are an error unless `may_go` is set.
    pub(super) async fn read(
        &mut self,
        at: At<'_>,
        (log, length): (&str, u64),
        position: &mut u64,
        may_go: bool,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let left = length.saturating_sub(*position);
        if left == 0 {
            return Ok(None);
        }
        let wanted = left.min(self.frames());
        let mut range = cmd("LRANGE");
        range.arg(log).arg(*position).arg(*position + wanted - 1);
        let began = Instant::now();
        let frames: Vec<Vec<u8>> = at.ask(range).await?;
        self.learn(frames.iter().map(Vec::len).sum(), began.elapsed());
        let read = frames.len() as u64;
        *position += read;
        if read == wanted {
            return Ok(Some(frames));
        }
        if may_go {
            return Ok(None);
        }
        let message = format!("log {log} has only {position} of {length} frames");
        Err(StoreError::unavailable(message))
    }
}

/// The size of reads. It starts at one frame and grows while replies are fast, because a timeout would close the connection.
#[derive(Debug)]
pub(super) struct ReadBudget {
    bytes: usize,
    /// Replies that take longer than this are slow.
    slow: Duration,
}

impl ReadBudget {
    pub(super) fn new(response: Duration) -> Self {
        Self { bytes: FRAME_BYTES, slow: response / 4 }
    }

    const fn frames(&self) -> u64 {
        (self.bytes / FRAME_BYTES) as u64
    }

    fn learn(&mut self, bytes: usize, took: Duration) {
        if took > self.slow {
            self.bytes = (self.bytes / 2).max(FRAME_BYTES);
        } else if took < self.slow / 2 {
            let is_large = bytes >= self.bytes / 2;
            let most = if is_large { READ_BYTES } else { UNTRIED_BYTES };
            self.bytes = self.bytes.max(most.min(2 * self.bytes));
        }
    }
}

/// The maximum number of fingerprints in memory: 16 MiB, or briefly twice that, because a list is copied when it grows.
const HELD_MAX: usize = 2 << 20;
/// The maximum number of users of sealed minutes in memory, in total: 32 MiB. More users are read again from the kept logs.
const FOUND_MAX: usize = 4 << 20;
/// The minimum number of items by which a list grows.
const LIST_MIN: usize = 4;
/// The number of items up to which the capacity of a list doubles.
const DOUBLED_MAX: usize = 1024;

impl Logs {
    /// Counts all series in these logs. Missing frames are an error unless `may_go` is set. Returns the users of up to
    /// `users_max` users, in total.
    pub(super) async fn count(
        &self,
        at: At<'_>,
        logs: &[Length],
        may_go: bool,
        users_max: usize,
    ) -> Result<Counted> {
        // Acquiring a permit cannot fail, because the semaphore is never closed.
        let _turn = self.counting.acquire().await;
        let mut tally = Tally { users_max, ..Tally::new(HELD_MAX) };
        let mut budget = ReadBudget::new(self.response);
        loop {
            for log in logs {
                let mut numbers = Numbers::default();
                let mut position = 0;
                let (key, length) = (log_key(at.place, &log.0), log.1);
                while let Some(frames) =
                    budget.read(at, (&key, length), &mut position, may_go).await?
                {
                    let take = move || {
                        for frame in &frames {
                            tally.take(&mut numbers, frame);
                        }
                        (tally, numbers)
                    };
                    (tally, numbers) = off_runtime(take).await;
                }
            }
            let end_pass = move || {
                tally.end_pass();
                tally
            };
            tally = off_runtime(end_pass).await;
            if tally.is_done {
                return Ok(tally.counted());
            }
        }
    }
}

/// The users of each series, sorted.
type Users = HashMap<String, Vec<u64>>;

#[derive(Debug)]
pub(super) struct Counted {
    /// Sorted by series.
    pub(super) counts: Vec<SeriesCounts>,
    /// The number of events, including duplicates.
    pub(super) events: u64,
    /// None if there are too many.
    users: Option<Users>,
}

/// The users in a cut, and the logs that were counted.
pub(super) type Found = (Vec<Length>, Users);

impl Logs {
    /// Counts a cut. If its users will be added to windows, they are cached until then.
    pub(super) async fn count_cut(
        &self,
        at: At<'_>,
        mut cut: Vec<Length>,
        keeps_users: bool,
    ) -> Result<(Vec<SeriesCounts>, u64)> {
        let found = || self.found.sum(|(_, users)| users.values().map(Vec::len).sum());
        let users_max = if keeps_users { FOUND_MAX.saturating_sub(found()) } else { 0 };
        let Counted { counts, events, users } = self.count(at, &cut, false, users_max).await?;
        if let Some(users) = users {
            cut.retain(|(_, length)| *length > 0);
            self.found.put(at.bucket(), (cut, users));
        }
        Ok((counts, events))
    }

    /// Passes the users of sealed series to `take`. A series was sealed with the first cut that contains it.
    pub(super) async fn kept_users(
        &self,
        at: At<'_>,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()> {
        let _turn = self.counting.acquire().await;
        let wanted: HashMap<&str, usize> =
            series.iter().enumerate().map(|(place, counts)| (&*counts.series, place)).collect();
        let kept: Vec<(String, String)> = at.ask(Cmd::hgetall(at.key("kept"))).await?;
        let length = |(name, kept): (String, String)| {
            let (cut, length) = kept.split_once(':')?;
            Some((cut.parse::<u64>().ok()?, name, length.parse::<u64>().ok()?))
        };
        let mut logs: Vec<_> = kept.into_iter().filter_map(length).collect();
        logs.sort_unstable();
        // A log with the same name and length is the same.
        let are_kept = |(counted, _): &Found| {
            counted
                .iter()
                .map(|(name, length)| (name, length))
                .eq(logs.iter().map(|(_, name, length)| (name, length)))
        };
        if let Some((_, mut users)) = self.found.take(&at.bucket()).filter(are_kept) {
            for (place, counts) in series.iter().enumerate() {
                take(place, users.remove(&counts.series).unwrap_or_default());
            }
            return Ok(());
        }
        let mut cut_of = vec![u64::MAX; series.len()];
        let mut users: Vec<Vec<u64>> = vec![Vec::new(); series.len()];
        let mut held = 0;
        let mut budget = ReadBudget::new(self.response);
        for (cut, name, length) in logs {
            let key = at.place.key(Scope::Minute, "kept:") + &name;
            let mut numbers = Numbers::default();
            let mut position = 0;
            while let Some(frames) = budget.read(at, (&key, length), &mut position, false).await? {
                for bytes in frames {
                    frame::read(&bytes, |piece| match piece {
                        Piece::Entry(number, series) => {
                            if let Some(&place) = wanted.get(series) {
                                cut_of[place] = cut_of[place].min(cut);
                                if cut_of[place] == cut {
                                    numbers.insert(number, place);
                                }
                            }
                        }
                        Piece::Part(number, _, events) => {
                            if let Some(&place) = numbers.get(&number) {
                                held += events.len();
                                let found = events.iter().map(|event| Event::of_bytes(event).user);
                                users[place].extend(found);
                            }
                        }
                    });
                }
                if held >= HELD_MAX {
                    held = 0;
                    for (place, users) in users.iter_mut().enumerate() {
                        take(place, std::mem::take(users));
                    }
                }
            }
        }
        for (place, users) in users.into_iter().enumerate() {
            take(place, users);
        }
        Ok(())
    }
}

/// The index of each series in the tally, by its number in a log.
type Numbers = HashMap<u64, usize>;

#[derive(Debug, Default)]
struct Tally {
    places: HashMap<Box<str>, usize>,
    series: Vec<Series>,
    /// The first and the last fingerprint in the range of this pass.
    first: u64,
    last: u64,
    is_done: bool,
    /// The total capacity of all lists.
    held: usize,
    held_max: usize,
    /// The number of events read in the first pass.
    events: u64,
    /// The maximum number of users that are kept.
    users_max: usize,
    /// The number of users that are kept.
    kept: usize,
    /// Whether a malformed frame has been found.
    is_foreign: bool,
}

/// The kinds of fingerprints.
const USERS: usize = 0;
const EVENTS: usize = 1;

#[derive(Debug, Default)]
struct Series {
    /// The fingerprints of this pass by kind, with duplicates.
    lists: [Vec<u64>; 2],
    /// The counts from earlier passes.
    counted: [u64; 2],
    /// The users from earlier passes.
    users: Vec<u64>,
}

impl Tally {
    fn new(held_max: usize) -> Self {
        Self { last: u64::MAX, held_max, ..Self::default() }
    }

    fn take(&mut self, numbers: &mut Numbers, bytes: &[u8]) {
        let whole = frame::read(bytes, |piece| match piece {
            Piece::Entry(number, series) => {
                let place = self.place(series);
                numbers.insert(number, place);
            }
            Piece::Part(number, from, events) => self.add(numbers, number, from, events),
        });
        if whole.is_none() && !std::mem::replace(&mut self.is_foreign, true) {
            tracing::error!(
                bytes = bytes.len(),
                "a log contains a malformed frame, which is not counted"
            );
        }
    }

    fn place(&mut self, series: &str) -> usize {
        if let Some(place) = self.places.get(series) {
            return *place;
        }
        self.series.push(Series::default());
        self.places.insert(series.into(), self.series.len() - 1);
        self.series.len() - 1
    }

    fn add(&mut self, numbers: &Numbers, number: u64, from: u64, events: Events<'_>) {
        let Some(&place) = numbers.get(&number) else {
            tracing::error!(
                number,
                "a log contains events for a series that it does not name; they are not counted"
            );
            return;
        };
        if self.first == 0 {
            self.events += events.len() as u64;
        }
        for kind in [USERS, EVENTS] {
            self.make_room(place, kind, events.len());
            let pass = self.first..=self.last;
            let fingerprints = events.iter().map(Event::of_bytes).map(|event| match kind {
                USERS => event.user,
                _ => event.fingerprint(from),
            });
            let list = &mut self.series[place].lists[kind];
            list.extend(fingerprints.filter(|fingerprint| pass.contains(fingerprint)));
        }
    }

    /// Makes room for `more` fingerprints: if necessary, removes duplicates, then repeatedly halves the range of this pass.
    fn make_room(&mut self, place: usize, kind: usize, more: usize) {
        let mut growth = growth(&self.series[place].lists[kind], more);
        if growth > 0 && self.held + growth > self.held_max {
            self.each(distinct);
            while self.held > self.held_max / 2 && self.first < self.last {
                self.last = self.first + (self.last - self.first) / 2;
                let last = self.last;
                self.each(|list| {
                    list.retain(|fingerprint| *fingerprint <= last);
                    list.shrink_to_fit();
                });
            }
            growth = self::growth(&self.series[place].lists[kind], more);
        }
        let list = &mut self.series[place].lists[kind];
        let before = list.capacity();
        list.reserve_exact(before - list.len() + growth);
        self.held += list.capacity() - before;
    }

    fn each(&mut self, change: impl Fn(&mut Vec<u64>)) {
        self.held = 0;
        for list in self.series.iter_mut().flat_map(|series| &mut series.lists) {
            change(list);
            self.held += list.capacity();
        }
    }

    /// Counts the fingerprints of this pass and starts the next one, with a larger range if this one had few fingerprints.
    fn end_pass(&mut self) {
        self.is_done = self.last == u64::MAX;
        let mut size = self.last - self.first;
        self.each(distinct);
        if self.held < self.held_max / 4 {
            size = size.saturating_mul(2).saturating_add(1);
        }
        for Series { lists, counted, users } in &mut self.series {
            for (list, counted) in lists.iter().zip(counted) {
                *counted += list.len() as u64;
            }
            let [list, _] = std::mem::take(lists);
            self.kept += list.len();
            if self.kept > self.users_max {
                *users = Vec::new();
            } else if users.is_empty() {
                *users = list;
            } else {
                users.extend(list);
            }
        }
        self.held = 0;
        self.first = self.last.wrapping_add(1);
        self.last = self.first.saturating_add(size);
    }

    fn counted(self) -> Counted {
        let Self { mut series, places, events, .. } = self;
        let mut users = (self.kept <= self.users_max).then(Users::new);
        let mut counts: Vec<_> = places
            .into_iter()
            .map(|(name, place)| {
                let [unique, cumulative] = series[place].counted;
                let name = String::from(name);
                if let Some(users) = &mut users {
                    users.insert(name.clone(), std::mem::take(&mut series[place].users));
                }
                SeriesCounts { series: name, unique, cumulative, ..SeriesCounts::default() }
            })
            .collect();
        counts.sort_unstable();
        Counted { counts, events, users }
    }
}

/// Returns how far a list's capacity must grow to fit `more` items: 0, or far enough that lists grow rarely. Small lists
/// double, and large ones, which take most of the memory, grow by a quarter.
fn growth(list: &Vec<u64>, more: usize) -> usize {
    let spare = list.capacity() - list.len();
    if spare >= more {
        return 0;
    }
    (more - spare).max(list.capacity() / 4).max(list.capacity().min(DOUBLED_MAX)).max(LIST_MIN)
}

fn distinct(fingerprints: &mut Vec<u64>) {
    fingerprints.sort_unstable();
    fingerprints.dedup();
    fingerprints.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::frame::Frame;
    use super::*;

    proptest! {
        /// However little memory may be used, the counts are the same as with sets.
        #[test]
        fn passes_change_no_count(
            parts in prop::collection::vec((0..3_u32, prop::option::of(1..4_u64), prop::collection::vec((0..30_u64, 0..30_u64), 0..40)), 0..12),
            held_max in 4..200_usize,
            users_max in 0..60_usize,
        ) {
            // Both logs contain every part, but they number the series differently.
            let logs: Vec<Vec<Vec<u8>>> = [0, 100].map(|shift| {
                parts.iter().map(|(series, from, events)| {
                    let mut frame = Frame::default();
                    frame.name(series + shift, &format!("s={series}"));
                    // Users are spread out, while times are close together.
                    let events = events.iter().map(|(user, time)| Event { user: user.wrapping_mul(0x2545_f491_4f6c_dd1d), time: *time });
                    frame.add(series + shift, from.map(|from| from << 40), events);
                    frame.bytes()
                }).collect()
            }).into();
            let mut tally = Tally { users_max, ..Tally::new(held_max) };
            let mut passes = 0;
            while !tally.is_done {
                passes += 1;
                for log in &logs {
                    let mut numbers = Numbers::default();
                    for frame in log {
                        tally.take(&mut numbers, frame);
                        // 40 is the maximum number of events in a part.
                        prop_assert!(tally.held <= held_max + 40, "{} held", tally.held);
                    }
                }
                tally.end_pass();
            }
            let mut expected = Vec::new();
            for series in parts.iter().map(|(series, ..)| *series).collect::<BTreeSet<_>>() {
                let found = parts.iter().filter(|part| part.0 == series);
                let users: BTreeSet<_> = found.clone().flat_map(|part| part.2.iter().map(|event| event.0)).collect();
                let events: BTreeSet<_> = found.flat_map(|part| part.2.iter().map(|event| (part.1, event))).collect();
                expected.push(SeriesCounts {
                    series: format!("s={series}"),
                    unique: users.len() as u64,
                    cumulative: events.len() as u64,
                    ..SeriesCounts::default()
                });
            }
            let users_max = tally.users_max;
            let counted = tally.counted();
            prop_assert_eq!(&counted.counts, &expected, "{} passes", passes);
            let unique: u64 = expected.iter().map(|counts| counts.unique).sum();
            prop_assert_eq!(counted.users.is_some(), unique <= users_max as u64);
            for counts in expected {
                let Some(users) = counted.users.as_ref().map(|users| &users[&counts.series]) else {
                    break;
                };
                prop_assert_eq!(users.len() as u64, counts.unique);
                prop_assert!(users.is_sorted_by(|user, next| user < next));
            }
        }
    }

    const RESPONSE: Duration = Duration::from_secs(4);
    const FAST: Duration = Duration::ZERO;

    #[test]
    fn read_size_grows_with_fast_answers() {
        let mut budget = ReadBudget::new(RESPONSE);
        assert_eq!(budget.frames(), 1);
        for _ in 0..9 {
            budget.learn(60, FAST);
        }
        assert_eq!(budget.bytes, UNTRIED_BYTES);
        for _ in 0..9 {
            budget.learn(budget.bytes, FAST);
        }
        assert_eq!(budget.bytes, READ_BYTES);
        budget.learn(60, FAST);
        assert_eq!(budget.bytes, READ_BYTES);
    }

    #[test]
    fn read_size_shrinks_after_slow_answers() {
        let mut budget = ReadBudget::new(RESPONSE);
        budget.bytes = READ_BYTES;
        // A reply that is neither fast nor slow changes nothing.
        budget.learn(READ_BYTES, RESPONSE / 5);
        assert_eq!(budget.bytes, READ_BYTES);
        budget.learn(READ_BYTES, RESPONSE / 3);
        assert_eq!(budget.bytes, READ_BYTES / 2);
        for _ in 0..9 {
            budget.learn(60, RESPONSE / 3);
        }
        assert_eq!(budget.frames(), 1);
    }
}
