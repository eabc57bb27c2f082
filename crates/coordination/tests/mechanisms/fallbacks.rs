//! Tests what happens if Redis has lost its scripts, is out of memory, or drops connections.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use coordination::{Arbiter, AtomicReplace, Claim, Error, Mutex, Name};
use testing::redis::RedisServer;
use testing::redis_cluster::RedisCluster;
use testing::tcp_proxy::{TcpProxy, Traffic};
use tokio::time::sleep;

use crate::faulty::{Fate, Faulty};
use crate::site::{PATIENCE, TIMEOUTS, begin, lock};

const LONG: Duration = Duration::from_secs(60);

/// Returns how often a server has received the text of a script.
fn texts(server: &RedisServer) -> u64 {
    let stats: String = server.query(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_script|load:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn script_is_sent_only_to_the_server_without_it() {
    let cluster = RedisCluster::start();
    let arbiter = RedisArbiter::open(&cluster.url(), "eds", TIMEOUTS).unwrap();
    // Find a name for each master.
    let mut names = Vec::new();
    for master in &cluster.nodes {
        let is_on_master = |name: &String| {
            let key = format!("{{eds:mutex:{name}}}");
            cluster.master_of(&key).address() == master.address()
        };
        let name = (0..1000).map(|number| format!("n{number}")).find(is_on_master);
        names.push(Name::of_mutex(&name.unwrap()).unwrap());
    }
    let is_free = async |name| lock(&arbiter, name, LONG).await.is_some();
    assert!(is_free(&names[0]).await);
    let sent = || cluster.nodes.iter().map(texts).collect::<Vec<_>>();
    assert_eq!(sent(), [1, 0, 0]);
    assert!(is_free(&names[1]).await && is_free(&names[2]).await);
    assert_eq!(sent(), [1, 1, 1]);
    // One master forgets the script, as after a restart.
    cluster.nodes[1].query::<()>(&["SCRIPT", "FLUSH"]);
    for name in names.iter().cycle().take(9) {
        assert!(!is_free(name).await);
    }
    assert_eq!(sent(), [1, 2, 1]);
}

fn is_full<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Full(_)))
}

/// While Redis is out of memory, nothing is granted or stored, but leases can be renewed and released.
#[tokio::test]
async fn full_redis_renews_and_releases_but_grants_no_lease() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let arbiter: Arc<dyn Arbiter> = Arc::new(arbiter);
    let mutex = Mutex::new(Arc::clone(&arbiter), "a", LONG).unwrap();
    let held = mutex.acquire(PATIENCE).await.unwrap();
    let [name, second] = ["a", "b"].map(|name| Name::of_value(name).unwrap());
    let (begun, _) = begin(&*arbiter, &name, LONG).await;
    let (second_claim, _) = begin(&*arbiter, &second, LONG).await;
    assert!(arbiter.publish(&second_claim, Ok((b"kept", LONG)), LONG).await.unwrap());
    let keys = server.keys();
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]);
    let new = Claim::new(Name::of_value("c").unwrap(), LONG);
    let published = arbiter.publish(&begun, Ok((b"value", LONG)), LONG).await;
    let failed = arbiter.publish(&begun, Err("no room"), LONG).await;
    let (computing, locked) = (arbiter.begin(&new, None).await, arbiter.lock(&new, None).await);
    assert!(is_full(&published) && is_full(&failed) && is_full(&computing) && is_full(&locked));
    let lists = AtomicReplace::new(Arc::clone(&arbiter), LONG).unwrap();
    let replaced = lists.replace("a", &["x"], None).await;
    let full = matches!(replaced, Err(Error::Full(_)));
    assert!(full, "{replaced:?}");
    // Existing data can be read, renewed, and released.
    let found = arbiter.peek(&second).await.unwrap();
    assert_eq!(&*found.unwrap().value, b"kept");
    assert!(arbiter.renew(&begun).await.unwrap());
    assert!(arbiter.release(&begun).await.unwrap());
    assert!(held.release().await.unwrap());
    assert_eq!(server.keys(), keys);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    mutex.acquire(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn peek_creates_no_key() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    for number in 0..10 {
        let name = Name::of_value(&number.to_string()).unwrap();
        assert_eq!(arbiter.peek(&name).await.unwrap(), None);
    }
    assert_eq!(server.keys(), [""; 0]);
}

/// Deletes all keys of the lock, as after a failover that lost the last writes.
#[tokio::test]
async fn tokens_grow_even_if_the_last_one_is_lost() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let arbiter: Arc<dyn Arbiter> = Arc::new(arbiter);
    let mutex = Mutex::new(Arc::clone(&arbiter), "a", LONG).unwrap();
    let stale = mutex.acquire(PATIENCE).await.unwrap();
    server.query::<()>(&["FLUSHALL"]);
    let newer = mutex.acquire(PATIENCE).await.unwrap();
    assert!(newer.token() > stale.token());
    // The former holder learns of the loss, and does not affect the new holder.
    assert!(!stale.renew().await.unwrap());
    assert!(stale.lost().is_cancelled());
    assert!(!stale.release().await.unwrap());
    assert!(newer.renew().await.unwrap());
}

/// All connections, including the one for wake-ups, break while a caller is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_broken_connections() {
    let server = RedisServer::start(&[]);
    let arbiter = || {
        let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
        Faulty::counting(Arc::new(arbiter))
    };
    let mutex = |arbiter: &Arc<Faulty>| Mutex::new(Arc::clone(arbiter) as _, "a", LONG).unwrap();
    let first = mutex(&arbiter());
    let asking = arbiter();
    let second = mutex(&asking);
    let guard = first.acquire(PATIENCE).await.unwrap();
    let waiting = tokio::spawn(async move { second.acquire(PATIENCE).await.unwrap().tries() });
    // The waiting caller repeats its request after it has subscribed.
    asking.answered("lock", 2).await;
    server.query::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    server.query::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    while guard.renew().await.is_err() {
        sleep(Duration::from_millis(50)).await;
    }
    assert!(guard.release().await.unwrap());
    assert!(waiting.await.unwrap() > 0);
}

/// No call fails because an idle connection has been closed by the other side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_succeed_after_idle_connections_were_cut() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let arbiter = RedisArbiter::open(&proxy.url(), "eds", TIMEOUTS).unwrap();
    let mutex = Mutex::new(Arc::new(arbiter), "a", PATIENCE).unwrap();
    for _ in 0..3 {
        let held = mutex.acquire(PATIENCE).await.unwrap();
        proxy.set(Traffic::Cut);
        proxy.set(Traffic::Open);
        held.release().await.unwrap();
    }
}

/// Redis stops while a lock is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_without_redis_learns_of_the_loss() {
    let mut server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let ttl = Duration::from_millis(1500);
    let mutex = Mutex::new(Arc::new(arbiter), "a", ttl).unwrap();
    let guard = mutex.acquire(PATIENCE).await.unwrap();
    server.stop();
    let lost = tokio::time::timeout(PATIENCE, guard.lost().cancelled());
    lost.await.expect("the holder learns of the loss");
}

/// The holder measures its lease from before the request, so it learns of the loss before the lock can be granted again.
#[tokio::test(start_paused = true)]
async fn holder_learns_of_the_loss_when_the_lock_expires() {
    let memory = MemoryArbiter::new(Arc::<AtomicU64>::default());
    let arbiter = Faulty::new(Arc::new(memory), |operation| match operation {
        "renew" => Fate::LOST,
        _ => Fate::FINE,
    });
    let asked = tokio::time::Instant::now();
    let mutex = Mutex::new(arbiter, "a", LONG).unwrap();
    let guard = mutex.acquire(PATIENCE).await.unwrap();
    guard.lost().cancelled().await;
    assert!(asked.elapsed() < LONG && asked.elapsed() > LONG * 98 / 100);
}
