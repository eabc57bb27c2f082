//! Tests what happens if Redis has lost its scripts, is out of memory, or drops connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use coordination::{Arbiter, AtomicReplace, Claim, Error, Guard, Locking, Mutex, Name, Place};
use testing::redis::RedisServer;
use testing::redis_cluster::RedisCluster;
use testing::tcp_proxy::{TcpProxy, Traffic};
use tokio::time::{sleep, timeout};

use crate::faulty::{Fate, Faulty};
use crate::site::{PATIENCE, TIMEOUTS, begin, lock};

const LONG: Duration = Duration::from_secs(60);
/// A reply that arrives after a while.
const LATE: Fate = Fate { back: Duration::from_millis(20), ..Fate::FINE };

/// Returns the number of times a server has received the text of a script.
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
    let (computing, locked) =
        (arbiter.begin(&new, None).await, arbiter.lock(&new, Place::None).await);
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

/// A message that is not a token wakes its listener, but does not end the subscription.
#[tokio::test]
async fn malformed_wake_up_is_harmless() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let mut listener = arbiter.listen(&Name::of_mutex("a").unwrap(), Some("p-0"));
    assert_eq!(listener.woken().await, None, "the subscription has begun");
    let subscriber = || {
        let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients.split(' ').next().map(str::to_owned)
    };
    let before = subscriber();
    let mut connection = server.connection();
    for (message, token) in [(&b"\xff"[..], None), (b"", None), (b"-1", None), (b"7", Some(7))] {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg("{eds:mutex:a}:wake:p-0").arg(message).exec(&mut connection).unwrap();
        let woken = timeout(PATIENCE, listener.woken()).await;
        assert_eq!(woken.unwrap().map(|token| token.0), token, "{message:?}");
    }
    assert_eq!(subscriber(), before, "the subscription has continued");
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

/// A lock is handed over for a shorter time than its lease, and the new holder learns of a loss within this time. A renewal
/// that fails once is retried within this time.
#[tokio::test(start_paused = true)]
async fn handed_over_lock_is_renewed_or_lost_in_time() {
    for failures in [1, u32::MAX] {
        let renewals = AtomicU32::new(0);
        let is_lost = move || renewals.fetch_add(1, Ordering::SeqCst) < failures;
        let renew = move || if is_lost() { Fate::LOST } else { LATE };
        let began = tokio::time::Instant::now();
        let guard = hand_over(LONG, Duration::from_millis(900), renew).await;
        let lost = timeout(LONG / 2, guard.lost().cancelled()).await;
        assert_eq!(lost.is_ok(), failures > 1);
        assert!(failures == 1 || began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}

/// A lock is handed over when the time that its waiter may rely on is nearly over.
#[tokio::test(start_paused = true)]
async fn late_hand_over_leaves_time_to_renew() {
    let ttl = Duration::from_millis(300);
    let guard = hand_over(ttl, Duration::from_millis(290), || LATE).await;
    sleep(ttl * 2).await;
    assert!(!guard.lost().is_cancelled());
}

/// Returns a lock that was handed over this long after its waiter had asked.
async fn hand_over(
    ttl: Duration,
    after: Duration,
    renew: impl Fn() -> Fate + Send + Sync + 'static,
) -> Guard {
    let memory: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::new(Arc::<AtomicU64>::default()));
    let first = Mutex::new(Arc::clone(&memory), "a", LONG).unwrap();
    let first = first.acquire(PATIENCE).await.unwrap();
    let arbiter = Faulty::new(memory, move |operation| match operation {
        "renew" => renew(),
        _ => Fate::FINE,
    });
    let second = Mutex::new(Arc::clone(&arbiter) as _, "a", ttl).unwrap();
    let releasing = async {
        arbiter.answered("lock", 1).await;
        sleep(after).await;
        first.release().await.unwrap();
    };
    let (second, ()) = tokio::join!(second.acquire(PATIENCE), releasing);
    second.unwrap()
}

/// The reply to a caller's first request is lost, so the request is repeated over another connection. The caller must have at
/// most one place, or the lock would be handed over to it after it has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_that_joins_twice_has_one_place() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let arbiter = |url: &str| RedisArbiter::open(url, "eds", TIMEOUTS).unwrap();
    let [direct, proxied] = [arbiter(&server.url()), arbiter(&proxy.url())];
    // Connect, because a request is not repeated if its connection is new.
    proxied.peek(&Name::of_value("a").unwrap()).await.unwrap();
    let name = Name::of_mutex("a").unwrap();
    let join = async |arbiter: &RedisArbiter, claim: &Claim| {
        arbiter.lock(claim, Place::Join).await.unwrap()
    };
    let holders = || server.query::<Vec<String>>(&["LRANGE", "{eds:mutex:a}:holders", "0", "-1"]);
    let [first, second] = [(); 2].map(|()| Claim::new(name.clone(), LONG));
    for is_free in [true, false] {
        let repeated = Claim::new(name.clone(), LONG);
        if !is_free {
            assert!(matches!(join(&direct, &first).await, Locking::Granted(_)));
            assert!(matches!(join(&direct, &second).await, Locking::Busy(..)));
        }
        proxy.set(Traffic::Delay(Duration::from_millis(300)));
        let cutting = async {
            while !holders().concat().contains(&repeated.holder) {
                sleep(Duration::from_millis(1)).await;
            }
            proxy.set(Traffic::Cut);
            proxy.set(Traffic::Open);
        };
        let (answer, ()) = tokio::join!(join(&proxied, &repeated), cutting);
        if is_free {
            assert!(matches!(answer, Locking::Granted(_)), "{answer:?}");
            assert_eq!(holders().len(), 1);
        } else {
            assert!(matches!(answer, Locking::Busy(..)), "{answer:?}");
            assert_eq!(holders()[1..], [&*second.holder, &*repeated.holder]);
        }
        assert!(direct.release(&repeated).await.unwrap() == is_free);
    }
}

/// Redis cannot be reached when a waiter gives up. Its place ends once Redis can be reached again, so that the lock is not
/// handed over to a waiter that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_ends_after_an_outage_in_which_its_waiter_gave_up() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let mutex = |url: &str| {
        let arbiter = Faulty::counting(Arc::new(RedisArbiter::open(url, "eds", TIMEOUTS).unwrap()));
        (Mutex::new(Arc::clone(&arbiter) as _, "a", LONG).unwrap(), arbiter)
    };
    let ((direct, _), (proxied, asking)) = (mutex(&server.url()), mutex(&proxy.url()));
    let guard = direct.acquire(PATIENCE).await.unwrap();
    let waiting = tokio::spawn(async move { proxied.acquire(PATIENCE).await.map(drop) });
    asking.answered("lock", 1).await;
    proxy.set(Traffic::Cut);
    waiting.abort();
    asking.answered("release", 1).await;
    proxy.set(Traffic::Open);
    asking.answered("release", 2).await;
    let holders = || server.query::<Vec<String>>(&["LRANGE", "{eds:mutex:a}:holders", "0", "-1"]);
    while holders().len() > 1 {
        sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
}

/// After a failover that lost the release and the handing over of the lock, the release is repeated, and another waiter gets
/// the lock.
#[tokio::test]
async fn tokens_grow_even_if_a_failover_loses_a_hand_over() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let name = Name::of_mutex("a").unwrap();
    let [former, lost, newer] = [(); 3].map(|()| Claim::new(name.clone(), LONG));
    let ask = async |claim, place| arbiter.lock(claim, place).await.unwrap();
    assert!(matches!(ask(&former, Place::Join).await, Locking::Granted(_)));
    let key = "{eds:mutex:a}:holders";
    let replicated: Vec<u8> = server.query(&["DUMP", key]);
    let mut tokens = Vec::new();
    for claim in [&lost, &newer] {
        assert!(matches!(ask(claim, Place::Join).await, Locking::Busy(..)));
        assert!(arbiter.release(&former).await.unwrap());
        let Locking::Granted(token) = ask(claim, Place::Keep).await else {
            panic!("the lock was not handed over");
        };
        tokens.push(token);
        let mut restore = redis::cmd("RESTORE");
        restore.arg(key).arg(0).arg(&replicated).arg("REPLACE");
        restore.exec(&mut server.connection()).unwrap();
    }
    assert!(tokens[1] > tokens[0], "{tokens:?}");
}

/// The key of a lock expires 10 to 20 minutes after its last use, but not while the lock is held.
#[tokio::test]
async fn key_of_a_lock_expires_after_its_last_use() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
    let [first, second] =
        [LONG, LONG * 60].map(|ttl| Claim::new(Name::of_mutex("a").unwrap(), ttl));
    let check = |held: Duration| {
        let ms: u64 = server.query(&["PTTL", "{eds:mutex:a}:holders"]);
        let kept = Duration::from_millis(ms).saturating_sub(held);
        assert!((590..=1260).contains(&kept.as_secs()), "{kept:?}");
    };
    for place in [Place::Join, Place::None, Place::Keep] {
        arbiter.lock(&first, place).await.unwrap();
        check(LONG);
        arbiter.release(&first).await.unwrap();
        check(Duration::ZERO);
    }
    arbiter.lock(&first, Place::None).await.unwrap();
    arbiter.lock(&second, Place::Join).await.unwrap();
    // A release by a holder without a lease or a place changes nothing.
    arbiter.release(&Claim::new(first.name.clone(), LONG)).await.unwrap();
    check(LONG);
    arbiter.release(&first).await.unwrap();
    check(Duration::ZERO);
    assert!(arbiter.renew(&second).await.unwrap());
    check(second.ttl);
    arbiter.release(&second).await.unwrap();
    server.query::<u32>(&["DEL", "{eds:mutex:a}:holders"]);
    arbiter.lock(&first, Place::Keep).await.unwrap();
    check(LONG);
}

/// The user of the first callers may not write the state of a lock, only add waiters.
#[tokio::test]
async fn lock_works_after_missing_rights_have_been_granted() {
    let server = RedisServer::start(&[]);
    for first in [Place::None, Place::Join, Place::Keep] {
        let arbiter = RedisArbiter::open(&server.url(), "eds", TIMEOUTS).unwrap();
        let claim = Claim::new(Name::of_mutex("a").unwrap(), LONG);
        let ask = async |place| arbiter.lock(&claim, place).await;
        server.query::<()>(&["ACL", "SETUSER", "default", "-lset", "-lpush"]);
        for place in [Place::Join, Place::None] {
            ask(place).await.unwrap_err();
        }
        server.query::<()>(&["ACL", "SETUSER", "default", "+@all"]);
        assert!(!arbiter.renew(&claim).await.unwrap());
        ask(first).await.unwrap();
        assert!(matches!(ask(Place::Keep).await, Ok(Locking::Granted(_))));
        assert!(arbiter.release(&claim).await.unwrap());
        server.query::<()>(&["FLUSHALL"]);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_lock_cannot_be_renewed() {
    let guard = hand_over(LONG, Duration::ZERO, || Fate::LOST).await;
    guard.lost().cancelled().await;
    assert_eq!(guard.renew().await, Ok(false));
}
