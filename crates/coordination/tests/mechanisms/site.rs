//! The three backends that clients can share: memory, a server, or a cluster. Tests share servers under separate key prefixes.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::redis::{RedisArbiter, Timeouts};
use coordination::{Arbiter, Beginning, Claim, Locking, Name, Place, Token};
use testing::redis::RedisServer;
use testing::redis_cluster::RedisCluster;

/// A time limit that is sufficient on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(10), response: Duration::from_secs(10) };

/// Runs each test in memory, with a Redis server, and with a Redis Cluster.
macro_rules! over_each {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::site::Site::memory()).await;
            })*
        }
        mod one_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::site::Site::redis()).await;
            })*
        }
        mod redis_cluster {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::site::Site::cluster()).await;
            })*
        }
    };
}
pub(crate) use over_each;

/// The backend and the key prefix of a test.
pub(crate) struct Site {
    pub(crate) prefix: String,
    pub(crate) backend: Backend,
}

#[derive(Clone)]
pub(crate) enum Backend {
    Memory(Arc<MemoryArbiter>),
    Redis(Arc<RedisServer>),
    Cluster(Arc<RedisCluster>),
}

static REDIS: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());

/// Returns the running server, or starts a server that stops when no test uses it any longer.
fn shared<T>(there: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut there = there.lock().unwrap_or_else(PoisonError::into_inner);
    there.upgrade().unwrap_or_else(|| {
        let new = Arc::new(start());
        *there = Arc::downgrade(&new);
        new
    })
}

impl Site {
    fn new(backend: Backend) -> Self {
        let prefix = format!("test{:016x}", rand::random::<u64>());
        Self { prefix, backend }
    }

    pub(crate) fn memory() -> Self {
        Self::new(Backend::Memory(Arc::default()))
    }

    pub(crate) fn redis() -> Self {
        Self::new(Backend::Redis(shared(&REDIS, || RedisServer::start(&[]))))
    }

    pub(crate) fn cluster() -> Self {
        Self::new(Backend::Cluster(shared(&CLUSTER, RedisCluster::start)))
    }

    /// Returns the URL with which other processes can connect.
    pub(crate) fn url(&self) -> String {
        match &self.backend {
            Backend::Memory(_) => panic!("memory is not shared between processes"),
            Backend::Redis(server) => server.url(),
            Backend::Cluster(cluster) => cluster.url(),
        }
    }

    /// Takes a lock from its holder, as an eviction or a failover may.
    pub(crate) async fn revoke(&self, lock: &str) {
        let key = format!("{{{}:mutex:{lock}}}:holders", self.prefix);
        let server = match &self.backend {
            Backend::Memory(arbiter) => {
                assert!(arbiter.invalidate(&Name::of_mutex(lock).unwrap()).await.unwrap());
                return;
            }
            Backend::Redis(server) => server,
            Backend::Cluster(cluster) => cluster.master_of(&key),
        };
        assert_eq!(server.query::<u32>(&["DEL", &key]), 1);
    }

    /// Returns an arbiter with its own connections, like that of a new node.
    pub(crate) fn arbiter(&self) -> Arc<dyn Arbiter> {
        match &self.backend {
            Backend::Memory(arbiter) => Arc::clone(arbiter) as Arc<dyn Arbiter>,
            _ => Arc::new(RedisArbiter::open(&self.url(), &self.prefix, TIMEOUTS).unwrap()),
        }
    }
}

/// Acquires the lease to compute a value. Panics if the lease is not free.
pub(crate) async fn begin(arbiter: &dyn Arbiter, name: &Name, ttl: Duration) -> (Claim, Token) {
    let claim = Claim::new(name.clone(), ttl);
    match arbiter.begin(&claim, None).await.unwrap() {
        Beginning::Granted(token) => (claim, token),
        answer => panic!("{answer:?}"),
    }
}

/// Acquires a lock. Returns the claim and the token, or `None` if the lock is not free.
pub(crate) async fn lock(
    arbiter: &dyn Arbiter,
    name: &Name,
    ttl: Duration,
) -> Option<(Claim, Token)> {
    let claim = Claim::new(name.clone(), ttl);
    match arbiter.lock(&claim, Place::None).await.unwrap() {
        Locking::Granted(token) => Some((claim, token)),
        _ => None,
    }
}
