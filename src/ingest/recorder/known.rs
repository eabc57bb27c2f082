//! [`Known`]: what a recorder knows about the store, which decides for all nodes: admitted series, room for users, and recorded
//! users. It is valid for one generation of the store. Series and users are kept as 128-bit hashes with random keys, so that
//! neither chance nor a sender can cause collisions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::coverage::Coverage;
use super::replay::Budget;
use crate::diagnosis::Cause;
use crate::event::{Minute, OverflowSeries, Partition};
use crate::node::{Throttle, lock};
use crate::store::{
    Admission, AdmitRequest, Admitted, Bucket, RecordRequest, Recording, StoreError,
};

/// Maximum number of known series, in full minutes. A minute begins while the previous one still receives events.
const FULL_MINUTES: usize = 2;
/// How long a minute stays known after its last events.
const UNUSED_FOR: Duration = Duration::from_secs(120);
/// Maximum number of series per query, which blocks Redis for a fraction of a ms.
const SERIES_ASKED: usize = 1000;
/// Maximum number of concurrent queries, which are mostly for different minutes.
const MINUTES_AT_ONCE: usize = 16;
/// A node adds an eighth of the users that a series still has room for before it asks for the current number. Each additional
/// node can therefore exceed the cap by at most an eighth, however many times it restarts.
const USERS_UNASKED_SHARE: u64 = 8;
const WARN_INTERVAL: Duration = Duration::from_secs(10);
const MINUTE_BYTES: usize = 96;
const FIRST_BYTES: usize = 192;

/// The caps per series and per minute.
#[derive(Debug, Clone, Copy)]
pub struct CapSettings {
    /// Maximum number of series per minute in the partition, for all nodes together.
    pub series_max: usize,
    /// Maximum number of users per series and minute; 0 if unlimited.
    pub users_max: u64,
}

#[derive(Debug)]
pub(super) struct Known {
    partition: Partition,
    caps: CapSettings,
    overflow: OverflowSeries,
    /// The memory budget for users; `None` if the store finds new users itself.
    budget: Option<Arc<Budget>>,
    /// The hash keys for series and for users. They differ so that a user named like a series cannot make two sums equal.
    seeds: [u64; 2],
    generation: u64,
    minutes: BTreeMap<Minute, KnownMinute>,
    pub(super) coverage: Coverage,
}

#[derive(Debug)]
struct KnownMinute {
    series: HashMap<u128, KnownSeries>,
    /// How many users a series may have had when the store was first queried about the minute, if the reply does not say.
    users_before: Option<u64>,
    users: KnownUsers,
    last_used: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownSeries {
    Refused,
    /// How many new users it may get before the recorder has to ask for their number.
    Admitted(u64),
}

#[derive(Debug)]
struct KnownUsers {
    budget: Option<Arc<Budget>>,
    /// The sums of the series' and the user's hash. Collisions are as unlikely as with a hash of the concatenated text, without
    /// copying.
    hashes: HashSet<u128>,
}

impl KnownUsers {
    fn new(budget: Option<&Arc<Budget>>) -> Self {
        Self { budget: budget.cloned(), hashes: HashSet::new() }
    }

    fn bytes(&self) -> usize {
        match self.hashes.allocation_size() {
            0 => 0,
            table => table + MINUTE_BYTES,
        }
    }

    /// Makes room for one more user, if the budget allows it. A table doubles when it grows, so its current size is reserved
    /// first.
    fn reserve(&mut self) -> bool {
        if self.hashes.len() < self.hashes.capacity() {
            return true;
        }
        let before = self.bytes();
        let asked = before.max(FIRST_BYTES);
        let Some(budget) = self.budget.as_ref().filter(|budget| budget.reserve(asked)) else {
            return false;
        };
        self.hashes.reserve(1);
        budget.release(asked.saturating_sub(self.bytes() - before));
        true
    }
}

impl Drop for KnownUsers {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(self.bytes());
        }
    }
}

impl Known {
    pub(super) fn new(
        partition: Partition,
        caps: CapSettings,
        overflow: OverflowSeries,
        budget: Option<Arc<Budget>>,
    ) -> Self {
        Self {
            partition,
            caps,
            overflow,
            budget,
            seeds: rand::random(),
            generation: 0,
            minutes: BTreeMap::new(),
            coverage: Coverage::default(),
        }
    }

    pub(super) fn follow(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.minutes.clear();
            self.coverage.renew_all();
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.minutes.retain(|_, minute| now.duration_since(minute.last_used) < UNUSED_FOR);
    }

    const fn bucket(&self, minute: Minute) -> Bucket {
        Bucket { partition: self.partition, minute }
    }

    fn hash(&self, series: &str) -> u128 {
        xxh3_128_with_seed(series.as_bytes(), self.seeds[0])
    }

    fn hash_user(&self, series: u128, user: &str) -> u128 {
        series.wrapping_add(xxh3_128_with_seed(user.as_bytes(), self.seeds[1]))
    }

    /// Returns whether events for a series go to the overflow series, after [`Known::ask`].
    pub(super) fn refuses(&self, minute: Minute, series: &str) -> bool {
        let known = self.minutes.get(&minute);
        known.and_then(|known| known.series.get(&self.hash(series))) == Some(&KnownSeries::Refused)
    }

    /// Asks the store which of these series are admitted, unless that is known already. Their minutes count as used at `now`.
    pub(super) async fn ask<'a>(
        &mut self,
        store: &dyn Recording,
        wanted: impl Iterator<Item = (Minute, &'a str)>,
        now: Instant,
    ) -> Result<(), StoreError> {
        self.make_room(now);
        let mut unknown: BTreeMap<Minute, Vec<&str>> = BTreeMap::new();
        for (minute, series) in wanted {
            let hash = self.hash(series);
            let known = self.minutes.entry(minute).or_insert_with(|| KnownMinute {
                series: HashMap::new(),
                users_before: None,
                users: KnownUsers::new(self.budget.as_ref()),
                last_used: now,
            });
            known.last_used = now;
            if !known.series.contains_key(&hash) {
                unknown.entry(minute).or_default().push(series);
            }
        }
        let chunks = unknown.iter().flat_map(|(&minute, series)| {
            series.chunks(SERIES_ASKED).map(move |series| (minute, series))
        });
        let asked: Vec<_> = chunks.collect();
        let request = |&(minute, series)| AdmitRequest {
            minute,
            series,
            series_max: self.caps.series_max as u64,
            overflow: self.overflow.of(minute),
        };
        let requests: Vec<_> = asked.iter().map(request).collect();
        let calls = requests.iter().map(|request| store.admit(self.partition, request));
        let calls: Vec<_> = calls.collect();
        let answers = stream::iter(calls).buffered(MINUTES_AT_ONCE);
        let answers: Vec<_> = answers.try_collect().await?;
        for ((minute, series), answer) in asked.into_iter().zip(answers) {
            self.learn(store, minute, series, answer).await?;
        }
        Ok(())
    }

    /// Drops unused minutes, and then the earliest, which are the least likely to get events, until their series fit.
    fn make_room(&mut self, now: Instant) {
        self.expire(now);
        let series_max = self.caps.series_max.saturating_mul(FULL_MINUTES);
        let series = |minutes: &BTreeMap<_, KnownMinute>| -> usize {
            minutes.values().map(|minute| minute.series.len()).sum()
        };
        while series(&self.minutes) > series_max {
            self.minutes.pop_first();
        }
    }

    async fn learn(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        series: &[&str],
        answer: Admitted,
    ) -> Result<(), StoreError> {
        static WARNED: Mutex<Throttle> = Mutex::new(Throttle::new(WARN_INTERVAL));
        self.learn_users_before(store, minute, &answer).await?;
        let mut refused = None;
        for (&series, admission) in series.iter().zip(answer.series) {
            match admission {
                Admission::Admitted { users } => self.admitted(minute, series, users),
                Admission::Refused => {
                    refused = Some(series);
                    let hash = self.hash(series);
                    if let Some(known) = self.minutes.get_mut(&minute) {
                        known.series.insert(hash, KnownSeries::Refused);
                    }
                }
            }
        }
        if let Some(series) = refused {
            let overflow = self.overflow.of(minute).to_owned();
            self.admitted(minute, &overflow, answer.overflow_users);
            if lock(&WARNED).is_due() {
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

    /// If the store's reply does not say how many users series had before the first query, limits their number to that of the
    /// events that had arrived. The store counts users only if these could come near the cap.
    async fn learn_users_before(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        answer: &Admitted,
    ) -> Result<(), StoreError> {
        let before = self.minutes.get(&minute).and_then(|known| known.users_before);
        let mut before = before.unwrap_or(answer.arrivals);
        let half = self.caps.users_max / 2;
        let mut told = answer.series.iter();
        let is_told = answer.overflow_users.is_some()
            && told.all(|admission| *admission != Admission::Admitted { users: None });
        if before > half && !is_told && self.caps.users_max > 0 {
            // A series with recorded events has been admitted.
            for counts in store.counts(self.bucket(minute)).await? {
                if counts.unique > half {
                    self.admitted(minute, &counts.series, Some(counts.unique));
                }
            }
            before = half;
        }
        if let Some(known) = self.minutes.get_mut(&minute) {
            known.users_before = Some(before);
        }
        Ok(())
    }

    /// Notes that a series in a known minute is admitted. If `users` is unknown, it has at most as many as at the first query.
    fn admitted(&mut self, minute: Minute, series: &str, users: Option<u64>) {
        let (hash, users_max) = (self.hash(series), self.caps.users_max);
        let admitted = |users: u64| {
            KnownSeries::Admitted(users_max.saturating_sub(users) / USERS_UNASKED_SHARE)
        };
        if let Some(known) = self.minutes.get_mut(&minute) {
            if let Some(users) = users {
                known.series.insert(hash, admitted(users));
            } else {
                let before = known.users_before.unwrap_or_default();
                known.series.entry(hash).or_insert_with(|| admitted(before));
            }
        }
    }

    /// Returns whether a series is far enough from its cap to get `new` users without asking.
    pub(super) fn has_room(&mut self, minute: Minute, series: &str, new: u64) -> bool {
        if self.caps.users_max == 0 || new == 0 {
            return true;
        }
        let hash = self.hash(series);
        match self.minutes.get_mut(&minute).and_then(|known| known.series.get_mut(&hash)) {
            Some(KnownSeries::Admitted(unasked)) if new <= *unasked => {
                *unasked -= new;
                true
            }
            _ => false,
        }
    }

    pub(super) async fn users_refused<'a>(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        series: &str,
        users: &[&'a str],
    ) -> Result<HashSet<&'a str>, StoreError> {
        let found = store.users(self.bucket(minute), series, users).await?;
        let further = users.iter().zip(found.there).filter(|(_, is_there)| !is_there);
        let further: Vec<&str> = further.map(|(user, _)| *user).collect();
        let room = usize::try_from(self.caps.users_max.saturating_sub(found.count));
        let room = room.unwrap_or(usize::MAX).min(further.len());
        self.admitted(minute, series, Some(found.count + room as u64));
        Ok(further[room..].iter().copied().collect())
    }

    /// Returns each user in a request that may be missing from the store; `None` if the store finds new users itself.
    pub(super) fn new_users<'a>(&self, request: &RecordRequest<'a>) -> Option<Vec<&'a str>> {
        self.budget.as_ref()?;
        let RecordRequest { batch, occurrences, .. } = *request;
        let known = self.minutes.get(&request.minute).map(|known| &known.users.hashes);
        let series = self.hash(request.series);
        let hashes = occurrences.iter().map(|event| self.hash_user(series, batch.user(event)));
        // All hashes are computed first, so that the CPU can overlap the look-ups, which wait for memory.
        let hashes: Vec<_> = hashes.collect();
        let mut seen = HashSet::with_capacity(hashes.len());
        let mut new = Vec::with_capacity(hashes.len());
        for (event, hash) in occurrences.iter().zip(hashes) {
            if known.is_none_or(|known| !known.contains(&hash)) && seen.insert(hash) {
                new.push(batch.user(event));
            }
        }
        Some(new)
    }

    /// Returns whether there are known users, which requests leave out.
    pub(super) fn has_users(&self) -> bool {
        self.minutes.values().any(|minute| !minute.users.hashes.is_empty())
    }

    /// Adds the users in acknowledged requests, whose minutes count as used at `now`.
    pub(super) fn confirmed(&mut self, requests: &[RecordRequest<'_>], now: Instant) {
        for request in requests {
            let series = self.hash(request.series);
            for user in request.new_users.iter().flatten() {
                let user = self.hash_user(series, user);
                if !self.insert(request.minute, user, now) {
                    break;
                }
            }
        }
    }

    /// Adds a user, if there is memory. To make room, drops the least recently used minutes, but never one that is in use.
    fn insert(&mut self, minute: Minute, user: u128, now: Instant) -> bool {
        loop {
            let Some(known) = self.minutes.get_mut(&minute) else {
                return false;
            };
            if known.users.reserve() {
                known.users.hashes.insert(user);
                return true;
            }
            let unused = self
                .minutes
                .values_mut()
                .filter(|other| other.last_used < now && !other.users.hashes.is_empty());
            let Some(oldest) = unused.min_by_key(|other| other.last_used) else {
                return false;
            };
            oldest.users = KnownUsers::new(self.budget.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::{Batch, Partitions};
    use crate::store::memory::MemoryStore;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    fn known(budget: Option<&Arc<Budget>>) -> Known {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let partition = partitions.of("", Minute::MIN);
        let caps = CapSettings { series_max: 1000, users_max: 0 };
        Known::new(partition, caps, OverflowSeries::new(&partitions, partition), budget.cloned())
    }

    async fn ask(known: &mut Known, minutes: &[i64], now: Instant) {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let hour = Duration::from_secs(3600);
        let store = MemoryStore::new("a", &partitions, hour, u64::MAX, u64::MAX);
        let wanted = minutes.iter().map(|&number| (minute(number), "s=1"));
        known.ask(&store, wanted, now).await.unwrap();
    }

    /// A node runs for months, and every minute has its own series.
    #[tokio::test]
    async fn minutes_without_events_expire() {
        let mut known = known(None);
        let mut now = Instant::now();
        for number in 1..=20 {
            // A minute that keeps receiving events is kept.
            ask(&mut known, &[0, number], now).await;
            now += Duration::from_secs(60);
        }
        known.expire(now);
        let kept: Vec<Minute> = known.minutes.keys().copied().collect();
        assert_eq!(kept, [minute(0), minute(20)]);
        assert!(known.minutes.values().all(|minute| minute.series.len() == 1));
    }

    fn new_users(known: &Known, number: i64, series: &str, users: &[String]) -> Vec<String> {
        let mut batch = Batch::default();
        for user in users {
            assert!(batch.push(minute(number), series, user, 0));
        }
        let new = known.new_users(&RecordRequest::new(&batch, &batch.groups()[0]));
        new.unwrap().into_iter().map(ToOwned::to_owned).collect()
    }

    /// Records these users for `a=1` in a minute.
    async fn insert(known: &mut Known, number: i64, users: std::ops::Range<u32>) {
        let now = Instant::now();
        ask(known, &[number], now).await;
        let series = known.hash("a=1");
        for user in users {
            let user = known.hash_user(series, &user.to_string());
            known.insert(minute(number), user, now);
        }
    }

    fn knows(known: &Known, number: i64, user: u32) -> bool {
        new_users(known, number, "a=1", &[user.to_string()]).is_empty()
    }

    #[tokio::test]
    async fn known_users_of_other_series_and_minutes_are_others() {
        let mut known = known(Some(&Arc::new(Budget::of_users(100))));
        insert(&mut known, 1, 0..10).await;
        assert!(knows(&known, 1, 9));
        assert!(!knows(&known, 1, 10) && !knows(&known, 2, 9));
        for (series, user) in [("a=", "11"), ("a=2", "1"), ("1", "a=1")] {
            assert_eq!(new_users(&known, 1, series, &[user.to_owned()]), [user]);
        }
        let twice = ["9", "x", "x"].map(str::to_owned);
        assert_eq!(new_users(&known, 1, "a=1", &twice), ["x"]);
    }

    #[tokio::test]
    async fn dropped_users_are_unknown_and_take_no_memory() {
        let budget = Arc::new(Budget::of_users(100));
        let mut known = known(Some(&budget));
        for _ in 0..2 {
            insert(&mut known, 1, 0..10).await;
        }
        assert!(knows(&known, 1, 5) && known.has_users());
        assert_eq!(budget.used(), known.minutes[&minute(1)].users.bytes());
        known.follow(1);
        assert!(!knows(&known, 1, 5) && !known.has_users());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn oldest_minute_makes_room_and_a_full_one_takes_no_more_users() {
        let budget = Arc::new(Budget::of_users(1000));
        let mut known = known(Some(&budget));
        insert(&mut known, 1, 0..1000).await;
        assert!(knows(&known, 1, 999));
        insert(&mut known, 2, 0..1000).await;
        assert!(!knows(&known, 1, 0));
        assert!(knows(&known, 2, 999));
        insert(&mut known, 2, 1000..9000).await;
        assert!(knows(&known, 2, 1000) && !knows(&known, 2, 8999));
        assert!(budget.used() <= budget.max());
    }
}
