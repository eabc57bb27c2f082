//! Tests that a lock can be acquired again after Redis has evicted any one of its keys.

use std::sync::Arc;
use std::time::Duration;

use coordination::redis::RedisArbiter;
use coordination::{Arbiter, Claim, Error, Locking, Mutex, Name};
use testing::redis::RedisServer;

use crate::site::{PATIENCE, Place, Site, TIMEOUTS};

const LONG: Duration = Duration::from_secs(60);

fn evict(site: &Site, key: &str) {
    let server = match &site.place {
        Place::Memory(_) => panic!("memory does not evict"),
        Place::Redis(server) => server,
        Place::Cluster(cluster) => cluster.master_of(key),
    };
    let evicted: u32 = server.query(&["DEL", key]);
    assert_eq!(evicted, 1, "{key}");
}

/// A key of the lock is evicted while one client holds the lock and a dead client has a place in the queue.
async fn a_lock_outlives_the_eviction_of_any_of_its_keys(site: Site) {
    for key in ["lock", "queue", "present"] {
        let arbiter = site.arbiter();
        let name = Name::of_mutex(key).unwrap();
        let mutex = || Mutex::new(site.arbiter(), key, LONG).unwrap();
        let guard = mutex().acquire(PATIENCE).await.unwrap();
        // The dead client's place in the queue is kept only for a moment.
        let presence = Some(Duration::from_millis(1));
        let dead = arbiter.lock(&Claim::new(name, LONG), presence).await.unwrap();
        assert!(matches!(dead, Locking::Busy(_)));
        evict(&site, &format!("{{{}:mutex:{key}}}:{key}", site.prefix));
        guard.release().await.unwrap();
        let next = mutex().acquire(PATIENCE).await.unwrap();
        assert!(next.release().await.unwrap());
    }
}

#[tokio::test]
async fn lock_on_redis_survives_eviction_of_any_key() {
    a_lock_outlives_the_eviction_of_any_of_its_keys(Site::redis()).await;
}

#[tokio::test]
async fn lock_on_a_cluster_survives_eviction_of_any_key() {
    a_lock_outlives_the_eviction_of_any_of_its_keys(Site::cluster()).await;
}

#[tokio::test]
async fn evicting_redis_is_refused() {
    let server = RedisServer::start(&["--maxmemory-policy", "volatile-ttl"]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let error = arbiter.peek(&Name::of_value("a").unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(reason) if reason.contains("noeviction")), "{error}");
    server.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    // The arbiter checks the eviction policy again when it reconnects.
    let mutex = Mutex::new(Arc::new(arbiter), "a", LONG).unwrap();
    while mutex.acquire(PATIENCE).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
