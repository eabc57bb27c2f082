//! Both stores with one clock, which stays until the test moves it.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use event_data_service::event::{Partition, Partitions};
use event_data_service::store::memory::MemoryStore;
use event_data_service::store::redis::{Layout, RedisStore, Settings};
use event_data_service::store::{
    CountReader, Known, LossRecord, NodeStore, OutputName, Quarantine,
};
use redis::Connection;
use testing::clock::Clock;
use testing::redis::RedisServer;

use super::step::{BEGIN_MS, OUTPUTS, PARTITIONS};

/// One name has what stands between the parts of a token.
pub(crate) const NAMES: [&str; super::step::NODES] = ["n1", "n2|7", "n3"];
const RETENTION: Duration = Duration::from_secs(300);
/// Some counts a minute and partition, so that the more there are the sooner they go.
const COUNTS_MAX: u64 = 4 * PARTITIONS as u64;

/// A node of either store.
pub(crate) trait Node: NodeStore + Quarantine + CountReader {}
impl<T: NodeStore + Quarantine + CountReader> Node for T {}

pub(crate) fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::new(PARTITIONS).unwrap())
}

pub(crate) fn partition(index: usize) -> Partition {
    partitions().iter().nth(index).unwrap()
}

pub(crate) fn output(index: usize) -> OutputName {
    OUTPUTS[index].parse().unwrap()
}

/// A Redis whose clock is stopped, and the nodes that use it.
pub(crate) struct Ground {
    _server: RedisServer,
    clock: Clock,
    pub(crate) connection: Connection,
    pub(crate) nodes: Vec<Arc<dyn Node>>,
    /// What the nodes are called.
    identities: Vec<String>,
    /// The hash tags of the partitions.
    pub(crate) tags: Vec<String>,
    micros: Arc<AtomicI64>,
    pub(crate) layout: Layout,
}

impl Ground {
    pub(crate) async fn start(layout: Layout) -> Self {
        let clock = Clock::stopped_at(BEGIN_MS * 1000);
        let server = RedisServer::start_with_clock(&clock, &[]);
        let stores = NAMES.map(|name| redis_node(&server, layout, name));
        let mut ground = Self {
            connection: server.connection(),
            identities: stores.iter().map(|it| it.identity().to_owned()).collect(),
            nodes: stores.map(|store| Arc::new(store) as Arc<dyn Node>).into(),
            _server: server,
            clock,
            tags: Vec::new(),
            micros: Arc::new(AtomicI64::new(0)),
            layout,
        };
        for partition in partitions().iter() {
            ground.clear();
            let (known, lease) = (Known::default(), Duration::ZERO);
            let checked_in = ground.nodes[0].check_in(partition, &known, false, lease, lease);
            checked_in.await.unwrap();
            let keys = ground.names("*:stamps");
            ground
                .tags
                .push(keys[0].strip_suffix(":stamps").unwrap().to_owned());
        }
        ground
    }

    /// Forgets everything, and gives the nodes of an empty memory store.
    pub(crate) fn clear(&mut self) -> (Arc<MemoryStore>, Vec<Arc<dyn Node>>) {
        let mut forget = redis::cmd("UNLINK");
        // The settings stay, with what fingerprints are made with.
        let names = self.names("*").into_iter();
        forget.arg(
            names
                .filter(|name| name != "eds:settings")
                .collect::<Vec<_>>(),
        );
        forget.arg("nothing").exec(&mut self.connection).unwrap();
        self.set_clock(BEGIN_MS * 1000);
        let micros = Arc::clone(&self.micros);
        let clock: event_data_service::store::memory::Clock =
            Arc::new(move || micros.load(Ordering::Relaxed));
        let store = MemoryStore::new(
            NAMES[0],
            &partitions(),
            RETENTION,
            u64::MAX,
            Arc::clone(&clock),
        );
        let store = Arc::new(store.keeping(COUNTS_MAX));
        let node =
            |name: &String| Arc::new(store.shared_with(name, Arc::clone(&clock))) as Arc<dyn Node>;
        let nodes = self.identities.iter().map(node).collect();
        (store, nodes)
    }

    pub(crate) fn micros(&self) -> i64 {
        self.micros.load(Ordering::Relaxed)
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.micros().div_euclid(1000)
    }

    /// Sets both clocks, in µs since the epoch. What is expired by then is gone, even when the clock is set back.
    pub(crate) fn set_clock(&mut self, micros: i64) {
        self.micros.store(micros, Ordering::Relaxed);
        self.clock.set(micros);
        // Redis drops an expired key when it comes across it: at last when it lists all.
        let mut scan = redis::cmd("SCAN");
        scan.arg(0).arg("COUNT").arg(1_000_000);
        scan.exec(&mut self.connection).unwrap();
    }

    pub(crate) fn names(&mut self, pattern: &str) -> Vec<String> {
        redis::cmd("KEYS")
            .arg(pattern)
            .query(&mut self.connection)
            .unwrap()
    }
}

fn redis_node(server: &RedisServer, layout: Layout, name: &str) -> RedisStore {
    let settings = Settings {
        redis: server.settings(),
        prefix: "eds".to_owned(),
        partitions: partitions(),
        layout,
        retention: RETENTION,
        counts_max: COUNTS_MAX,
        node: name.to_owned(),
    };
    RedisStore::new(&settings).unwrap()
}
