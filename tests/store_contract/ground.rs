//! The surroundings of a test: an empty store, its nodes, and their operations.

use std::num::NonZeroU16;
use std::sync::{LazyLock, PoisonError, Weak};

use event_data_service::event::{Batch, Minute, Partition, Partitions};
use event_data_service::store::memory::MemoryStore;
use event_data_service::store::redis::{Layout, RedisStore, Settings};
use event_data_service::store::{
    Bucket, CheckIn, Claim, ClaimRequest, Compaction, CountReader, Known, NodeStore, OutputBacklog,
    OutputName, RecordRequest, Records, SealRequest, SeriesCounts, StoreError,
};
use redis_link::Address;
use testing::lua_redis::LuaRedis;
use testing::prelude::*;
use testing::redis::patient;

/// How long counts are kept after their minute. Some tests wait longer; others must take less time between two steps.
pub(crate) const RETENTION: Duration = Duration::from_secs(4);

/// The minute 20161204:1118, which is used in the seed documents.
pub(crate) const SEED_MINUTE: i64 = 1_480_876_680 / 60;

/// A request for claims on every minute that has ended. The lease is longer than any test.
pub(crate) const AT_ONCE: ClaimRequest = ClaimRequest {
    generation: 0,
    grace: Duration::ZERO,
    max_hold: Duration::from_secs(3600),
    lease: Duration::from_secs(600),
    lapsed_max: 100,
    finished_max: 100,
    old_max: 100,
    known: NOTHING_KNOWN,
};

pub(crate) const NOTHING_KNOWN: Known =
    Known { epoch: 0, stamp: 0, sequence: 0, expected_ms: None };

pub(crate) fn only() -> &'static OutputName {
    static ONLY: LazyLock<OutputName> = LazyLock::new(OutputName::default);
    &ONLY
}

pub(crate) type Counts = BTreeMap<(i64, String), (u64, u64)>;

pub(crate) enum Ground {
    Memory(Arc<MemoryStore>),
    Lua(Arc<LuaRedis>, Layout),
    Redis(RedisServer, Layout),
    /// A cluster shared by all tests, and the key prefix of this test.
    Cluster(Arc<RedisCluster>, String, Layout),
}

static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());

fn shared_cluster() -> Arc<RedisCluster> {
    let mut there = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    there.upgrade().unwrap_or_else(|| {
        let new = Arc::new(RedisCluster::start());
        *there = Arc::downgrade(&new);
        new
    })
}

#[derive(Clone)]
pub(crate) struct Node(pub(crate) Arc<dyn NodeStore>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) series: String,
    pub(crate) user: String,
    pub(crate) timestamp: i64,
}

/// Returns an event at this offset in nanoseconds from the beginning of a minute.
pub(crate) fn event(minute: i64, series: &str, user: &str, nanos: i64) -> Event {
    Event {
        series: series.to_owned(),
        user: user.to_owned(),
        timestamp: minute * 60_000_000_000 + nanos,
    }
}

pub(crate) fn partitions() -> Partitions {
    super::windows::with_hours(Partitions::new(NonZeroU16::new(4).unwrap()))
}

pub(crate) fn bucket(partition: Partition, minute: i64) -> Bucket {
    Bucket { partition, minute: Minute::from_epoch_minutes(minute).unwrap() }
}

/// Returns these requests, to be recorded in any generation.
pub(crate) fn records<'a>(requests: &'a [RecordRequest<'a>]) -> Records<'a> {
    Records { generation: 0, requests, seen: &[] }
}

pub(crate) fn series_of_one_partition(count: usize) -> Vec<String> {
    let partition = partitions().of("series=0", Minute::MIN);
    (0..)
        .map(|number| format!("series={number}"))
        .filter(|series| partitions().of(series, Minute::MIN) == partition)
        .take(count)
        .collect()
}

pub(crate) fn model(events: &[Event]) -> Counts {
    type Sets<'a> = (BTreeSet<&'a str>, BTreeSet<(&'a str, i64)>);
    let mut sets: BTreeMap<(i64, String), Sets<'_>> = BTreeMap::new();
    for event in events {
        let minute = Minute::of_nanos(event.timestamp).epoch_minutes();
        let (users, all) = sets.entry((minute, event.series.clone())).or_default();
        users.insert(&event.user);
        all.insert((&event.user, event.timestamp));
    }
    let sizes = |(users, all): Sets<'_>| (users.len() as u64, all.len() as u64);
    sets.into_iter().map(|(key, members)| (key, sizes(members))).collect()
}

impl Ground {
    pub(crate) fn memory() -> Self {
        let store = MemoryStore::new("n", &partitions(), RETENTION, u64::MAX, u64::MAX);
        Self::Memory(Arc::new(store))
    }

    pub(crate) fn lua(layout: Layout) -> Self {
        let clock = || chrono::Utc::now().timestamp_micros();
        Self::Lua(Arc::new(LuaRedis::new(Box::new(clock), None)), layout)
    }

    pub(crate) fn redis(layout: Layout) -> Self {
        Self::Redis(RedisServer::start(&[]), layout)
    }

    pub(crate) fn cluster(layout: Layout) -> Self {
        let prefix = format!("test{:016x}", rand::random::<u64>());
        Self::Cluster(shared_cluster(), prefix, layout)
    }

    pub(crate) fn afresh(&self) -> Self {
        match self {
            Self::Memory(_) => Self::memory(),
            Self::Lua(_, layout) => Self::lua(*layout),
            Self::Redis(_, layout) => Self::redis(*layout),
            Self::Cluster(_, _, layout) => Self::cluster(*layout),
        }
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        match self {
            Self::Memory(store) => Node(store.clone()),
            Self::Lua(..) | Self::Redis(..) | Self::Cluster(..) => {
                Node(Arc::new(self.redis_store(name)))
            }
        }
    }

    fn redis_store(&self, name: &str) -> RedisStore {
        match self {
            Self::Memory(_) => panic!("there is no Redis"),
            Self::Lua(redis, layout) => store(redis.settings(), "eds", *layout, name),
            Self::Redis(server, layout) => store(server.settings(), "eds", *layout, name),
            Self::Cluster(cluster, prefix, layout) => {
                let address = cluster.masters()[0].address();
                let address = Address::Cluster(vec![address.into()]);
                store(patient(address), prefix, *layout, name)
            }
        }
    }

    /// Returns whether events are counted as soon as they are recorded, so that copies and the users of a series are known.
    pub(crate) fn counts_at_once(&self) -> bool {
        !matches!(
            self,
            Self::Lua(_, Layout::Log)
                | Self::Redis(_, Layout::Log)
                | Self::Cluster(_, _, Layout::Log)
        )
    }

    pub(crate) fn reading(&self) -> Arc<dyn CountReader> {
        match self {
            Self::Memory(store) => store.clone(),
            Self::Lua(..) | Self::Redis(..) | Self::Cluster(..) => {
                Arc::new(self.redis_store("reader"))
            }
        }
    }

    /// Returns an operator's store.
    pub(crate) fn quarantine(&self) -> RedisStore {
        self.redis_store("operator")
    }
}

fn store(redis: redis_link::Settings, prefix: &str, layout: Layout, name: &str) -> RedisStore {
    let settings = Settings {
        redis,
        prefix: prefix.to_owned(),
        partitions: partitions(),
        layout,
        retention: RETENTION,
        counts_max: 1_000_000,
        node: name.to_owned(),
    };
    RedisStore::new(&settings).unwrap()
}

impl Node {
    /// Records events, and returns how many of them the store already had.
    pub(crate) async fn try_record(&self, events: &[Event]) -> Result<u64, StoreError> {
        let mut repeated = 0;
        let mut batches: BTreeMap<Partition, Batch> = BTreeMap::new();
        for event in events {
            let batch = batches.entry(partitions().of(&event.series, Minute::MIN)).or_default();
            let minute = Minute::of_nanos(event.timestamp);
            assert!(batch.push(minute, &event.series, &event.user, event.timestamp));
        }
        for (partition, batch) in batches {
            let recordings: Vec<_> = batch
                .groups()
                .iter()
                .map(|group| {
                    let users: BTreeSet<_> =
                        group.occurrences.iter().map(|o| batch.user(o)).collect();
                    RecordRequest {
                        new_users: Some(users.into_iter().collect()),
                        ..RecordRequest::new(&batch, group)
                    }
                })
                .collect();
            let generation = self.0.generation(partition);
            let records = Records { generation, ..records(&recordings) };
            repeated += self.0.record(partition, &records).await?;
        }
        Ok(repeated)
    }

    pub(crate) async fn record(&self, events: &[Event]) -> u64 {
        self.try_record(events).await.unwrap()
    }

    pub(crate) async fn report_lag(&self, lags: bool, lease: Duration) {
        for partition in partitions().iter() {
            let known = NOTHING_KNOWN;
            let check_in = CheckIn { known, lags, lease, alive: Duration::ZERO };
            self.0.check_in(partition, &check_in).await.unwrap();
        }
    }

    /// Requests claims once per partition, to seal and to send to the only output.
    pub(crate) async fn claim(&self, request: &ClaimRequest) -> Vec<Claim> {
        self.claim_for(request, std::slice::from_ref(only())).await
    }

    /// Like [`Self::claim`], but for these outputs.
    pub(crate) async fn claim_for(
        &self,
        request: &ClaimRequest,
        outputs: &[OutputName],
    ) -> Vec<Claim> {
        let most = |output: &OutputName| (output.clone(), request.lapsed_max);
        let sending: Vec<_> = outputs.iter().map(most).collect();
        let mut claims = Vec::new();
        for partition in partitions().iter() {
            claims.extend(self.0.claim(partition, request, &sending).await.unwrap());
        }
        claims
    }

    #[track_caller]
    pub(crate) fn claim_one(&self, request: &ClaimRequest) -> impl Future<Output = Claim> {
        let (node, request) = (self.clone(), *request);
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + SOON;
            loop {
                let mut claims = node.claim(&request).await;
                assert!(claims.len() <= 1, "at {caller}: {claims:?}");
                if let Some(claim) = claims.pop() {
                    return claim;
                }
                assert!(Instant::now() < deadline, "no claim at {caller}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Compacts up to this many series for the only output.
    pub(crate) async fn try_compact(
        &self,
        claim: &Claim,
        series_max: usize,
    ) -> Result<Compaction, StoreError> {
        let outputs = std::slice::from_ref(only());
        self.0
            .compact(
                claim,
                &SealRequest {
                    series_max,
                    lease: AT_ONCE.lease,
                    outputs,
                    ..SealRequest::default()
                },
            )
            .await
    }

    /// Seals all series for these outputs, three per step. Returns the claims to send.
    pub(crate) async fn seal_for(&self, claim: &Claim, outputs: &[OutputName]) -> Vec<Claim> {
        loop {
            let request = SealRequest {
                series_max: 3,
                lease: AT_ONCE.lease,
                outputs,
                ..SealRequest::default()
            };
            let done = self.0.compact(claim, &request).await.unwrap();
            if done.left == 0 {
                return done.sending;
            }
        }
    }

    /// Like [`Self::seal_for`], but for the only output, which must have unsent counts.
    #[track_caller]
    pub(crate) fn seal(&self, claim: &Claim) -> impl Future<Output = Claim> {
        let (node, claim) = (self.clone(), claim.clone());
        let caller = std::panic::Location::caller();
        async move {
            let mut sending = node.seal_for(&claim, std::slice::from_ref(only())).await;
            assert_eq!(sending.len(), 1, "at {caller}");
            sending.remove(0)
        }
    }

    /// Seals the minute unless that is already done. Returns the claim to send, or `None` if there are no unsent counts.
    pub(crate) async fn to_send(&self, claim: &Claim) -> Option<Claim> {
        match claim.output {
            Some(_) => Some(claim.clone()),
            None => self.seal_for(claim, std::slice::from_ref(only())).await.pop(),
        }
    }

    /// Returns all unsent counts. If a series occurs on two pages, its values must be equal.
    pub(crate) async fn unsent(&self, claim: &Claim) -> BTreeMap<String, (u64, u64)> {
        let mut all = BTreeMap::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.0.unsent(claim, at).await.unwrap();
            for SeriesCounts { series, unique, cumulative, .. } in page.items {
                let before = all.insert(series, (unique, cumulative));
                assert!(before.is_none_or(|counts| counts == (unique, cumulative)));
            }
            cursor = page.next;
        }
        all
    }

    pub(crate) async fn acknowledge(&self, claim: &Claim, series: &[&str]) -> bool {
        self.0.acknowledge(claim, series, AT_ONCE.lease).await.unwrap()
    }

    /// Quarantines counts, and asserts that all of them are kept, or none.
    pub(crate) async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)], kept: bool) {
        let fates = self.0.quarantine(claim, refused).await.unwrap();
        assert_eq!(fates, vec![kept; refused.len()]);
    }

    /// Seals the minutes of these claims, acknowledges all counts, which must end the claims, and returns the counts.
    pub(crate) async fn finish(&self, claims: &[Claim]) -> Counts {
        let mut counts = Counts::new();
        for claim in claims {
            let Some(claim) = self.to_send(claim).await else {
                continue;
            };
            let unsent = self.unsent(&claim).await;
            let series: Vec<_> = unsent.keys().map(String::as_str).collect();
            assert!(self.acknowledge(&claim, &series).await, "{claim:?}");
            let minute = claim.minute.epoch_minutes();
            counts.extend(unsent.into_iter().map(|(series, values)| ((minute, series), values)));
        }
        counts
    }

    pub(crate) async fn finish_all(&self) -> Counts {
        let claims = self.claim(&AT_ONCE).await;
        self.finish(&claims).await
    }

    /// Returns the oldest unfinished minute of all partitions, in minutes since the epoch.
    pub(crate) async fn oldest(&self) -> Option<i64> {
        let mut all = Vec::new();
        for partition in partitions().iter() {
            let backlog = self.0.backlog(partition).await.unwrap();
            all.extend(backlog.oldest);
            all.extend(backlog.outputs.values().filter_map(|lacks| lacks.oldest));
        }
        all.iter().min().map(|minute| minute.epoch_minutes())
    }

    /// Returns how many minutes of all partitions are waiting, claimed (to seal or to send), and quarantined.
    pub(crate) async fn backlog(&self) -> (u64, u64, u64) {
        let lacks = self.lacks(only()).await;
        let mut sum = (0, lacks.unsent, lacks.quarantined);
        for partition in partitions().iter() {
            let backlog = self.0.backlog(partition).await.unwrap();
            sum.0 += backlog.waiting;
            sum.1 += backlog.claimed;
        }
        sum
    }

    /// Returns the backlog of an output, summed over all partitions.
    pub(crate) async fn lacks(&self, output: &OutputName) -> OutputBacklog {
        let mut all = OutputBacklog::default();
        for partition in partitions().iter() {
            let outputs = self.0.backlog(partition).await.unwrap().outputs;
            all += outputs.get(output).copied().unwrap_or_default();
        }
        all
    }
}

pub(crate) fn token_number(claim: &Claim) -> u64 {
    let (_, number) = claim.token.rsplit_once('|').expect("node|number");
    number.parse().unwrap()
}
