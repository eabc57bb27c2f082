//! [`Caps`]: the series of each minute that are admitted, and the users that they may still get, as a recorder knows them.
//!
//! The store decides for all nodes. `Caps` keeps its answers, so that a recorder asks once per series and minute, and for users
//! only near their cap. Answers hold for one generation of the store, and until a while after the last event of their minute.

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
use crate::store::{Admission, AdmitRequest, Admitted, Bucket, Recording, StoreError};

/// The limit of answers, in full minutes: one begins while another still has events.
const FULL_MINUTES: usize = 2;
/// The time for which the answers for a minute are kept after its last events.
const UNUSED_FOR: Duration = Duration::from_secs(120);
/// The limit of series in one question, which blocks Redis for a fraction of a ms.
const SERIES_ASKED: usize = 1000;
/// The concurrent questions, which are mostly for different minutes.
const MINUTES_AT_ONCE: usize = 16;
/// A node adds an eighth of the users that a series has room for before it asks for their number again. So each further node exceeds
/// the cap by an eighth at most, however often it restarts.
const USERS_UNASKED_SHARE: u64 = 8;
/// The shortest interval of warnings of series beyond the cap.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The caps of a series and of a minute.
#[derive(Debug, Clone, Copy)]
pub struct CapSettings {
    /// The limit of series of a minute in the partition, all nodes together.
    pub series_max: usize,
    /// The limit of users of a series in a minute; 0: no limit.
    pub users_max: u64,
}

/// The store's answers to one recorder.
#[derive(Debug)]
pub(super) struct Caps {
    partition: Partition,
    settings: CapSettings,
    /// The series that takes the events of refused ones.
    overflow: OverflowSeries,
    /// Random, so that no sender can construct series with equal hashes.
    seed: u64,
    minutes: BTreeMap<Minute, Answers>,
    /// The number of answers.
    known: usize,
}

#[derive(Debug)]
struct Answers {
    /// By a hash of the series of 128 bits, which has no collisions by chance.
    series: HashMap<u128, Known>,
    /// The users of series that the store had admitted before the first question, if its answers do not tell them.
    before: Option<Before>,
    last_used: Instant,
}

/// The users that series had at the first question about their minute.
#[derive(Debug)]
struct Before {
    /// The series with more than half of the cap.
    counted: HashMap<u128, u64>,
    /// The limit of every other series.
    most: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Refused,
    /// The new users that it may get before the recorder has to ask for their number.
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
            minutes: BTreeMap::new(),
            known: 0,
        }
    }

    /// Drops all answers: another store may give others.
    pub(super) fn clear(&mut self) {
        self.minutes.clear();
        self.known = 0;
    }

    fn key(&self, series: &str) -> u128 {
        xxh3_128_with_seed(series.as_bytes(), self.seed)
    }

    fn get(&self, minute: Minute, series: &str) -> Option<Known> {
        let answers = self.minutes.get(&minute)?;
        answers.series.get(&self.key(series)).copied()
    }

    /// Keeps an answer for a known minute.
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
        self.known = self.minutes.values().map(|answers| answers.series.len()).sum();
    }

    /// Also drops the earliest minutes, which are the least likely to get events, until the others fit the bound.
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

    /// Returns whether the events of a series go to the overflow series, after [`Caps::ask`].
    pub(super) fn refuses(&self, minute: Minute, series: &str) -> bool {
        self.get(minute, series) == Some(Known::Refused)
    }

    /// Asks the store which of these series are admitted, unless that is known.
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
        let calls = requests.iter().map(|request| store.admit(self.partition, request));
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
        static WARNED: Mutex<Throttle> = Mutex::new(Throttle::new(WARN_INTERVAL));
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
            if WARNED.lock().unwrap_or_else(PoisonError::into_inner).is_due() {
                tracing::warn!(
                    partition = self.partition.index(),
                    minute = %minute.shown(),
                    series,
                    overflow,
                    "{}",
                    Cause::Overflow
                );
            }
        }
        Ok(())
    }

    /// Finds out how many users series had before, if the store's answer does not tell: at most as many as events arrived. The store
    /// counts only when these could come near the cap.
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
        let most = answers.before.as_ref().map_or(arrivals, |before| before.most);
        let half = self.settings.users_max / 2;
        let mut told = answer.series.iter();
        let is_told = answer.overflow_users.is_some()
            && told.all(|admission| *admission != Admission::Admitted { users: None });
        let mut before = Before { counted: HashMap::new(), most };
        if most > half && !is_told && self.settings.users_max > 0 {
            let counts = store.counts(self.bucket(minute)).await?;
            let near = counts.iter().filter(|counts| counts.unique > half);
            before.counted = near.map(|counts| (self.key(&counts.series), counts.unique)).collect();
            before.most = half;
        } else if answers.before.is_some() {
            return Ok(());
        }
        if let Some(answers) = self.minutes.get_mut(&minute) {
            answers.before = Some(before);
        }
        Ok(())
    }

    /// Returns the users that an admitted series may get before the recorder has to ask again. `told` is their number in the store's
    /// answer.
    fn unasked_of(&self, minute: Minute, series: &str, told: Option<u64>) -> u64 {
        let before = || {
            let before = self.minutes.get(&minute)?.before.as_ref()?;
            let counted = before.counted.get(&self.key(series)).copied();
            Some(counted.unwrap_or(before.most))
        };
        self.unasked(told.or_else(before).unwrap_or_default())
    }

    /// Returns the users that a series with `users` may get before the recorder has to ask again.
    const fn unasked(&self, users: u64) -> u64 {
        self.settings.users_max.saturating_sub(users) / USERS_UNASKED_SHARE
    }

    /// Returns whether a series is far enough from the cap to get `new` users without a question.
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

    const fn bucket(&self, minute: Minute) -> Bucket {
        Bucket { partition: self.partition, minute }
    }

    /// Returns which of these different users a series has no room for.
    pub(super) async fn users_refused<'a>(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        series: &str,
        users: &[&'a str],
    ) -> Result<HashSet<&'a str>, StoreError> {
        let mut refused = HashSet::new();
        let found = store.users(self.bucket(minute), series, users).await?;
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
            // A minute with continuous events is kept.
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
