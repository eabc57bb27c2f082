//! The events used for measurements, in chronological order: at least 50 series and 10,000 users over three minutes. Also the
//! settings and recorders of the default configuration.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use event_data_service::config::Key;
use event_data_service::event::{
    LineRules, OverflowSeries, Partition, Partitions, Precision, Window,
};
use event_data_service::ingest::{
    BatcherSettings, Budget, CapSettings, Delivery, QueueLimits, Recorder, RecorderSettings,
};
use event_data_service::node::Node;
use event_data_service::store::Recording;
use event_data_service::store::redis::{Layout, Settings};
use event_data_service::telemetry::Metrics;
use loadgen::{Event, Plan, Synthetic};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// 2016-12-04 18:38:00 UTC, in nanoseconds.
pub(crate) const START_NANOS: i64 = 1_480_876_680_000_000_000;
const SPAN_NANOS: i64 = 180_000_000_000;
pub(crate) const SERIES: u32 = 50;
const USERS: u32 = 10_000;

/// The events and the names that they contain.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) events: Vec<Event>,
    /// The text of each series, indexed by kind and product.
    series: Vec<Vec<String>>,
    users: Vec<String>,
}

impl Load {
    /// Returns a load of this many distinct events. Equal arguments always result in the same events.
    pub(crate) fn new(events: u64, series: u32) -> Self {
        let plan = Plan {
            seed: 42,
            events,
            series: NonZeroU32::MIN.saturating_add(series - 1),
            users: NonZeroU32::MIN.saturating_add(USERS - 1),
            start_nanos: START_NANOS,
            span_nanos: SPAN_NANOS,
            repeat: 0.0,
            shuffle: false,
        };
        let events: Vec<_> = Synthetic::new(plan).collect();
        let most = |number: fn(&Event) -> u32| events.iter().map(number).max().unwrap_or_default();
        let (kinds, products) = (most(|event| event.kind), most(|event| event.product));
        let name = |kind, product| format!("event_type=type-{kind},product=product-{product}");
        let of_kind = |kind| (0..=products).map(|product| name(kind, product)).collect();
        Self {
            series: (0..=kinds).map(of_kind).collect(),
            users: (0..USERS).map(|user| format!("user-{user}")).collect(),
            events,
        }
    }

    pub(crate) fn series(&self, event: &Event) -> &str {
        &self.series[event.kind as usize][event.product as usize]
    }

    pub(crate) fn user(&self, event: &Event) -> &str {
        &self.users[event.user as usize]
    }

    /// Returns the events as datagrams of this many lines in the short form.
    pub(crate) fn datagrams(&self, lines: usize) -> Vec<String> {
        self.lines(lines, |text, series, user, timestamp| {
            write!(text, "{series} value={user} {timestamp}")
        })
    }

    /// Returns the events as datagrams of this many lines of strict line protocol.
    pub(crate) fn strict_datagrams(&self, lines: usize) -> Vec<String> {
        self.lines(lines, |text, series, user, timestamp| {
            write!(text, "events,{series} value=\"{user}\" {timestamp}")
        })
    }

    fn lines(
        &self,
        lines: usize,
        line: impl Fn(&mut String, &str, &str, i64) -> std::fmt::Result,
    ) -> Vec<String> {
        let datagram = |events: &[Event]| {
            let mut text = String::new();
            for event in events {
                // Writing to a string cannot fail.
                let _ = line(&mut text, self.series(event), self.user(event), event.nanos);
                text.push('\n');
            }
            text
        };
        self.events.chunks(lines).map(datagram).collect()
    }
}

/// The partitions of the default configuration.
#[expect(clippy::expect_used, reason = "the key exists, and its default is a number")]
pub(crate) fn partitions() -> Partitions {
    let key = Key::find("store.partitions").expect("a configuration key");
    Partitions::new(key.default.parse().expect("a number"))
}

/// Batcher settings of the default configuration, except that events of any age are accepted.
pub(crate) fn batcher_settings() -> BatcherSettings {
    BatcherSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::MAX, Duration::MAX),
        partitions: partitions(),
        limits: QueueLimits { events: 1_000_000, bytes: 256 << 20 },
    }
}

/// Returns the store settings of the default configuration for a node, with the layout `sets`.
pub(crate) fn store_settings(redis: redis_link::Settings, node: &str) -> Settings {
    Settings {
        redis,
        prefix: "eds".to_owned(),
        partitions: partitions(),
        layout: Layout::Sets,
        retention: Duration::from_secs(7200),
        counts_max: 1_000_000,
        node: node.to_owned(),
    }
}

/// The shared parts of a node's recorders.
pub(crate) struct Recorders {
    store: Arc<dyn Recording>,
    dedup: Arc<Budget>,
    replay: Arc<Budget>,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
}

impl Recorders {
    pub(crate) fn new(store: Arc<dyn Recording>, node: Arc<Node>, metrics: Arc<Metrics>) -> Self {
        // The default limits of a node.
        let dedup = Arc::new(Budget::of_users(1_000_000));
        let replay = Arc::new(Budget::new(256 << 20));
        Self { store, dedup, replay, node, metrics }
    }

    /// Returns the recorder of a partition, with the settings of the default configuration, except that events of any age are
    /// accepted.
    pub(crate) fn of(&self, partition: Partition, batches: mpsc::Receiver<Delivery>) -> Recorder {
        Recorder {
            partition,
            settings: RecorderSettings {
                window: Window::new(Duration::MAX, Duration::MAX),
                precision: Precision::Nanoseconds,
                caps: CapSettings { series_max: 100_000, users_max: 10_000_000 },
                lagging_after: Duration::from_secs(1),
                replay_window: Duration::from_secs(10),
            },
            batches,
            store: Arc::clone(&self.store),
            overflow: OverflowSeries::new(&partitions(), partition),
            spool: None,
            dedup: Arc::clone(&self.dedup),
            replay: Arc::clone(&self.replay),
            node: Arc::clone(&self.node),
            metrics: Arc::clone(&self.metrics),
            heartbeat: self.node.progress.watch("a recorder"),
            abort: CancellationToken::new(),
        }
    }
}
