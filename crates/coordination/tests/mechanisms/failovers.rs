//! Tests that tokens grow even if a failover loses acknowledged writes, and that they protect resources that compare them.

use std::sync::Arc;
use std::time::Duration;

use coordination::redis::{RedisArbiter, Timeouts};
use coordination::{LockLost, Mutex, Token};
use testing::redis_cluster::RedisCluster;
use testing::redis_sentinel::{NAME, RedisSentinel};

/// A time limit that is longer than any failover.
const PATIENCE: Duration = Duration::from_secs(120);
const LOCK_TTL: Duration = Duration::from_secs(30);

fn mutex(url: &str) -> Mutex {
    let timeouts = Timeouts { connect: Duration::from_secs(2), response: Duration::from_secs(2) };
    let arbiter = RedisArbiter::open(url, "eds", timeouts).unwrap();
    Mutex::new(Arc::new(arbiter), "a", LOCK_TTL).unwrap()
}

/// A resource, such as a file or a row, that keeps the greatest token that it has seen, and rejects smaller tokens.
#[derive(Default)]
struct Resource {
    seen: Option<Token>,
    content: &'static str,
}

impl Resource {
    fn write(&mut self, token: Token, content: &'static str) -> bool {
        let is_newest = Some(token) >= self.seen;
        if is_newest {
            (self.seen, self.content) = (Some(token), content);
        }
        is_newest
    }
}

/// A master grants the lock and dies before the replicas have received this write. The next master grants the lock again.
async fn tokens_protect_a_store_from_two_holders(
    url: &str,
    cut: impl FnOnce(),
    fail_over: impl FnOnce(),
) {
    let mut resource = Resource::default();
    let first = mutex(url).acquire(PATIENCE).await.unwrap();
    assert!(resource.write(first.token(), "first"));
    first.release().await.unwrap();
    cut();
    let lost = mutex(url).acquire(PATIENCE).await.unwrap();
    assert!(resource.write(lost.token(), "lost"));
    fail_over();
    let newer = mutex(url).acquire(PATIENCE).await.unwrap();
    assert!(newer.token() > lost.token());
    assert!(resource.write(newer.token(), "newer"));
    // The former holder does not know that it has lost the lock, but the resource rejects its token.
    assert!(!resource.write(lost.token(), "lost"));
    assert_eq!(resource.content, "newer");
    // The former holder learns of the loss from the new master.
    let work = lost.protect(std::future::pending::<()>());
    let ended = tokio::time::timeout(PATIENCE, work).await;
    assert_eq!(ended.expect("the former holder learns of the loss"), Err(LockLost));
    assert!(newer.renew().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_keeps_the_guarantees() {
    let sentinel = std::cell::RefCell::new(RedisSentinel::start());
    let url = sentinel.borrow().url(NAME);
    let cut = || sentinel.borrow().cut_replicas();
    let fail_over = || {
        sentinel.borrow_mut().kill_master();
        sentinel.borrow().wait_promoted();
    };
    tokens_protect_a_store_from_two_holders(&url, cut, fail_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_failover_keeps_the_guarantees() {
    let cluster = std::cell::RefCell::new(RedisCluster::start_with_replicas());
    let url = cluster.borrow().url();
    let index = cluster.borrow().master_index("{eds:mutex:a}");
    let cut = || cluster.borrow().cut_replica(index);
    let fail_over = || {
        cluster.borrow_mut().kill_master(index);
        cluster.borrow().wait_promoted(index);
    };
    tokens_protect_a_store_from_two_holders(&url, cut, fail_over).await;
}
