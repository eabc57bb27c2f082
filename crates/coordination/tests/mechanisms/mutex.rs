//! Tests named locks.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use coordination::{
    Beginning, Claim, Error, LockLost, Locking, Mutex, Name, Place, Token, WAITING_MAX,
};
use futures_util::future::join_all;
use testing::redis::RedisServer;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::faulty::Faulty;
use crate::site::{Backend, PATIENCE, Site, lock as lock_once, over_each};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

over_each!(
    one_at_a_time,
    in_the_order_of_coming,
    a_free_lock_is_got_at_once_and_a_held_one_is_not,
    waiting_ends,
    a_holder_that_lives_keeps_it,
    loss_is_signalled,
    one_of_many_gets_a_lapsed_lock,
    a_dead_waiter_loses_its_place,
    a_dead_process_loses_its_places,
    a_crowd_of_dead_waiters_makes_room,
    impatient_callers_pass_a_dead_waiter,
    tokens_grow,
    a_release_may_be_repeated_after_the_next_grant,
    asking_twice_is_asking_once,
    no_more_than_may_wait_do_so,
);

fn mutex(site: &Site, name: &str, ttl: Duration) -> Mutex {
    Mutex::new(site.arbiter(), name, ttl).unwrap()
}

/// Returns a lock, and an arbiter that counts its requests.
fn counted(site: &Site) -> (Mutex, Arc<Faulty>) {
    let arbiter = Faulty::counting(site.arbiter());
    let mutex = Mutex::new(Arc::clone(&arbiter) as _, "a", LONG).unwrap();
    (mutex, arbiter)
}

/// Thirty callers on three nodes acquire the lock, but only one holds it at a time.
async fn one_at_a_time(site: Site) {
    let inside = Arc::new(AtomicU32::new(0));
    let nodes = [(); 3].map(|()| mutex(&site, "a", LONG));
    let tasks = (0..30).map(|number| {
        let (mutex, inside) = (nodes[number % 3].clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let guard = mutex.acquire(PATIENCE).await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
            sleep(Duration::from_millis(2)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            assert!(guard.release().await.unwrap());
            token
        })
    });
    let mut tokens: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 30);
}

async fn in_the_order_of_coming(site: Site) {
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..5 {
        let (mutex, arbiter) = counted(&site);
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = mutex.acquire(PATIENCE).await.unwrap();
            order.lock().unwrap().push(number);
            // The guard reports that its caller had to wait.
            assert!(guard.tries() > 0);
            guard.release().await.unwrap();
        }));
        // Wait until the caller has its place in the queue.
        arbiter.answered("lock", 1).await;
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}

async fn a_free_lock_is_got_at_once_and_a_held_one_is_not(site: Site) {
    let (first, second) = (mutex(&site, "a", LONG), mutex(&site, "a", LONG));
    let guard = first.try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.tries(), 0);
    assert!(second.try_acquire().await.unwrap().is_none());
    // A different name is a different lock.
    assert!(mutex(&site, "b", LONG).try_acquire().await.unwrap().is_some());
    assert!(guard.release().await.unwrap());
    let guard = second.acquire(Duration::ZERO).await.unwrap();
    assert_eq!(guard.tries(), 0);
}

async fn waiting_ends(site: Site) {
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let (second, arbiter) = counted(&site);
    let patience = Duration::from_millis(200);
    let asked = Instant::now();
    let error = second.acquire(patience).await.unwrap_err();
    assert_eq!(error, Error::TimedOut);
    assert!(asked.elapsed() >= patience);
    // The caller has left the queue, so the lock can be acquired immediately.
    arbiter.answered("release", 1).await;
    guard.release().await.unwrap();
    assert!(second.try_acquire().await.unwrap().is_some());
}

/// Runs a test that must not wait for a timer. After [`PATIENCE`], paused time advances, and the test fails.
fn frozen(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    // Paused time advances while the runtime is idle, but not while a blocking task runs.
    let (done, wait) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv_timeout(PATIENCE));
    runtime.block_on(async {
        let began = tokio::time::Instant::now();
        test.await;
        assert_eq!(began.elapsed(), Duration::ZERO, "waited for a timer");
    });
    drop(done);
}

macro_rules! woken {
    ($($test:ident)*) => {$(
        mod $test {
            #[test]
            fn in_memory() {
                super::frozen(super::$test(crate::site::Site::memory()));
            }
            #[test]
            fn on_redis() {
                super::frozen(super::$test(crate::site::Site::redis()));
            }
            #[test]
            fn on_a_cluster() {
                super::frozen(super::$test(crate::site::Site::cluster()));
            }
        }
    )*};
}

woken! {
    a_release_wakes_the_first_waiter
    a_waiter_that_times_out_wakes_the_next
}

async fn a_release_wakes_the_first_waiter(site: Site) {
    for _ in 0..5 {
        let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
        let (second, arbiter) = counted(&site);
        let waiting = second.acquire(PATIENCE);
        let releasing = async {
            arbiter.answered("lock", 1).await;
            guard.release().await.unwrap();
        };
        let (second, ()) = tokio::join!(waiting, releasing);
        second.unwrap().release().await.unwrap();
    }
}

async fn a_waiter_that_times_out_wakes_the_next(site: Site) {
    let (first, arbiter) = counted(&site);
    let guard = first.acquire(PATIENCE).await.unwrap();
    let (second, asking) = counted(&site);
    let waiting = tokio::spawn(async move { second.acquire(PATIENCE).await.map(drop) });
    asking.answered("lock", 1).await;
    waiting.abort();
    let (third, asking) = counted(&site);
    let releasing = async {
        asking.answered("lock", 1).await;
        guard.release().await.unwrap();
    };
    let (third, ()) = tokio::join!(third.acquire(PATIENCE), releasing);
    // Dropping a guard also releases the lock.
    let releasing = async {
        arbiter.answered("lock", 2).await;
        drop(third);
    };
    let (first, ()) = tokio::join!(first.acquire(PATIENCE), releasing);
    first.unwrap();
}

async fn a_holder_that_lives_keeps_it(site: Site) {
    let guard = mutex(&site, "a", SHORT * 3).acquire(PATIENCE).await.unwrap();
    sleep(SHORT * 8).await;
    assert!(!guard.lost().is_cancelled());
    assert!(mutex(&site, "a", SHORT).try_acquire().await.unwrap().is_none());
    assert!(guard.renew().await.unwrap());
    assert!(guard.release().await.unwrap());
}

async fn loss_is_signalled(site: Site) {
    let guard = mutex(&site, "a", SHORT).acquire(PATIENCE).await.unwrap();
    let work = guard.protect(async {
        site.revoke("a").await;
        std::future::pending::<()>().await;
    });
    let ended = tokio::time::timeout(PATIENCE, work).await;
    assert_eq!(ended.expect("the holder learns of the loss"), Err(LockLost));
    assert!(!guard.renew().await.unwrap());
    assert!(!guard.release().await.unwrap());
}

/// The lock of a crashed client has lapsed, and twenty clients try to acquire it at the same moment.
async fn one_of_many_gets_a_lapsed_lock(site: Site) {
    for round in 0..5 {
        let lock = format!("a{round}");
        let name = name(&lock);
        let arbiters = [(); 4].map(|()| site.arbiter());
        let crashed = lock_once(&*arbiters[0], &name, Duration::from_millis(100)).await;
        let (stale, stale_token) = crashed.expect("a free lock");
        sleep(Duration::from_millis(150)).await;
        let got = Arc::new(AtomicUsize::new(0));
        let tasks = (0..20).map(|number| {
            let (arbiter, name) = (Arc::clone(&arbiters[number % 4]), name.clone());
            let got = Arc::clone(&got);
            tokio::spawn(async move {
                if let Some((_, token)) = lock_once(&*arbiter, &name, LONG).await {
                    assert!(token > stale_token);
                    got.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(|result| result.unwrap());
        assert_eq!(got.load(Ordering::SeqCst), 1);
        // The former holder resumes with its stale claim.
        assert!(!arbiters[0].renew(&stale).await.unwrap());
        assert!(!arbiters[0].release(&stale).await.unwrap());
    }
}

/// A client waits in the queue and dies. The lock is handed over to it, but only for a moment.
async fn a_dead_waiter_loses_its_place(site: Site) {
    let arbiter = site.arbiter();
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let answer = arbiter.lock(&Claim::new(name("a"), LONG), Place::Join).await.unwrap();
    assert!(matches!(answer, Locking::Busy(..)));
    guard.release().await.unwrap();
    assert!(mutex(&site, "a", LONG).try_acquire().await.unwrap().is_none());
    let began = Instant::now();
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(1) && guard.token() > Token(0));
}

/// A process with three waiters dies. None of them delays the next waiter once the first has let its lease lapse.
async fn a_dead_process_loses_its_places(site: Site) {
    let arbiter = site.arbiter();
    let ask = async |holder: &str, place| {
        let claim = Claim { name: name("a"), holder: holder.to_owned(), ttl: SHORT };
        arbiter.lock(&claim, place).await.unwrap()
    };
    assert!(matches!(ask("dead-0", Place::None).await, Locking::Granted(_)));
    assert!(matches!(ask("dead-1", Place::Join).await, Locking::Busy(..)));
    for holder in ["dead-2", "other-0", "dead-3", "other-1"] {
        assert_eq!(ask(holder, Place::Join).await, Locking::Queued);
    }
    sleep(SHORT + Duration::from_millis(10)).await;
    assert!(matches!(ask("other-0", Place::Keep).await, Locking::Granted(_)));
    assert!(matches!(ask("dead-3", Place::Keep).await, Locking::Busy(..)));
    let release = async |holder: &str| {
        let claim = Claim { name: name("a"), holder: holder.to_owned(), ttl: SHORT };
        assert!(arbiter.release(&claim).await.unwrap());
    };
    release("other-0").await;
    release("other-1").await;
    assert!(matches!(ask("dead-3", Place::Keep).await, Locking::Granted(_)));
}

/// A process with as many waiters as may wait dies while it holds the lock.
async fn a_crowd_of_dead_waiters_makes_room(site: Site) {
    let arbiter = site.arbiter();
    let ask = async |holder: String, ttl| {
        let claim = Claim { name: name("a"), holder, ttl };
        arbiter.lock(&claim, Place::Join).await.unwrap()
    };
    for number in 0..=WAITING_MAX {
        assert_ne!(ask(format!("dead-{number}"), LONG).await, Locking::Crowded);
    }
    assert_eq!(ask("living-0".to_owned(), LONG).await, Locking::Crowded);
    // The lease lapses only now, however long the others took to join.
    assert!(matches!(ask("dead-0".to_owned(), SHORT).await, Locking::Granted(_)));
    sleep(SHORT).await;
    assert!(matches!(ask("living-0".to_owned(), SHORT).await, Locking::Granted(_)));
}

/// Callers that ask only once notice that a lease has lapsed.
async fn impatient_callers_pass_a_dead_waiter(site: Site) {
    let arbiter = site.arbiter();
    for holder in ["dead-0", "gone-0"] {
        let claim = Claim { name: name("a"), holder: holder.to_owned(), ttl: SHORT };
        arbiter.lock(&claim, Place::Join).await.unwrap();
    }
    let began = Instant::now();
    while mutex(&site, "a", LONG).acquire(Duration::ZERO).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "the lock is stuck");
        sleep(SHORT).await;
    }
}

async fn tokens_grow(site: Site) {
    let mutex = mutex(&site, "a", LONG);
    let mut last = None;
    for _ in 0..20 {
        let guard = mutex.acquire(PATIENCE).await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
}

/// A release is repeated because the response was lost, but the lock has been granted again in the meantime.
async fn a_release_may_be_repeated_after_the_next_grant(site: Site) {
    let arbiter = site.arbiter();
    let (stale, _) = lock_once(&*arbiter, &name("a"), LONG).await.expect("a free lock");
    assert!(arbiter.release(&stale).await.unwrap());
    let second = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    assert!(arbiter.release(&stale).await.unwrap());
    // The repeated release has no effect, and is recognized until the next release.
    assert!(!arbiter.renew(&stale).await.unwrap());
    assert!(second.release().await.unwrap());
    assert!(!arbiter.release(&stale).await.unwrap());
}

async fn no_more_than_may_wait_do_so(site: Site) {
    let arbiter = site.arbiter();
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let wait = async |place| {
        let claim = Claim::new(name("a"), LONG);
        arbiter.lock(&claim, place).await.unwrap()
    };
    for answer in join_all((0..WAITING_MAX).map(|_| wait(Place::Join))).await {
        assert!(matches!(answer, Locking::Queued | Locking::Busy(..)), "{answer:?}");
    }
    assert_eq!(wait(Place::Join).await, Locking::Crowded);
    assert_eq!(wait(Place::Keep).await, Locking::Crowded);
    let refused = mutex(&site, "a", LONG).acquire(PATIENCE).await;
    assert_eq!(refused.unwrap_err(), Error::Crowded);
    guard.release().await.unwrap();
    assert!(matches!(wait(Place::Keep).await, Locking::Busy(..)));
}

/// A caller repeats its request if there is no response. Repeating any operation has no additional effect.
async fn asking_twice_is_asking_once(site: Site) {
    let arbiter = site.arbiter();
    let [first, second] = [(); 2].map(|()| Claim::new(name("a"), LONG));
    let ask = async |claim| arbiter.lock(claim, Place::Keep).await.unwrap();
    let Locking::Granted(token) = ask(&first).await else {
        panic!("a free lock");
    };
    assert_eq!(ask(&first).await, Locking::Granted(token));
    for _ in 0..2 {
        assert!(matches!(ask(&second).await, Locking::Busy(..)));
        assert!(arbiter.renew(&first).await.unwrap());
    }
    for _ in 0..2 {
        assert!(arbiter.release(&first).await.unwrap());
    }
    assert!(matches!(ask(&second).await, Locking::Granted(_)));
    // A caller that never learned that it holds the lock can still release it.
    for _ in 0..2 {
        assert!(arbiter.release(&second).await.unwrap());
    }
    assert!(matches!(ask(&first).await, Locking::Granted(_)));

    let claim = Claim::new(Name::of_value("a").unwrap(), LONG);
    let ask = async || arbiter.begin(&claim, None).await.unwrap();
    let begun = ask().await;
    assert!(matches!(begun, Beginning::Granted(_)), "{begun:?}");
    assert_eq!(ask().await, begun);
    for _ in 0..2 {
        assert!(arbiter.publish(&claim, Ok((b"value", LONG)), LONG).await.unwrap());
    }
}

/// Returns the name under which [`Mutex`] requests a lock.
fn name(lock: &str) -> Name {
    Name::of_mutex(lock).unwrap()
}

/// Four nodes acquire a lock 25 times each. Counts the commands of Redis, including those in scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_lock_takes_few_commands() {
    let server = Arc::new(RedisServer::start(&[]));
    let commands = || {
        let info: String = server.query(&["INFO", "stats"]);
        let mut lines = info.lines();
        let number = lines.find_map(|line| line.strip_prefix("total_commands_processed:"));
        number.unwrap().parse::<u64>().unwrap()
    };
    let before = commands();
    let site = Site { prefix: "a".to_owned(), backend: Backend::Redis(Arc::clone(&server)) };
    let nodes = [(); 4].map(|()| mutex(&site, "a", LONG));
    join_all(nodes.map(async |mutex| {
        for _ in 0..25 {
            mutex.acquire(PATIENCE).await.unwrap().release().await.unwrap();
        }
    }))
    .await;
    let commands = commands() - before;
    eprintln!("{commands} commands");
    assert!(commands <= 800, "{commands} commands");
}
