//! Publishes counts to an output that rejects some of them. Only these may be quarantined, and all others must be written.

use std::num::NonZeroU16;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use coordination::memory::MemoryArbiter;
use event_data_service::event::{Batch, Minute, Partitions};
use event_data_service::flush::{Destination, Flush, FlushSettings};
use event_data_service::node::Node;
use event_data_service::output::influxdb::InfluxDb;
use event_data_service::output::{Output, SealedCounts, WriteError};
use event_data_service::store::redis::{self, Layout, RedisStore};
use event_data_service::store::{Draining, OutputName, RecordRequest, Recording, Records};
use event_data_service::telemetry::Metrics;
use futures_util::future::BoxFuture;
use testing::lua_redis::LuaRedis;
use testing::lua_redis::keyspace::{Hash, Value};
use testing::prelude::*;
use testing::scripted::{Deed, Request, Scripted};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{SEED_MINUTE, Settings, counts, many_counts, output, v1_settings, v2_settings};

pub(super) type Names = BTreeSet<(i64, String)>;

const HOUR: Duration = Duration::from_secs(3600);
/// The time limit for each wait. A healthy machine takes only a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Counting {
    output: InfluxDb,
    writes: AtomicUsize,
}

#[async_trait]
impl Output for Counting {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.output.write(counts).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.output.probe(minute).await
    }

    fn describe(&self) -> String {
        self.output.describe()
    }

    // This prevents probes at startup, so that every write is for claims.
    fn has_server(&self) -> bool {
        false
    }
}

pub(super) struct Publisher {
    redis: Arc<LuaRedis>,
    store: Arc<RedisStore>,
    output: Arc<Counting>,
    pub(super) metrics: Arc<Metrics>,
    stop: CancellationToken,
    /// The tasks are not spawned before all counts have been recorded, which may take more than one transaction.
    tasks: Vec<BoxFuture<'static, ()>>,
    before: usize,
}

pub(super) fn names<'a>(counts: impl IntoIterator<Item = &'a SealedCounts>) -> Names {
    let name = |counts: &SealedCounts| (counts.minute.epoch_minutes(), counts.series.clone());
    counts.into_iter().map(name).collect()
}

impl Publisher {
    pub(super) fn start(settings: &Settings) -> Self {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let node = Arc::<Node>::default();
        let clock = || chrono::Utc::now().timestamp_micros();
        let redis = Arc::new(LuaRedis::new(Box::new(clock), None));
        let store = redis::Settings {
            redis: redis.settings(),
            prefix: "eds".to_owned(),
            partitions: partitions.clone(),
            layout: Layout::Sets,
            retention: HOUR,
            counts_max: 1_000_000,
            node: "node".to_owned(),
        };
        let mut publisher = Self {
            redis,
            store: Arc::new(RedisStore::new(&store).unwrap()),
            output: Arc::new(Counting { output: output(settings), writes: AtomicUsize::new(0) }),
            metrics: Arc::new(Metrics::new(Arc::clone(&node))),
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            before: 0,
        };
        let destination = Destination {
            name: OutputName::default(),
            output: Arc::clone(&publisher.output) as Arc<dyn Output>,
            write_counts_max: 2500,
        };
        let flush = Flush {
            store: Arc::clone(&publisher.store) as Arc<dyn Draining>,
            outputs: vec![destination],
            arbiter: Arc::<MemoryArbiter>::default(),
            partitions,
            settings: FlushSettings {
                interval: Duration::from_millis(10),
                grace: Duration::ZERO,
                max_hold: HOUR,
                window_hold: HOUR,
                lease: Duration::from_secs(30),
                zeros: 0,
            },
            witness_file: None,
            contributions: None,
            metrics: Arc::clone(&publisher.metrics),
            node,
            stop: publisher.stop.clone(),
            recorded: CancellationToken::new(),
        };
        publisher.tasks = flush.into_tasks().unwrap();
        publisher
    }

    /// Records events that result in these counts.
    pub(super) async fn give(&mut self, counts: &[SealedCounts]) {
        self.before = self.requests();
        let mut batch = Batch::default();
        for SealedCounts { minute, series, cumulative, .. } in counts {
            for at in (minute.start_nanos()..).take(usize::try_from(*cumulative).unwrap()) {
                assert!(batch.push(*minute, series, "user", at));
            }
        }
        let recordings: Vec<_> = batch
            .groups()
            .iter()
            .map(|group| RecordRequest {
                new_users: Some(vec!["user"]),
                ..RecordRequest::new(&batch, group)
            })
            .collect();
        let partition = Partitions::new(NonZeroU16::MIN).iter().next().unwrap();
        let records = Records { generation: 0, requests: &recordings, seen: &[] };
        self.store.record(partition, &records).await.unwrap();
        for task in self.tasks.drain(..) {
            tokio::spawn(task);
        }
    }

    fn requests(&self) -> usize {
        self.output.writes.load(Ordering::Relaxed)
    }

    /// Returns the series that have not been sealed, and those whose counts are neither acknowledged nor quarantined.
    pub(super) fn unsent(&self) -> Names {
        let keyspace = self.redis.keyspace();
        let sets = keyspace.0.iter().flat_map(|(key, entry)| {
            let (minute, kind) = minute_of(text(key).strip_prefix("{eds:0}:").unwrap_or_default());
            let members = match (kind, &entry.value) {
                ("event_types" | "unsent:default", Value::Set(members)) => members.clone(),
                _ => BTreeSet::new(),
            };
            members.into_iter().map(move |series| (minute, text(&series).to_owned()))
        });
        sets.collect()
    }

    pub(super) fn quarantined(&self) -> Names {
        let keyspace = self.redis.keyspace();
        let quarantine = keyspace.get::<Hash>("{eds:0}:quarantine:default");
        let names = quarantine.into_iter().flatten().map(|(name, _)| minute_of(text(name)));
        names.map(|(minute, series)| (minute, series.to_owned())).collect()
    }

    /// Waits for up to [`PATIENCE`] until the condition holds.
    pub(super) async fn until(&self, condition: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            let seen = (self.unsent().len(), self.quarantined().len());
            assert!(Instant::now() < deadline, "{condition}: {seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn finish(&self) -> usize {
        self.until("all counts are published", |publisher| publisher.unsent().is_empty()).await;
        self.requests() - self.before
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Splits a name into its minute and the remainder. The minute is 0 if the name does not begin with one.
fn minute_of(name: &str) -> (i64, &str) {
    let end = name.match_indices(':').nth(1).map_or(0, |(at, _)| at);
    let minute = name[..end].parse().map_or(0, Minute::epoch_minutes);
    (minute, name.get(end + 1..).unwrap_or_default())
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn both_ways(server: &Scripted) -> [Settings; 2] {
    [v2_settings(&server.url()), v1_settings(&server.url(), "eds")]
}

fn with(extra: &[&str]) -> Vec<SealedCounts> {
    let mut batch = many_counts(300);
    batch.extend(extra.iter().map(|series| counts(SEED_MINUTE, series, 1, 1)));
    batch
}

fn series_of(names: &Names) -> Vec<&str> {
    names.iter().map(|(_, series)| series.as_str()).collect()
}

/// Starts a server that reacts in this way to bodies that contain "evil", and accepts all others.
async fn server_that_dislikes(deed: Deed) -> Scripted {
    Scripted::start(
        move |request: &Request| {
            if request.body.contains("evil") { deed.clone() } else { Deed::status(204) }
        },
    )
    .await
}

#[tokio::test]
async fn rejection_of_some_bodies_is_attributed_to_their_counts() {
    for status in [400, 401, 403, 404, 413, 422] {
        let server = server_that_dislikes(Deed::Answer(status, "", "database is required")).await;
        for settings in both_ways(&server) {
            let mut publisher = Publisher::start(&settings);
            publisher.give(&with(&["n=evil1", "n=evil2"])).await;
            publisher.finish().await;
            let quarantined = publisher.quarantined();
            assert_eq!(series_of(&quarantined), ["n=evil1", "n=evil2"], "{status}");
        }
    }
}

#[tokio::test]
async fn count_that_makes_the_server_fail_delays_no_other() {
    for deed in [Deed::status(500), Deed::status(502), Deed::Hangup, Deed::Silence] {
        let is_slow = matches!(deed, Deed::Silence);
        let server = server_that_dislikes(deed).await;
        for mut settings in both_ways(&server) {
            if is_slow {
                settings.timeout = Duration::from_millis(200);
            }
            let mut publisher = Publisher::start(&settings);
            publisher.give(&with(&["n=evil"])).await;
            publisher
                .until("the others are written", |publisher| publisher.unsent().len() == 1)
                .await;
            assert_eq!(series_of(&publisher.unsent()), ["n=evil"]);
            let next = Minute::from_epoch_minutes(SEED_MINUTE.epoch_minutes() + 1).unwrap();
            publisher.give(&[counts(next, "n=next", 1, 1)]).await;
            publisher
                .until("later counts are written too", |publisher| publisher.unsent().len() == 1)
                .await;
            assert!(publisher.quarantined().is_empty());
        }
    }
}

/// The status of the response does not matter.
#[tokio::test]
async fn nothing_is_quarantined_while_nothing_is_accepted() {
    for status in [200, 400, 401, 403, 404, 413, 422, 429, 500, 503] {
        let server = Scripted::start(move |_| Deed::Answer(status, "", "no")).await;
        for settings in both_ways(&server) {
            let mut publisher = Publisher::start(&settings);
            publisher.give(&many_counts(3000)).await;
            publisher
                .until("two rounds have failed", |publisher| {
                    publisher.metrics.of_output("default").write_failures.get() >= 2
                })
                .await;
            assert!(publisher.quarantined().is_empty(), "{status}");
            assert_eq!(publisher.unsent().len(), 3000);
            let requests = publisher.requests();
            assert!(requests <= 3 * 70, "{status}: {requests}");
        }
    }
}

#[tokio::test]
async fn a_body_too_large_is_split_until_it_fits() {
    let server =
        Scripted::start(|request| Deed::status(if request.body.len() <= 1000 { 204 } else { 413 }))
            .await;
    for settings in both_ways(&server) {
        let long = format!("n={}", "x".repeat(1000));
        let mut publisher = Publisher::start(&settings);
        publisher.give(&with(&[&long])).await;
        publisher.finish().await;
        assert_eq!(series_of(&publisher.quarantined()), [long.as_str()]);
    }
}

/// The node rejects this series itself, so it is never sent to the server.
#[tokio::test]
async fn series_that_could_forge_a_point_is_quarantined() {
    let server = Scripted::start(|_| Deed::status(204)).await;
    for settings in both_ways(&server) {
        let mut publisher = Publisher::start(&settings);
        publisher.give(&with(&["n=0\nforged value=1 1"])).await;
        publisher.finish().await;
        assert_eq!(publisher.quarantined().len(), 1);
        let requests = server.requests();
        assert!(requests.iter().all(|request| !request.body.contains("\nforged")));
    }
}
