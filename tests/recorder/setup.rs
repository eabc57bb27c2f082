//! Creates a recorder for one partition, and its batches.

use std::num::NonZeroU16;

use event_data_service::event::{
    Batch, Minute, OverflowSeries, Partition, Partitions, Precision, Window,
};
use event_data_service::ingest::{Budget, CapSettings, Delivery, Recorder, RecorderSettings};
use event_data_service::node::{Clock, Intake, LedgerTotals, Node, Rng};
use event_data_service::store::Recording;
use event_data_service::store::redis::{self, Layout, RedisStore};
use event_data_service::telemetry::Metrics;
use testing::lua_redis::LuaRedis;
use testing::lua_redis::keyspace::Set;
use testing::prelude::*;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::MIN)
}

pub(crate) fn partition() -> Partition {
    partitions().of("", Minute::MIN)
}

pub(crate) struct OpenSets {
    pub(crate) series: String,
    pub(crate) users: Vec<String>,
    pub(crate) events: Vec<String>,
}

pub(crate) struct Server {
    redis: Arc<LuaRedis>,
    pub(crate) store: Arc<RedisStore>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let clock = || chrono::Utc::now().timestamp_micros();
        let redis = Arc::new(LuaRedis::new(Box::new(clock), None));
        let settings = redis::Settings {
            redis: redis.settings(),
            prefix: "eds".to_owned(),
            partitions: partitions(),
            layout: Layout::Sets,
            retention: HOUR,
            counts_max: 1000,
            node: "a".to_owned(),
        };
        let store = Arc::new(RedisStore::new(&settings).unwrap());
        Self { redis, store }
    }

    pub(crate) fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        let keyspace = self.redis.keyspace();
        let members = |kind: &str| {
            let set = keyspace.get::<Set>(&format!("{{eds:0}}:{minute}:{kind}"));
            let members = set.into_iter().flatten();
            let members = members.map(|member| String::from_utf8(member.clone()).unwrap());
            members.collect::<Vec<_>>()
        };
        let open = |series: String| OpenSets {
            users: members(&format!("unique_user:{series}")),
            events: members(&format!("cumulative_user:{series}")),
            series,
        };
        members("event_types").into_iter().map(open).collect()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.redis.fmt(f)
    }
}

pub(crate) fn this_minute() -> Minute {
    Minute::of_nanos(chrono::Utc::now().timestamp_nanos_opt().unwrap())
}

pub(crate) const fn caps(series_max: usize, users_max: u64) -> CapSettings {
    CapSettings { series_max, users_max }
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) max_age: Duration,
    pub(crate) store: Arc<dyn Recording>,
    pub(crate) caps: CapSettings,
    pub(crate) replay_window: Duration,
    pub(crate) dedup_users: usize,
}

pub(crate) fn recorder(setup: Setup) -> (Recorder, mpsc::Sender<Delivery>, Arc<Node>) {
    let node = Arc::new(Node::new(setup.clock, Rng::default()));
    let (batches, queue) = mpsc::channel(1);
    let recorder = Recorder {
        partition: partition(),
        settings: RecorderSettings {
            window: Window::new(setup.max_age, setup.max_age),
            precision: Precision::Nanoseconds,
            caps: setup.caps,
            lagging_after: HOUR,
            replay_window: setup.replay_window,
        },
        batches: queue,
        store: setup.store,
        overflow: OverflowSeries::new(&partitions(), partition()),
        spool: None,
        dedup: Arc::new(Budget::of_users(setup.dedup_users)),
        replay: Arc::new(Budget::new(1 << 20)),
        node: Arc::clone(&node),
        metrics: Arc::new(Metrics::new(Arc::clone(&node))),
        heartbeat: node.progress.watch("recorder"),
        abort: CancellationToken::new(),
    };
    (recorder, batches, node)
}

pub(crate) async fn hand_over(batch: Batch, batches: &mpsc::Sender<Delivery>, node: &Node) {
    node.ledger.take_in(&Intake {
        queued: batch.events() as u64,
        queued_bytes: batch.bytes() as u64,
        ..Intake::default()
    });
    batches.send(batch.into()).await.unwrap();
}

pub(crate) async fn record(setup: Setup, all: Vec<Batch>) -> LedgerTotals {
    let (recorder, batches, node) = recorder(setup);
    let metrics = Arc::clone(&recorder.metrics);
    let sending = async {
        for batch in all {
            hand_over(batch, &batches, &node).await;
        }
        drop(batches);
    };
    tokio::join!(recorder.run(), sending);
    let totals = node.ledger.totals();
    assert!(totals.is_balanced() && totals.queued == 0, "{totals:?}");
    assert_eq!(metrics.replay_cut.get(), 0, "the replay memory is large enough");
    totals
}
