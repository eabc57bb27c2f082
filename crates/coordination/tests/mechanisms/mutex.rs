//! Named locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{AcquireError, Holder, LockLost, Locking, Mutex, Name};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::site::{PATIENCE, Site, over_each};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

over_each!(
    one_at_a_time,
    in_the_order_of_coming,
    a_free_lock_is_got_at_once_and_a_held_one_is_not,
    waiting_ends,
    a_waiter_is_woken_long_before_the_lock_would_lapse,
    a_holder_that_lives_keeps_it,
    loss_is_signalled,
    of_many_that_find_it_lapsed_one_gets_it,
    who_gives_up_holds_nobody_up,
    who_dies_in_line_holds_nobody_up_for_long,
    tokens_grow,
    a_stale_token_does_nothing,
    asking_twice_is_asking_once,
);

fn mutex(site: &Site, name: &str, ttl: Duration) -> Mutex {
    Mutex::new(site.arbiter(), name, ttl).unwrap()
}

/// Thirty that want it, on three nodes; each sees nobody else inside.
async fn one_at_a_time(site: Site) {
    let inside = Arc::new(AtomicU32::new(0));
    let nodes = [(); 3].map(|()| mutex(&site, "a", LONG));
    let tasks = (0..30).map(|number| {
        let (mutex, inside) = (nodes[number % 3].clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let guard = mutex.acquire(PATIENCE).await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
            sleep(Duration::from_millis(2)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            let token = guard.token();
            assert!(guard.release().await.unwrap());
            token
        })
    });
    let mut tokens: Vec<_> = join_all(tasks)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 30);
}

async fn in_the_order_of_coming(site: Site) {
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..5 {
        let (mutex, order) = (mutex(&site, "a", LONG), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.acquire(PATIENCE).await.unwrap();
            order.lock().unwrap().push(number);
            // Who had to wait knows it.
            assert!(guard.tries() > 0);
            guard.release().await.unwrap();
        }));
        sleep(Duration::from_millis(150)).await;
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
    // Another name is another lock.
    assert!(
        mutex(&site, "b", LONG)
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
    assert!(guard.release().await.unwrap());
    let guard = second.acquire(Duration::ZERO).await.unwrap();
    assert_eq!(guard.tries(), 0);
}

async fn waiting_ends(site: Site) {
    let (first, second) = (mutex(&site, "a", LONG), mutex(&site, "a", LONG));
    let guard = first.acquire(PATIENCE).await.unwrap();
    let began = Instant::now();
    let error = second
        .acquire(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error, AcquireError::TimedOut);
    assert!(began.elapsed() >= Duration::from_millis(200));
    // And leaves no trace in the line: the lock can be had at once.
    guard.release().await.unwrap();
    let began = Instant::now();
    while first.try_acquire().await.unwrap().is_none() {
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "the line is not empty"
        );
        sleep(Duration::from_millis(5)).await;
    }
}

/// Polling alone would take a second.
async fn a_waiter_is_woken_long_before_the_lock_would_lapse(site: Site) {
    let (first, second) = (mutex(&site, "a", LONG), mutex(&site, "a", LONG));
    let mut delays = Vec::new();
    for _ in 0..9 {
        let guard = first.acquire(PATIENCE).await.unwrap();
        let second = second.clone();
        let waiting = tokio::spawn(async move {
            let guard = second.acquire(PATIENCE).await.unwrap();
            let got = Instant::now();
            guard.release().await.unwrap();
            got
        });
        sleep(Duration::from_millis(120)).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        delays.push(waiting.await.unwrap().saturating_duration_since(released));
    }
    delays.sort_unstable();
    eprintln!("from a release to the next holder: median {:?}", delays[4]);
    assert!(delays[4] < Duration::from_millis(300), "{delays:?}");
}

async fn a_holder_that_lives_keeps_it(site: Site) {
    let guard = mutex(&site, "a", SHORT * 3)
        .acquire(PATIENCE)
        .await
        .unwrap();
    sleep(SHORT * 8).await;
    assert!(!guard.lost().is_cancelled());
    assert!(
        mutex(&site, "a", SHORT)
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    assert!(guard.renew().await.unwrap());
    assert!(guard.release().await.unwrap());
}

/// The lock is taken from a holder that believes to have it, as a failover or an operator might.
async fn loss_is_signalled(site: Site) {
    let arbiter = site.arbiter();
    let guard = mutex(&site, "a", SHORT).acquire(PATIENCE).await.unwrap();
    let name = name("a");
    let work = guard.protect(async {
        assert!(arbiter.unlock(&name, guard.token()).await.unwrap());
        std::future::pending::<()>().await;
    });
    let began = Instant::now();
    let ended = tokio::time::timeout(PATIENCE, work).await;
    assert_eq!(ended.expect("told"), Err(LockLost));
    assert!(began.elapsed() < PATIENCE / 2);
    assert!(!guard.renew().await.unwrap());
    assert!(!guard.release().await.unwrap());
}

/// C3 has crashed. C1 and C2, and eighteen more, see the lock lapsed and take it at the same moment.
async fn of_many_that_find_it_lapsed_one_gets_it(site: Site) {
    for round in 0..5 {
        let lock = format!("a{round}");
        let name = name(&lock);
        let arbiters = [(); 4].map(|()| site.arbiter());
        let crashed = Holder::random();
        let answer = arbiters[0]
            .lock(&name, &crashed, Duration::from_millis(100), None)
            .await;
        let Locking::Granted(stale) = answer.unwrap() else {
            panic!("a free lock");
        };
        sleep(Duration::from_millis(150)).await;
        let got = Arc::new(AtomicUsize::new(0));
        let tasks = (0..20).map(|number| {
            let (arbiter, name) = (Arc::clone(&arbiters[number % 4]), name.clone());
            let got = Arc::clone(&got);
            tokio::spawn(async move {
                let answer = arbiter
                    .lock(&name, &Holder::random(), LONG, None)
                    .await
                    .unwrap();
                if let Locking::Granted(token) = answer {
                    assert!(token > stale);
                    got.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(|it| it.unwrap());
        assert_eq!(got.load(Ordering::SeqCst), 1);
        // C3 awakes: what he does with his token does nothing.
        assert!(!arbiters[0].renew(&name, stale, LONG).await.unwrap());
        assert!(!arbiters[0].unlock(&name, stale).await.unwrap());
    }
}

async fn who_gives_up_holds_nobody_up(site: Site) {
    let (first, second) = (mutex(&site, "a", LONG), mutex(&site, "a", LONG));
    let guard = first.acquire(PATIENCE).await.unwrap();
    let waiting = tokio::spawn(async move { second.acquire(PATIENCE).await.map(drop) });
    sleep(Duration::from_millis(300)).await;
    waiting.abort();
    guard.release().await.unwrap();
    let began = Instant::now();
    let guard = first.acquire(PATIENCE).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    // And so does a guard that is dropped.
    drop(guard);
    let began = Instant::now();
    first.acquire(PATIENCE).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
}

async fn who_dies_in_line_holds_nobody_up_for_long(site: Site) {
    let arbiter = site.arbiter();
    let guard = mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    let presence = Some(Duration::from_millis(500));
    let dead = Holder::random();
    let answer = arbiter
        .lock(&name("a"), &dead, LONG, presence)
        .await
        .unwrap();
    assert!(matches!(answer, Locking::Busy(_)));
    guard.release().await.unwrap();
    // It is the dead one's turn.
    assert!(
        mutex(&site, "a", LONG)
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let began = Instant::now();
    mutex(&site, "a", LONG).acquire(PATIENCE).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
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

async fn a_stale_token_does_nothing(site: Site) {
    let arbiter = site.arbiter();
    let mutex = mutex(&site, "a", LONG);
    let first = mutex.acquire(PATIENCE).await.unwrap();
    let stale = first.token();
    assert!(first.release().await.unwrap());
    let second = mutex.acquire(PATIENCE).await.unwrap();
    let name = name("a");
    assert!(!arbiter.unlock(&name, stale).await.unwrap());
    assert!(!arbiter.renew(&name, stale, LONG).await.unwrap());
    assert!(second.renew().await.unwrap());
}

/// A holder whose answer was lost asks again and gets the same.
async fn asking_twice_is_asking_once(site: Site) {
    let arbiter = site.arbiter();
    let (name, holder, other) = (name("a"), Holder::random(), Holder::random());
    let presence = Some(LONG);
    let first = arbiter.lock(&name, &holder, LONG, presence).await.unwrap();
    assert!(matches!(first, Locking::Granted(_)));
    assert_eq!(
        arbiter.lock(&name, &holder, LONG, presence).await.unwrap(),
        first
    );
    for _ in 0..2 {
        let answer = arbiter.lock(&name, &other, LONG, presence).await.unwrap();
        assert!(matches!(answer, Locking::Busy(_)));
    }
    // One that never learned that he has it can still let it go.
    arbiter.leave(&name, &holder).await.unwrap();
    let answer = arbiter.lock(&name, &other, LONG, presence).await.unwrap();
    assert!(matches!(answer, Locking::Granted(_)));
}

/// The name that [`Mutex`] gives its lock.
fn name(lock: &str) -> Name {
    Name::of_mutex(lock).unwrap()
}
