//! [`Caps`]: which series of a minute are admitted, and how many users they may still get, as a recorder knows it.
//!
//! The store decides, for all nodes. This keeps its answers, so that a recorder asks once per series and minute, and
//! for users only near their cap. Answers hold for one generation of the store, and until a while after the last event
//! of their minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::diagnosis::Cause;
use crate::event::{Minute, OverflowSeries, Partition};
use crate::node::Throttle;
use crate::store::{Admission, AdmitRequest, Admitted, Recording, StoreError};

/// The most answers that are kept, in full minutes: one begins while another still has events.
const FULL_MINUTES: usize = 2;
/// How long the answers for a minute are kept after its last events. For later events the store is asked again.
const UNUSED_FOR: Duration = Duration::from_secs(120);
/// The most series of one question. Redis serves nobody else meanwhile, a fraction of a ms.
const SERIES_ASKED: usize = 1000;
/// The questions that are under way at the same time. They are for different minutes, mostly.
const MINUTES_AT_ONCE: usize = 16;
/// A node adds one in so many of the users that a series has room for before it asks again how many there are. So each
/// further node exceeds the cap by an eighth at most, however often it begins anew.
const USERS_UNASKED_SHARE: u64 = 8;
/// How often a node warns of series beyond the cap, at most.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The caps of a series and of a minute.
#[derive(Debug, Clone, Copy)]
pub struct CapSettings {
    /// The most series of a minute in the partition, all nodes together.
    pub series_max: usize,
    /// The most users of a series in a minute; 0: as many as there are.
    pub users_max: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Caps {
    partition: Partition,
    settings: CapSettings,
    /// The series that takes the events of refused ones.
    overflow: OverflowSeries,
    /// Chosen at random, so that no sender can construct series whose hashes are equal.
    seed: u64,
    generation: u64,
    minutes: BTreeMap<Minute, Answers>,
    /// The number of answers.
    known: usize,
}

#[derive(Debug)]
struct Answers {
    /// By a hash of the series: 128 bits, of which no two are equal by chance.
    series: HashMap<u128, Known>,
    /// Of series that the store had admitted before it was first asked, and does not tell the users of.
    before: Option<Before>,
    last_used: Instant,
}

/// How many users series had when the store was first asked about their minute, by whichever process or connection they came.
#[derive(Debug)]
struct Before {
    /// Those that had more than half of the cap.
    counted: HashMap<u128, u64>,
    /// The most that any other had.
    most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Refused,
    /// It may get so many new users before the store has to be asked how many there are.
    Admitted(u64),
}

impl Caps {
    pub(super) fn new(
        partition: Partition,
        settings: CapSettings,
        overflow: OverflowSeries,
    ) -> Self {
        Self {
            partition,
            settings,
            overflow,
            seed: rand::random(),
            generation: 0,
            minutes: BTreeMap::new(),
            known: 0,
        }
    }

    /// Drops all answers unless the store still has this generation.
    pub(super) fn follow(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.minutes.clear();
            self.known = 0;
        }
    }

    fn key(&self, series: &str) -> u128 {
        xxh3_128_with_seed(series.as_bytes(), self.seed)
    }

    fn get(&self, minute: Minute, series: &str) -> Option<Known> {
        let answers = self.minutes.get(&minute)?;
        answers.series.get(&self.key(series)).copied()
    }

    /// Keeps an answer for a minute that was asked for.
    fn learn(&mut self, minute: Minute, series: &str, what: Known) {
        let key = self.key(series);
        if let Some(answers) = self.minutes.get_mut(&minute) {
            let before = answers.series.insert(key, what);
            self.known += usize::from(before.is_none());
        }
    }

    /// Drops the minutes that have had no events for a while.
    pub(super) fn expire(&mut self, now: Instant) {
        self.minutes.retain(|_, answers| now.duration_since(answers.last_used) < UNUSED_FOR);
        self.known = self.minutes.values().map(|of| of.series.len()).sum();
    }

    /// Also drops the lowest minutes, the least likely to go on, until the rest fits the bound.
    fn make_room(&mut self, now: Instant) {
        self.expire(now);
        let most = self.settings.series_max.saturating_mul(FULL_MINUTES);
        while self.known > most {
            let Some((_, gone)) = self.minutes.pop_first() else {
                break;
            };
            self.known -= gone.series.len();
        }
    }

    /// Whether the events of a series go to the overflow series. It was asked for before.
    pub(super) fn refuses(&self, minute: Minute, series: &str) -> bool {
        self.get(minute, series) == Some(Known::Refused)
    }

    /// Asks the store which of these series are admitted, as far as that is not known.
    pub(super) async fn ask<'a>(
        &mut self,
        store: &dyn Recording,
        wanted: impl Iterator<Item = (Minute, &'a str)>,
        now: Instant,
    ) -> Result<(), StoreError> {
        self.make_room(now);
        let mut unknown: BTreeMap<Minute, Vec<&str>> = BTreeMap::new();
        for (minute, series) in wanted {
            let key = self.key(series);
            let answers = self.minutes.entry(minute).or_insert_with(|| Answers {
                series: HashMap::new(),
                before: None,
                last_used: now,
            });
            answers.last_used = now;
            if !answers.series.contains_key(&key) {
                unknown.entry(minute).or_default().push(series);
            }
        }
        let mut asked = Vec::new();
        for (minute, all) in &unknown {
            asked.extend(all.chunks(SERIES_ASKED).map(|series| (*minute, series)));
        }
        let request = |&(minute, series)| AdmitRequest {
            minute,
            series,
            series_max: self.settings.series_max as u64,
            overflow: self.overflow.of(minute),
        };
        let requests: Vec<_> = asked.iter().map(request).collect();
        let calls = requests.iter().map(|it| store.admit(self.partition, it));
        let calls: Vec<_> = calls.collect();
        let answers = stream::iter(calls).buffered(MINUTES_AT_ONCE);
        let answers: Vec<_> = answers.try_collect().await?;
        for ((minute, series), answer) in asked.into_iter().zip(answers) {
            self.answered(store, minute, series, answer).await?;
        }
        Ok(())
    }

    async fn answered(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        series: &[&str],
        answer: Admitted,
    ) -> Result<(), StoreError> {
        self.learn_before(store, minute, &answer).await?;
        let mut refused = None;
        for (&series, admission) in series.iter().zip(answer.series) {
            let known = match admission {
                Admission::Admitted { users } => {
                    Known::Admitted(self.unasked_of(minute, series, users))
                }
                Admission::Refused => {
                    refused = Some(series);
                    Known::Refused
                }
            };
            self.learn(minute, series, known);
        }
        if let Some(series) = refused {
            let overflow = self.overflow.of(minute).to_owned();
            let unasked = self.unasked_of(minute, &overflow, answer.overflow_users);
            self.learn(minute, &overflow, Known::Admitted(unasked));
            self.warn(minute, series);
        }
        Ok(())
    }

    /// Finds out how many users series had that are not new to the store, where it does not tell them: no more than events arrived.
    /// Only where these could come near the cap the store counts.
    async fn learn_before(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        answer: &Admitted,
    ) -> Result<(), StoreError> {
        let Some(answers) = self.minutes.get(&minute) else {
            return Ok(());
        };
        let arrivals = answer.arrivals;
        let most = answers.before.as_ref().map_or(arrivals, |it| it.most);
        let half = self.settings.users_max / 2;
        let mut told = answer.series.iter();
        let is_told = answer.overflow_users.is_some()
            && told.all(|it| *it != Admission::Admitted { users: None });
        let mut before = Before { counted: HashMap::new(), most };
        if most > half && !is_told && self.settings.users_max > 0 {
            let counts = store.counts(self.partition, minute).await?;
            let near = counts.iter().filter(|counts| counts.unique > half);
            before.counted = near.map(|it| (self.key(&it.series), it.unique)).collect();
            before.most = half;
        } else if answers.before.is_some() {
            return Ok(());
        }
        if let Some(answers) = self.minutes.get_mut(&minute) {
            answers.before = Some(before);
        }
        Ok(())
    }

    /// The same for a series that the store has admitted, and of which it has told so many users.
    fn unasked_of(&self, minute: Minute, series: &str, told: Option<u64>) -> u64 {
        let before = || {
            let before = self.minutes.get(&minute)?.before.as_ref()?;
            let counted = before.counted.get(&self.key(series)).copied();
            Some(counted.unwrap_or(before.most))
        };
        self.unasked(told.or_else(before).unwrap_or_default())
    }

    /// How many users a series that has so many may get before the store has to be asked again.
    const fn unasked(&self, users: u64) -> u64 {
        self.settings.users_max.saturating_sub(users) / USERS_UNASKED_SHARE
    }

    /// Whether a series is so far from the cap that it takes so many new users without a question.
    pub(super) fn has_room(&mut self, minute: Minute, series: &str, new: u64) -> bool {
        if self.settings.users_max == 0 || new == 0 {
            return true;
        }
        let key = self.key(series);
        let answers = self.minutes.get_mut(&minute);
        match answers.and_then(|answers| answers.series.get_mut(&key)) {
            Some(Known::Admitted(unasked)) if new <= *unasked => {
                *unasked -= new;
                true
            }
            _ => false,
        }
    }

    /// Which of these users, all different, a series has no room for.
    pub(super) async fn users_refused<'a>(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        series: &str,
        users: &[&'a str],
    ) -> Result<HashSet<&'a str>, StoreError> {
        let mut refused = HashSet::new();
        let found = store.users(self.partition, minute, series, users).await?;
        let mut count = found.count;
        for (&user, there) in users.iter().zip(found.there) {
            if there {
                continue;
            }
            if count < self.settings.users_max {
                count += 1;
            } else {
                refused.insert(user);
            }
        }
        self.learn(minute, series, Known::Admitted(self.unasked(count)));
        Ok(refused)
    }

    fn warn(&self, minute: Minute, series: &str) {
        static WARNED: Mutex<Throttle> = Mutex::new(Throttle::new(WARN_INTERVAL));
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        if !warned.is_due() {
            return;
        }
        tracing::warn!(
            partition = self.partition.index(),
            minute = %minute.shown(),
            series,
            overflow = self.overflow.of(minute),
            "{}",
            Cause::Overflow
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::Partitions;
    use crate::store::memory::MemoryStore;

    /// A node runs for months, and each minute has its series.
    #[tokio::test]
    async fn minutes_without_events_expire() {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let hour = Duration::from_secs(3600);
        let store = MemoryStore::new("a", &partitions, hour, u64::MAX, u64::MAX);
        let settings = CapSettings { series_max: 1000, users_max: 0 };
        let partition = partitions.of("", Minute::MIN);
        let mut caps = Caps::new(partition, settings, OverflowSeries::always(partition));
        let mut now = Instant::now();
        let minute = |number| Minute::from_epoch_minutes(number).unwrap();
        for number in 1..=20 {
            // One that has events all the time is kept.
            for wanted in [(minute(0), "s=1"), (minute(number), "s=1")] {
                let asked = caps.ask(&store, std::iter::once(wanted), now);
                asked.await.unwrap();
            }
            now += Duration::from_secs(60);
        }
        caps.expire(now);
        let kept: Vec<Minute> = caps.minutes.keys().copied().collect();
        assert_eq!(kept, [minute(0), minute(20)]);
        assert_eq!(caps.known, 2);
    }
}
