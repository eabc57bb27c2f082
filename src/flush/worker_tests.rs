//! Tests what nodes report to each other, claim, seal and send, using an in-memory store.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use futures_util::future::join_all;
use testing::log::Log;
use tokio::sync::Notify;

use super::*;
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Batch, Minute, Partition, Partitions};
use crate::node::{Clock, Node};
use crate::output::{SealedCounts, WriteError};
use crate::store::redis::{self, Layout, RedisStore};
use crate::store::{
    Announced, Attested, Backlog, Bucket, Capabilities, CheckIn, ClaimRequest, Compaction,
    Draining, Known, News, Page, RecordRequest, Recording, Records, SealRequest, SeriesCounts,
    Store, Testimony,
};
use crate::telemetry::{Format, Metrics};
use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, Locking, Name, Place};
use testing::lua_redis::LuaRedis;
use testing::lua_redis::keyspace::Hash;

use crate::flush::claims::Claims;
use crate::flush::partitions::PartitionStates;
use crate::flush::{Destination, Flush};
use crate::output::Output;

const LEASE: Duration = Duration::from_secs(30);
const SETTINGS: FlushSettings = FlushSettings {
    interval: Duration::from_secs(1),
    grace: Duration::from_secs(1),
    max_hold: Duration::from_secs(2),
    window_hold: Duration::from_secs(2),
    lease: LEASE,
    zeros: 0,
};
const START_MICROS: i64 = 1_480_876_800_000_000;

/// An output that accepts nothing and counts concurrent writes.
#[derive(Debug)]
struct Down {
    write_takes: Duration,
    writes: AtomicUsize,
    writing: AtomicUsize,
    writing_max: AtomicUsize,
}

#[async_trait]
impl Output for Down {
    async fn write(&self, _: &[SealedCounts]) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Relaxed);
        let writing = self.writing.fetch_add(1, Relaxed) + 1;
        self.writing_max.fetch_max(writing, Relaxed);
        tokio::time::sleep(self.write_takes).await;
        self.writing.fetch_sub(1, Relaxed);
        Err(WriteError::unavailable("down"))
    }

    async fn probe(&self, _: Minute) -> Result<(), WriteError> {
        self.write(&[]).await
    }

    fn describe(&self) -> String {
        "nobody".to_owned()
    }

    // This prevents probes at startup, so that every write is for claims.
    fn has_server(&self) -> bool {
        false
    }
}

/// The names of some of the calls, in order.
type Calls = Arc<Mutex<Vec<&'static str>>>;

/// An output that accepts all but one series, or asks clients to back off.
#[derive(Debug, Default)]
struct Taking {
    refused: &'static str,
    leave_alone: Option<Duration>,
    writes: AtomicUsize,
    taken: Mutex<Vec<SealedCounts>>,
    calls: Calls,
}

impl Taking {
    /// How many distinct counts it accepted: a probe writes one of them again.
    fn taken(&self) -> usize {
        let taken = self.taken.lock().unwrap();
        let counts = taken.iter().map(|counts| (counts.minute, &counts.series));
        counts.collect::<BTreeSet<_>>().len()
    }
}

#[async_trait]
impl Output for Taking {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Relaxed);
        self.calls.lock().unwrap().push("write");
        if self.leave_alone.is_some() {
            return Err(WriteError::Unavailable {
                found: Diagnosis::new(Cause::OutputOverloaded, "busy"),
                retry_after: self.leave_alone,
            });
        }
        if counts.iter().any(|counts| counts.series == self.refused) {
            let found = Diagnosis::new(Cause::OutputRejectsAll, "no");
            return Err(WriteError::Rejected(found));
        }
        self.taken.lock().unwrap().extend_from_slice(counts);
        Ok(())
    }

    fn describe(&self) -> String {
        "taking".to_owned()
    }

    fn has_server(&self) -> bool {
        false
    }
}

/// A store that can be made to seal or check slowly, to seem in-process, to report that other nodes never learn of
/// announcements, or to have no unsent counts.
#[derive(Debug)]
struct Slow {
    store: RedisStore,
    compacting: Notify,
    compact_takes: Duration,
    check_takes: Duration,
    is_alone: bool,
    is_unheard: bool,
    has_unsent: bool,
    /// The names of some of the calls.
    calls: Calls,
}

impl Slow {
    fn called(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    fn count(&self, call: &'static str) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|&&name| name == call).count()
    }
}

#[async_trait]
impl Store for Slow {
    async fn check(&self) -> Result<(), StoreError> {
        tokio::time::sleep(self.check_takes).await;
        self.called("check");
        self.store.check().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.store.generation(partition)
    }

    fn capabilities(&self) -> Capabilities {
        if self.is_alone { Capabilities::IN_PROCESS } else { self.store.capabilities() }
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}

#[async_trait]
impl Draining for Slow {
    async fn attest(&self, at: Partition, all: &Testimony) -> Result<Attested, StoreError> {
        self.store.attest(at, all).await
    }

    async fn check_in(&self, at: Partition, check_in: &CheckIn) -> Result<News, StoreError> {
        self.called("check_in");
        self.store.check_in(at, check_in).await
    }

    async fn claim(
        &self,
        at: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        self.called("claim");
        self.store.claim(at, request, sending).await
    }

    async fn compact(
        &self,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction, StoreError> {
        self.compacting.notify_one();
        tokio::time::sleep(self.compact_takes).await;
        self.store.compact(claim, request).await
    }

    async fn sealed_users(
        &self,
        claim: &Claim,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<(), StoreError> {
        self.store.sealed_users(claim, series, take).await
    }

    async fn contribute(
        &self,
        window: Bucket,
        source: Bucket,
        frames: &[Vec<u8>],
    ) -> Result<bool, StoreError> {
        self.store.contribute(window, source, frames).await
    }

    async fn lacks(
        &self,
        window: Bucket,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>, StoreError> {
        self.store.lacks(window, partition, minutes).await
    }

    async fn settle(
        &self,
        at: Partition,
        window: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>, StoreError> {
        self.store.settle(at, window, request).await
    }

    async fn unsent(&self, claim: &Claim, from: u64) -> Result<Page<SeriesCounts>, StoreError> {
        self.called("unsent");
        let mut page = self.store.unsent(claim, from).await?;
        page.items.retain(|_| self.has_unsent);
        Ok(page)
    }

    async fn announce(
        &self,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        self.called("announce");
        let mut states = self.store.announce(known, claims).await?;
        if self.is_unheard {
            states.fill(Announced::Unheard);
        }
        Ok(states)
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        self.called("acknowledge");
        self.store.acknowledge(claim, series, lease).await
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.quarantine(claim, refused).await
    }

    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize, StoreError> {
        self.store.extend(claims, lease).await
    }

    async fn backlog(&self, at: Partition) -> Result<Backlog, StoreError> {
        self.called("backlog");
        self.store.backlog(at).await
    }

    async fn have_work(
        &self,
        all: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.have_work(all, outputs).await
    }
}

/// Tokio's paused clock used as wall-clock time.
#[derive(Debug, Clone, Copy)]
struct Time(Instant);

impl Time {
    fn micros(self) -> i64 {
        START_MICROS + i64::try_from(self.0.elapsed().as_micros()).unwrap()
    }
}

impl coordination::memory::Clock for Time {
    fn now_us(&self) -> u64 {
        self.micros().unsigned_abs()
    }
}

/// The state shared by all nodes.
struct Site {
    interval: Duration,
    time: Time,
    partitions: Partitions,
    redis: Arc<LuaRedis>,
    output: Arc<Down>,
    arbiter: Arc<MemoryArbiter>,
}

impl Site {
    fn new(write_takes: Duration) -> Self {
        let time = Time(Instant::now());
        let partitions = Partitions::new(NonZeroU16::MIN);
        let clock = Box::new(move || time.micros());
        Self {
            interval: SETTINGS.interval,
            time,
            redis: Arc::new(LuaRedis::new(clock, None)),
            partitions,
            output: Arc::new(Down {
                write_takes,
                writes: AtomicUsize::new(0),
                writing: AtomicUsize::new(0),
                writing_max: AtomicUsize::new(0),
            }),
            arbiter: Arc::new(MemoryArbiter::new(Arc::new(time))),
        }
    }

    fn store(&self, node: &str) -> RedisStore {
        let settings = redis::Settings {
            redis: self.redis.settings(),
            prefix: "eds".to_owned(),
            partitions: self.partitions.clone(),
            layout: Layout::Sets,
            retention: Duration::from_secs(3600),
            counts_max: 1000,
            node: node.to_owned(),
        };
        RedisStore::new(&settings).unwrap()
    }

    fn partition(&self) -> Partition {
        self.partitions.of("a=1", Minute::MIN)
    }

    fn start(&self, name: &str, node: &Arc<Node>, compact_takes: Duration) -> Arc<Slow> {
        let mut slow = self.slow(name);
        slow.compact_takes = compact_takes;
        self.start_with(slow, node, named(&self.output)).store
    }

    /// The store as seen by one node.
    fn slow(&self, name: &str) -> Slow {
        Slow {
            store: self.store(name),
            compacting: Notify::new(),
            compact_takes: Duration::ZERO,
            check_takes: Duration::ZERO,
            is_alone: false,
            is_unheard: false,
            has_unsent: true,
            calls: Calls::default(),
        }
    }

    /// A node whose clock is ahead of the store's.
    fn node(&self, ahead: Duration) -> Arc<Node> {
        let (time, ahead) = (self.time, i64::try_from(ahead.as_micros()).unwrap());
        Arc::new(Node {
            clock: Clock::new(move || (time.micros() + ahead) * 1000),
            ..Node::default()
        })
    }

    fn start_with(
        &self,
        slow: Slow,
        node: &Arc<Node>,
        outputs: Vec<(OutputName, Arc<dyn Output>)>,
    ) -> Started {
        let (store, stop) = (Arc::new(slow), CancellationToken::new());
        let metrics = Arc::new(Metrics::new(Arc::clone(node)));
        let arbiter = Arc::clone(&self.arbiter) as Arc<dyn Arbiter>;
        let outputs = outputs.into_iter().map(|(name, output)| Destination {
            name,
            output,
            write_counts_max: 100,
        });
        let flush = Flush {
            store: Arc::clone(&store) as Arc<dyn Draining>,
            outputs: outputs.collect(),
            arbiter,
            partitions: self.partitions.clone(),
            settings: FlushSettings { interval: self.interval, ..SETTINGS },
            witness_file: None,
            contributions: None,
            metrics: Arc::clone(&metrics),
            node: Arc::clone(node),
            stop: stop.clone(),
            recorded: stop.clone(),
        };
        let tasks = flush.into_tasks().unwrap();
        let tasks = tasks.into_iter().map(tokio::spawn).collect();
        Started { store, metrics, stop, tasks }
    }

    /// Records an event for a minute that has ended.
    async fn record(&self, series: &str, user: &str, ago: Duration) {
        let micros = self.time.micros() - i64::try_from(ago.as_micros()).unwrap();
        record_at(&self.store("nobody"), self.partition(), series, user, micros * 1000).await;
    }
}

/// A node that seals and sends.
struct Started {
    store: Arc<Slow>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Started {
    /// Stops the node, and waits until its tasks have exited.
    async fn stopped(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(60), join_all(self.tasks)).await;
        assert!(ended.is_ok(), "a task is still running");
    }

    /// The sum of a metric for the output `default`.
    fn sum(&self, name: &str) -> f64 {
        let text = self.metrics.encode(Format::Classic).unwrap();
        let line = format!("{name}{{output=\"default\"}} ");
        let value = text.lines().find_map(|sample| sample.strip_prefix(&line));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// Returns the outputs of a node that has only this output.
fn named(output: &Arc<impl Output + 'static>) -> Vec<(OutputName, Arc<dyn Output>)> {
    vec![(OutputName::default(), Arc::clone(output) as Arc<dyn Output>)]
}

/// A minute and a half ago: that minute has ended but is still recent.
const AGO: Duration = Duration::from_secs(90);

fn seconds(seconds: u64) -> impl Future<Output = ()> {
    tokio::time::sleep(Duration::from_secs(seconds))
}

async fn record(store: &RedisStore, partition: Partition) {
    let nanos = (START_MICROS - 100_000_000) * 1000;
    record_at(store, partition, "a=1", "user", nanos).await;
}

async fn record_at(store: &RedisStore, partition: Partition, series: &str, user: &str, nanos: i64) {
    let mut batch = Batch::default();
    assert!(batch.push(Minute::of_nanos(nanos), series, user, nanos));
    let group = &batch.groups()[0];
    let recording =
        RecordRequest { new_users: Some(vec![user]), ..RecordRequest::new(&batch, group) };
    let records = Records { generation: 0, requests: &[recording], seen: &[] };
    store.record(partition, &records).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lagging_node_reports_lag_during_long_rounds() {
    let (site, node) = (Site::new(Duration::ZERO), Arc::<Node>::default());
    let partition = site.partition();
    record(&site.store("nobody"), partition).await;
    node.partitions.change(partition, |state| state.lags = true);
    let store = site.start("node", &node, 10 * LEASE);
    store.compacting.notified().await;
    let lagging_for = || {
        let keyspace = site.redis.keyspace();
        let lagging = keyspace.get::<Hash>("{eds:0}:lagging");
        let until_ms = lagging.and_then(|lagging| lagging.values().next());
        let until_ms = until_ms.map_or(0, |text| String::from_utf8_lossy(text).parse().unwrap());
        until_ms - site.time.micros() / 1000
    };
    tokio::time::sleep(3 * LEASE).await;
    assert_eq!(site.output.writes.load(Relaxed), 0, "the first round has ended");
    assert!(lagging_for() > 0, "{} ms", lagging_for());
    node.partitions.change(partition, |state| state.lags = false);
    tokio::time::sleep(3 * LEASE).await;
    assert!(lagging_for() <= 0, "{} ms", lagging_for());
}

#[tokio::test(start_paused = true)]
async fn one_node_at_a_time_probes_a_failing_output() {
    let site = Site::new(Duration::from_secs(3));
    // This claim belongs to a dead node, so it is not renewed.
    let turn = coordination::Claim::new(Name::of_mutex("probe-default").unwrap(), 10 * LEASE);
    let took = site.arbiter.lock(&turn, Place::None).await;
    assert!(matches!(took, Ok(Locking::Granted(_))), "{took:?}");
    record(&site.store("nobody"), site.partition()).await;
    for name in ["a", "b", "c"] {
        site.start(name, &Arc::default(), Duration::ZERO);
    }
    tokio::time::sleep(9 * LEASE).await;
    let first = site.output.writes.swap(0, Relaxed);
    assert!((1..=3).contains(&first), "{first} nodes wrote to the unreachable output");
    site.output.writing_max.store(0, Relaxed);
    tokio::time::sleep(9 * LEASE).await;
    let probes = site.output.writes.load(Relaxed);
    assert!(probes > 1, "{probes} probes");
    // A node that does not know yet may write once while another node is probing.
    let at_once = site.output.writing_max.load(Relaxed);
    assert!((1..=4 - first).contains(&at_once), "{at_once} writes at once, after {first}");
}

#[tokio::test(start_paused = true)]
async fn ended_minute_is_sealed_and_sent_and_late_events_are_counted() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    site.record("a=1", "u", AGO).await;
    let outputs = named(&output);
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), outputs);
    seconds(6).await;
    let taken = output.taken.lock().unwrap().clone();
    assert_eq!((taken.len(), taken[0].cumulative), (1, 1));
    assert_eq!(node.sum("eds_points_sent_total").to_string(), "2");
    let delay = node.sum("eds_publish_delay_seconds_sum");
    assert!((60.0..70.0).contains(&delay), "{delay} s");
    site.record("a=1", "v", AGO).await;
    seconds(10).await;
    assert_eq!(node.metrics.events_late.get(), 1);
    assert_eq!(output.taken(), 1, "the counts of the minute are unchanged");
    assert_eq!(node.sum("eds_backlog_unsent").to_string(), "0");
    node.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn refused_counts_are_quarantined_and_others_sent() {
    let output = Arc::new(Taking { refused: "a=2", ..Taking::default() });
    let site = Site::new(Duration::ZERO);
    for series in ["a=1", "a=2", "a=3"] {
        site.record(series, "u", AGO).await;
    }
    let outputs = named(&output);
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), outputs);
    seconds(10).await;
    assert_eq!(output.taken(), 2);
    assert_eq!(node.sum("eds_points_quarantined_total").to_string(), "2");
    assert_eq!(node.sum("eds_counts_quarantined").to_string(), "1");
    assert_eq!(node.sum("eds_backlog_unsent").to_string(), "0");
}

#[tokio::test(start_paused = true)]
async fn idle_partition_is_checked_rarely_until_events_arrive() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    let outputs = named(&output);
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), outputs);
    seconds(60).await;
    node.store.calls.lock().unwrap().clear();
    seconds(315).await;
    for call in ["check_in", "backlog"] {
        let count = node.store.count(call);
        assert!((8..16).contains(&count), "{count} of {call}");
    }
    assert_eq!(node.store.count("claim"), 0, "nothing is due");
    site.record("a=1", "u", AGO).await;
    seconds(4).await;
    assert_eq!(output.taken(), 1);
}

/// A hanging server is detected only when a response times out, which takes longer than a round waits for a check.
#[tokio::test(start_paused = true)]
async fn slow_checks_end_during_a_long_pause() {
    let mut site = Site::new(Duration::ZERO);
    site.interval = Duration::from_secs(30);
    let mut slow = site.slow("node");
    slow.check_takes = Duration::from_secs(3);
    let outputs = named(&Arc::new(Taking::default()));
    let node = site.start_with(slow, &site.node(Duration::ZERO), outputs);
    seconds(10).await;
    assert!(node.store.count("check") >= 2, "checks are abandoned");
}

#[tokio::test(start_paused = true)]
async fn output_with_retry_after_is_paused_and_keeps_its_claims() {
    let output =
        Arc::new(Taking { leave_alone: Some(Duration::from_secs(50)), ..Taking::default() });
    let site = Site::new(Duration::ZERO);
    site.record("a=1", "u", AGO).await;
    let outputs = named(&output);
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), outputs);
    seconds(50).await;
    assert_eq!(output.writes.load(Relaxed), 1);
    assert_eq!(node.metrics.claims_taken_over.get(), 0);
    seconds(10).await;
    assert_eq!(output.writes.load(Relaxed), 2);
    assert_eq!(node.metrics.claims_taken_over.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_node_delays_an_announcement_for_a_bounded_time() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    site.record("a=1", "u", AGO).await;
    let outputs = named(&output);
    let mut slow = site.slow("node");
    slow.is_unheard = true;
    site.start_with(slow, &site.node(Duration::ZERO), outputs);
    seconds(10).await;
    assert_eq!(output.taken(), 0, "other nodes have not confirmed the announcement");
    seconds(5).await;
    assert_eq!(output.taken(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_counts_are_read_before_the_announcement() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    for minutes in [1, 2, 3] {
        site.record("a=1", "u", AGO + minutes * Duration::from_secs(60)).await;
    }
    let outputs = named(&output);
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), outputs);
    seconds(6).await;
    let calls = node.store.calls.lock().unwrap().clone();
    let calls = calls.into_iter().filter(|call| ["unsent", "announce"].contains(call));
    let calls: Vec<_> = calls.take(4).collect();
    assert_eq!(calls, ["unsent", "unsent", "unsent", "announce"]);
}

#[tokio::test(start_paused = true)]
async fn single_node_publishes_everything_before_it_ends() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    for minutes in 0..40 {
        let ago = AGO + minutes * Duration::from_secs(60);
        site.record("a=1", "u", ago).await;
    }
    let outputs = named(&output);
    let mut slow = site.slow("node");
    slow.is_alone = true;
    let node = site.start_with(slow, &site.node(Duration::ZERO), outputs);
    let began = Instant::now();
    node.stopped().await;
    assert_eq!(output.taken(), 40);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn unsent_counts_of_a_removed_output_are_reported() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    site.record("a=1", "u", AGO).await;
    let mut both = named(&output);
    let removed = "gone".parse::<OutputName>().unwrap();
    both.push((removed, Arc::clone(&site.output) as _));
    let before = site.start_with(site.slow("before"), &site.node(Duration::ZERO), both);
    seconds(6).await;
    before.stopped().await;
    let log = Log::default();
    let logging = log.start();
    let node = site.start_with(site.slow("node"), &site.node(Duration::ZERO), named(&output));
    seconds(6).await;
    drop(logging);
    assert_eq!(log.count("not configured on this node"), 1);
    let text = node.metrics.encode(Format::Classic).unwrap();
    let unsent = "\neds_backlog_unsent{output=\"gone\"} 1\n";
    assert!(text.contains(unsent), "{text}");
}

#[tokio::test]
async fn claim_taken_over_by_another_node_is_counted_as_lost() {
    let site = Site::new(Duration::ZERO);
    let (store, node) = (Arc::new(site.store("node")), Arc::<Node>::default());
    let shared = Shared {
        contributions: None,
        hand_back: tokio::sync::Notify::new(),
        store: Arc::clone(&store) as Arc<dyn Draining>,
        partitions: site.partitions.clone(),
        outputs: Vec::new(),
        settings: SETTINGS,
        metrics: Arc::new(Metrics::new(Arc::clone(&node))),
        node,
        states: PartitionStates::open(&site.partitions, None),
        claims: Claims::new(store, LEASE),
        stop: CancellationToken::new(),
        finished: CancellationToken::new(),
    };
    let claim = Claim {
        partition: site.partition(),
        minute: Minute::MIN,
        output: None,
        token: "n|1".to_owned(),
        generation: 0,
        taken_over: false,
    };
    shared.claim_failed(&claim, &StoreError::ClaimLost);
    shared.claim_failed(&claim, &StoreError::Forgot);
    assert_eq!(shared.metrics.claims_lost.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn clock_offset_beyond_half_the_grace_is_logged_rarely() {
    for (ahead_ms, lines) in [(0, 0), (400, 0), (600, 1)] {
        let (site, log) = (Site::new(Duration::ZERO), Log::default());
        let logging = log.start();
        let node = site.node(Duration::from_millis(ahead_ms));
        let outputs = named(&Arc::new(Taking::default()));
        site.start_with(site.slow("node"), &node, outputs);
        seconds(30).await;
        drop(logging);
        assert_eq!(log.count("differs from this node's clock"), lines, "{ahead_ms} ms");
        assert_eq!(log.count("not configured on this node"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_unsent_counts_is_acknowledged() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    site.record("a=1", "u", AGO).await;
    let mut slow = site.slow("node");
    slow.has_unsent = false;
    let node = site.start_with(slow, &site.node(Duration::ZERO), named(&output));
    seconds(6).await;
    assert!(node.store.count("acknowledge") > 0);
    assert_eq!(output.writes.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn recent_minutes_are_written_before_old_ones() {
    let site = Site::new(Duration::ZERO);
    for ago in [AGO, AGO + Duration::from_secs(1200)] {
        site.record("a=1", "u", ago).await;
    }
    let node = site.node(Duration::ZERO);
    let before = site.start_with(site.slow("before"), &node, named(&site.output));
    seconds(6).await;
    before.stopped().await;
    let output = Arc::new(Taking::default());
    site.start_with(site.slow("node"), &node, named(&output));
    seconds(6).await;
    let taken = output.taken.lock().unwrap();
    assert!(taken.len() >= 2 && taken[0].minute > taken[1].minute, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn counts_beyond_the_first_page_are_written_page_by_page() {
    let (site, output) = (Site::new(Duration::ZERO), Arc::new(Taking::default()));
    for number in 0..20_050 {
        let ago = AGO + Duration::from_secs(60);
        site.record(&format!("a={number}"), "u", ago).await;
    }
    site.record("a=1", "u", AGO).await;
    let mut slow = site.slow("node");
    slow.calls = Arc::clone(&output.calls);
    site.start_with(slow, &site.node(Duration::ZERO), named(&output));
    seconds(20).await;
    assert_eq!(output.taken(), 20_051);
    let writes = output.writes.load(Relaxed);
    assert!(writes <= 201, "{writes} writes of 100 counts");
    let calls = output.calls.lock().unwrap();
    let first_write = calls.iter().position(|&call| call == "write");
    let last_read = calls.iter().rposition(|&call| call == "unsent");
    assert!(first_write < last_read);
}
