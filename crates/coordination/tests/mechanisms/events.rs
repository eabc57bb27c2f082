//! Events are reported to observers.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use coordination::{Arbiter, ComputeOnce, ComputeSettings, Event, Mutex, Name};
use testing::redis::RedisServer;

use crate::site::{PATIENCE, TIMEOUTS};

type Told = Arc<StdMutex<Vec<String>>>;

/// Name and kind of each event.
fn hook(told: &Told) -> impl Fn(&Name, &Event) + Send + Sync + 'static {
    let told = Arc::clone(told);
    move |name, event| {
        let event = format!("{event:?}");
        let kind = event.split([' ', '{']).next().unwrap();
        told.lock().unwrap().push(format!("{} {kind}", name.as_str()));
    }
}

async fn everything_is_told(arbiter: Arc<dyn Arbiter>, told: Told) {
    let expect =
        |expected: &[&str]| assert_eq!(std::mem::take(&mut *told.lock().unwrap()), expected);
    let lock_ttl = Duration::from_millis(500);
    let settings = ComputeSettings { lock_ttl, ..ComputeSettings::default() };
    let once = ComputeOnce::new(Arc::clone(&arbiter), settings).unwrap();
    let value = |_| async { Ok::<_, String>(b"value".to_vec()) };
    once.get("a", PATIENCE, value).await.unwrap();
    expect(&["once:a Computing", "once:a Computed", "once:a Waited"]);
    once.get("a", PATIENCE, value).await.unwrap();
    expect(&["once:a Found"]);
    let error = |_| async { Err::<Vec<u8>, _>("none") };
    once.get("b", PATIENCE, error).await.unwrap_err();
    expect(&["once:b Computing", "once:b Failed", "once:b Waited"]);
    let never = |_| std::future::pending::<Result<Vec<u8>, String>>();
    once.get("c", lock_ttl, never).await.unwrap_err();
    expect(&["once:c Computing", "once:c GaveUp"]);

    let mutex = Mutex::new(Arc::clone(&arbiter), "d", lock_ttl).unwrap();
    let guard = mutex.acquire(PATIENCE).await.unwrap();
    assert!(mutex.try_acquire().await.unwrap().is_none());
    mutex.acquire(Duration::ZERO).await.unwrap_err();
    let name = Name::of_mutex("d").unwrap();
    assert!(arbiter.unlock(&name, guard.token()).await.unwrap());
    guard.lost().cancelled().await;
    expect(&["mutex:d Locked", "mutex:d NotLocked", "mutex:d NotLocked", "mutex:d Lost"]);
}

#[tokio::test]
async fn everything_is_told_in_memory() {
    let told = Told::default();
    let arbiter = MemoryArbiter::default().observed_by(hook(&told));
    everything_is_told(Arc::new(arbiter), told).await;
}

#[tokio::test]
async fn everything_is_told_on_redis() {
    let (server, told) = (RedisServer::start(&[]), Told::default());
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    everything_is_told(Arc::new(arbiter.observed_by(hook(&told))), told).await;
}
