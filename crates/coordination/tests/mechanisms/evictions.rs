//! Tests that a lock can be acquired again after Redis has evicted its key.

use std::sync::Arc;
use std::time::Duration;

use coordination::redis::RedisArbiter;
use coordination::{Arbiter, Error, Mutex, Name};
use testing::redis::RedisServer;

use crate::faulty::Faulty;
use crate::site::{PATIENCE, Site, TIMEOUTS};

const LONG: Duration = Duration::from_secs(60);

/// The key of the lock is evicted while one client holds the lock and another waits.
async fn a_lock_outlives_the_eviction_of_its_key(site: Site) {
    let mutex = || Mutex::new(site.arbiter(), "a", LONG).unwrap();
    let former = mutex().acquire(PATIENCE).await.unwrap();
    let waiter = Faulty::counting(site.arbiter());
    let waiting = Mutex::new(Arc::clone(&waiter) as _, "a", LONG).unwrap();
    let evicting = async {
        waiter.answered("lock", 1).await;
        site.revoke("a").await;
    };
    let (guard, ()) = tokio::join!(waiting.acquire(PATIENCE), evicting);
    let guard = guard.unwrap();
    assert!(guard.token() > former.token());
    assert!(!former.release().await.unwrap());
    assert!(guard.release().await.unwrap());
}

#[tokio::test]
async fn lock_on_redis_survives_eviction() {
    a_lock_outlives_the_eviction_of_its_key(Site::redis()).await;
}

#[tokio::test]
async fn lock_on_a_cluster_survives_eviction() {
    a_lock_outlives_the_eviction_of_its_key(Site::cluster()).await;
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
