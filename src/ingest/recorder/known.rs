//! [`Known`]: a recorder's cache of the store's replies: which series are admitted, how many more users they may get,
//! and which users have been recorded. The cache is valid for one generation of the store. Series and users are kept as
//! 128-bit hashes with random keys, so collisions are negligibly rare, and senders cannot cause any.

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

/// Maximum number of known series, as a multiple of the cap, because two minutes may receive events at the same time.
const FULL_MINUTES: usize = 2;
/// The time a minute stays in the cache after its last events.
const UNUSED_FOR: Duration = Duration::from_secs(120);
/// Maximum number of series per query. A query of this size blocks Redis for a fraction of a ms.
const SERIES_ASKED: usize = 1000;
/// Maximum number of concurrent queries, which are mostly for different minutes.
const MINUTES_AT_ONCE: usize = 16;
/// A node may use one eighth of a series' remaining room for users without asking the store. Each additional node can
/// therefore raise the number of users above the cap by at most an eighth of the cap, even if it restarts.
const USERS_UNASKED_SHARE: u64 = 8;
const WARN_INTERVAL: Duration = Duration::from_secs(10);
const MINUTE_BYTES: usize = 96;
const FIRST_BYTES: usize = 192;

/// The caps on the series of a minute and on the users of a series.
#[derive(Debug, Clone, Copy)]
pub struct CapSettings {
    /// Maximum number of series per minute in the partition, for all nodes together.
    pub series_max: usize,
    /// Maximum number of users per series per minute; 0 if unlimited.
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
    /// The users that the current requests add, as minutes and hashes.
    new_users: Vec<(Minute, u128)>,
    pub(super) coverage: Coverage,
}

#[derive(Debug)]
struct KnownMinute {
    series: HashMap<u128, KnownSeries>,
    /// Upper bound on the users of any series at the first query about the minute. Used if a reply has no number of users.
    users_before: Option<u64>,
    users: KnownUsers,
    last_used: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownSeries {
    Refused,
    /// How many new users the series may get before the recorder has to ask the store for their number.
    Admitted(u64),
}

#[derive(Debug)]
struct KnownUsers {
    budget: Option<Arc<Budget>>,
    /// For each user, the sum of the series' hash and the user's hash, so that the names need not be concatenated.
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

    /// Makes room for one more user. Returns false if the budget is too small for a full table to double its size.
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
            new_users: Vec::new(),
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

    /// Returns whether the store refuses a series, so that its events overflow. [`Known::ask`] must be called first.
    pub(super) fn refuses(&self, minute: Minute, series: &str) -> bool {
        let known = self.minutes.get(&minute);
        known.and_then(|known| known.series.get(&self.hash(series))) == Some(&KnownSeries::Refused)
    }

    /// Asks the store which of these series it admits, skipping those already known. Marks their minutes as used at `now`.
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

    /// Drops the minutes that have not been used for a while, and the earliest minutes while there are too many series.
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

    /// Computes how many users a series may have had before the first query about this minute: at most the number of events
    /// that had arrived. If that is near the cap and the reply has no numbers of users, asks the store to count them.
    async fn learn_users_before(
        &mut self,
        store: &dyn Recording,
        minute: Minute,
        answer: &Admitted,
    ) -> Result<(), StoreError> {
        let before = self.minutes.get(&minute).and_then(|known| known.users_before);
        let mut before = before.unwrap_or(answer.arrivals);
        let half = self.caps.users_max / 2;
        let mut admissions = answer.series.iter();
        let is_known = answer.overflow_users.is_some()
            && admissions.all(|admission| *admission != Admission::Admitted { users: None });
        if before > half && !is_known && self.caps.users_max > 0 {
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

    /// Marks a series in a known minute as admitted, with `users` or, if that is `None`, the bound from the first query.
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

    /// Returns whether a series may get `new` users without asking the store. If so, deducts them from its room.
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

    /// Lists in each request the distinct users that the store may be missing, unless the store finds new users itself.
    pub(super) fn set_new_users(&mut self, requests: &mut [RecordRequest<'_>]) {
        self.new_users.clear();
        if self.budget.is_none() {
            return;
        }
        for request in requests {
            let RecordRequest { batch, occurrences, .. } = *request;
            let known = self.minutes.get(&request.minute).map(|known| &known.users.hashes);
            let series = self.hash(request.series);
            let hashes = occurrences.iter().map(|event| self.hash_user(series, batch.user(event)));
            // All hashes are computed first, so that the CPU can overlap the look-ups, which wait for memory.
            let hashes: Vec<_> = hashes.collect();
            let unknown = occurrences.iter().zip(hashes);
            let unknown =
                unknown.filter(|(_, hash)| !known.is_some_and(|users| users.contains(hash)));
            let unknown: Vec<_> = unknown.collect();
            let mut seen = HashSet::with_capacity(unknown.len());
            let mut names = Vec::with_capacity(unknown.len());
            for (event, hash) in unknown {
                if seen.insert(hash) {
                    names.push(batch.user(event));
                    self.new_users.push((request.minute, hash));
                }
            }
            request.new_users = Some(names);
        }
    }

    /// Returns whether any users are known. Requests leave out known users.
    pub(super) fn has_users(&self) -> bool {
        self.minutes.values().any(|minute| !minute.users.hashes.is_empty())
    }

    /// Adds the new users of acknowledged requests to the known users. Keeps the minutes that were last used at `now`.
    pub(super) fn confirmed(&mut self, now: Instant) {
        let new = std::mem::take(&mut self.new_users);
        for users in new.chunk_by(|one, next| one.0 == next.0) {
            for &(minute, user) in users {
                if !self.insert(minute, user, now) {
                    break;
                }
            }
        }
    }

    /// Adds a user and returns true if memory allows. Makes room by dropping users of minutes last used before `now`.
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
                .filter(|known| known.last_used < now && !known.users.hashes.is_empty());
            let Some(oldest) = unused.min_by_key(|known| known.last_used) else {
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

    /// A node runs for months, so it must not keep the series of every minute.
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

    fn new_users(known: &mut Known, number: i64, series: &str, users: &[String]) -> Vec<String> {
        let mut batch = Batch::default();
        for user in users {
            assert!(batch.push(minute(number), series, user, 0));
        }
        let mut requests = [RecordRequest::new(&batch, &batch.groups()[0])];
        known.set_new_users(&mut requests);
        requests[0].new_users.iter().flatten().map(|user| (*user).to_owned()).collect()
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

    fn knows(known: &mut Known, number: i64, user: u32) -> bool {
        new_users(known, number, "a=1", &[user.to_string()]).is_empty()
    }

    #[tokio::test]
    async fn known_users_of_other_series_and_minutes_are_others() {
        let mut known = known(Some(&Arc::new(Budget::of_users(100))));
        insert(&mut known, 1, 0..10).await;
        assert!(knows(&mut known, 1, 9));
        assert!(!knows(&mut known, 1, 10) && !knows(&mut known, 2, 9));
        for (series, user) in [("a=", "11"), ("a=2", "1"), ("1", "a=1")] {
            assert_eq!(new_users(&mut known, 1, series, &[user.to_owned()]), [user]);
        }
        let twice = ["9", "x", "x"].map(str::to_owned);
        assert_eq!(new_users(&mut known, 1, "a=1", &twice), ["x"]);
    }

    #[tokio::test]
    async fn dropped_users_are_unknown_and_take_no_memory() {
        let budget = Arc::new(Budget::of_users(100));
        let mut known = known(Some(&budget));
        for _ in 0..2 {
            insert(&mut known, 1, 0..10).await;
        }
        assert!(knows(&mut known, 1, 5) && known.has_users());
        assert_eq!(budget.used(), known.minutes[&minute(1)].users.bytes());
        known.follow(1);
        assert!(!knows(&mut known, 1, 5) && !known.has_users());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn oldest_minute_makes_room_and_a_full_one_takes_no_more_users() {
        let budget = Arc::new(Budget::of_users(1000));
        let mut known = known(Some(&budget));
        insert(&mut known, 1, 0..1000).await;
        assert!(knows(&mut known, 1, 999));
        insert(&mut known, 2, 0..1000).await;
        assert!(!knows(&mut known, 1, 0));
        assert!(knows(&mut known, 2, 999));
        insert(&mut known, 2, 1000..9000).await;
        assert!(knows(&mut known, 2, 1000) && !knows(&mut known, 2, 8999));
        assert!(budget.used() <= budget.max());
    }
}
