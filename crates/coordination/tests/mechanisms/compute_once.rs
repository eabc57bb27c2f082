//! Tests values that are computed once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coordination::{Beginning, Claim, ComputeOnce, ComputeSettings, Error, Fresh, Name, Origin};
use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::site::{PATIENCE, Site, begin, over_each};

over_each!(
    one_computes_and_all_get_the_same,
    the_late_get_it,
    each_takes_one_position,
    an_error_reaches_all_waiters_and_expires,
    another_process_computes_after_a_death,
    a_value_expires,
    a_long_computation_keeps_its_right,
    a_stale_computation_does_not_overwrite_a_newer,
    a_computation_without_its_lease_returns_the_newer_value,
    a_value_is_bounded,
    waiting_ends,
);

fn settings(lock_ms: u64, value_ms: u64) -> ComputeSettings {
    ComputeSettings {
        lock_ttl: Duration::from_millis(lock_ms),
        value_ttl: Duration::from_millis(value_ms),
        error_ttl: Duration::from_millis(1500),
        value_bytes_max: 1000,
        ..ComputeSettings::default()
    }
}

fn node(site: &Site, settings: ComputeSettings) -> Arc<ComputeOnce> {
    Arc::new(ComputeOnce::new(site.arbiter(), settings).unwrap())
}

/// A computation that must not be called.
fn unwanted() -> std::future::Ready<Result<Vec<u8>, String>> {
    panic!("computed although a value exists");
}

async fn one_computes_and_all_get_the_same(site: Site) {
    let nodes = [(); 3].map(|()| node(&site, settings(5000, 60_000)));
    let computed = Arc::new(AtomicU32::new(0));
    let tasks = (0..150).map(|number| {
        let (node, computed) = (Arc::clone(&nodes[number % 3]), Arc::clone(&computed));
        tokio::spawn(async move {
            let compute = move |_| {
                let number = computed.fetch_add(1, Ordering::SeqCst);
                async move {
                    sleep(Duration::from_millis(200)).await;
                    Ok::<_, String>(format!("value {number}").into_bytes())
                }
            };
            node.get("a", PATIENCE, compute).await.unwrap()
        })
    });
    let answers: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(computed.load(Ordering::SeqCst), 1);
    assert!(
        answers
            .iter()
            .all(|answer| answer.bytes() == b"value 0" && answer.token() == answers[0].token())
    );
    let computed_here = answers.iter().filter(|answer| answer.origin == Origin::Computed);
    assert_eq!(computed_here.count(), 1);
    assert!(answers[0].entry.cost >= Duration::from_millis(200));
}

async fn the_late_get_it(site: Site) {
    let nodes = [(); 2].map(|()| node(&site, settings(500, 60_000)));
    let compute = |_| async { Ok::<_, String>(b"1".to_vec()) };
    nodes[0].get("a", PATIENCE, compute).await.unwrap();
    let published = Instant::now();
    for _ in 0..3 {
        sleep(Duration::from_millis(20)).await;
        let waited = published.elapsed();
        let answer = nodes[1].get("a", PATIENCE, |_| unwanted()).await.unwrap();
        assert_eq!((answer.bytes(), answer.origin), (b"1".as_slice(), Origin::Kept));
        assert!(answer.age() >= waited);
        assert_eq!(answer.age() + answer.remaining(), Duration::from_secs(60));
    }
}

async fn a_value_expires(site: Site) {
    let node = node(&site, settings(20, 200));
    let compute = |_| async { Ok::<_, String>(b"1".to_vec()) };
    let asked = Instant::now();
    let first = node.get("a", PATIENCE, compute).await.unwrap();
    while node.peek("a").await.unwrap().is_some() {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(asked.elapsed() >= Duration::from_millis(200));
    let second = node.get("a", PATIENCE, compute).await.unwrap();
    assert!(second.token() > first.token());
}

async fn each_takes_one_position(site: Site) {
    let nodes = [(); 3].map(|()| node(&site, settings(5000, 60_000)));
    let tasks = [3, 0, 4, 1, 2].map(|position| {
        let node = Arc::clone(&nodes[position % 3]);
        tokio::spawn(async move {
            let compute = |_| async {
                sleep(Duration::from_millis(20)).await;
                let first = rand::random::<u16>();
                let items = [0, 1, 2, 3, 4].map(|n| u32::from(first) + n);
                Fresh::json(&items)
            };
            let computed = node.get("a", PATIENCE, compute).await.unwrap();
            let item = computed.json::<Vec<u32>>().unwrap()[position];
            item - u32::try_from(position).unwrap()
        })
    });
    let firsts: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert!(firsts.iter().all(|first| *first == firsts[0]), "{firsts:?}");
}

async fn an_error_reaches_all_waiters_and_expires(site: Site) {
    let nodes = [(); 3].map(|()| node(&site, settings(5000, 60_000)));
    let computed = Arc::new(AtomicU32::new(0));
    let began = Instant::now();
    let tasks = (0..30).map(|number| {
        let (node, computed) = (Arc::clone(&nodes[number % 3]), Arc::clone(&computed));
        tokio::spawn(async move {
            let compute = move |_| {
                computed.fetch_add(1, Ordering::SeqCst);
                async {
                    sleep(Duration::from_millis(200)).await;
                    Err::<Vec<u8>, _>("no such table")
                }
            };
            node.get("a", PATIENCE, compute).await.unwrap_err()
        })
    });
    let failed = Error::Failed("no such table".to_owned());
    for error in join_all(tasks).await {
        assert_eq!(error.unwrap(), failed);
    }
    assert_eq!(computed.load(Ordering::SeqCst), 1);
    let compute = |_| async { Ok::<_, String>(b"now".to_vec()) };
    let answer = loop {
        match nodes[1].get("a", PATIENCE, compute).await {
            Ok(answer) => break answer,
            Err(error) => assert_eq!(error, failed),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(answer.bytes(), b"now");
    assert!(began.elapsed() >= settings(5000, 60_000).error_ttl);
}

/// The first process gets the lease to compute, and then dies.
async fn another_process_computes_after_a_death(site: Site) {
    let lock_ttl = Duration::from_millis(800);
    let dying = site.arbiter();
    let name = Name::of_value("a").unwrap();
    let asked = Instant::now();
    begin(&*dying, &name, lock_ttl).await;
    let nodes = [(); 3].map(|()| node(&site, settings(800, 60_000)));
    let computed = Arc::new(AtomicU32::new(0));
    let compute = {
        let computed = Arc::clone(&computed);
        move |_| {
            computed.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, String>(b"1".to_vec()) }
        }
    };
    let waiting = nodes.iter().map(|node| node.get("a", PATIENCE, compute.clone()));
    for answer in join_all(waiting).await {
        assert_eq!(answer.unwrap().bytes(), b"1");
    }
    assert_eq!(computed.load(Ordering::SeqCst), 1);
    assert!(asked.elapsed() >= lock_ttl);
}

/// The computation takes three times as long as its lease would last without renewal.
async fn a_long_computation_keeps_its_right(site: Site) {
    let nodes = [(); 2].map(|()| node(&site, settings(900, 60_000)));
    let begun = Arc::new(Notify::new());
    let slow = tokio::spawn({
        let (node, begun) = (Arc::clone(&nodes[0]), Arc::clone(&begun));
        async move {
            let compute = move |_| {
                begun.notify_one();
                async {
                    sleep(Duration::from_millis(2700)).await;
                    Ok::<_, String>(b"slow".to_vec())
                }
            };
            node.get("a", PATIENCE, compute).await
        }
    });
    begun.notified().await;
    let answer = nodes[1].get("a", PATIENCE, |_| unwanted()).await.unwrap();
    assert_eq!((answer.bytes(), answer.origin), (b"slow".as_slice(), Origin::Awaited));
    assert_eq!(slow.await.unwrap().unwrap().bytes(), b"slow");
}

async fn a_stale_computation_does_not_overwrite_a_newer(site: Site) {
    let arbiter = site.arbiter();
    let name = Name::of_value("a").unwrap();
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let (stale, stale_token) = begin(&*arbiter, &name, short).await;
    sleep(Duration::from_millis(80)).await;
    let (newer, token) = begin(&*arbiter, &name, long).await;
    assert!(token > stale_token);
    let value = |value: &'static [u8]| Ok((value, short));
    // The stale result is rejected both while the newer computation is running and after it has published its value.
    for _ in 0..2 {
        assert!(!arbiter.publish(&stale, value(b"stale"), long).await.unwrap());
        assert!(!arbiter.publish(&stale, Err("stale"), long).await.unwrap());
        // The second publication repeats the first one, as after a lost response.
        assert!(arbiter.publish(&newer, value(b"newer"), long).await.unwrap());
    }
    match arbiter.begin(&Claim::new(name, long), None).await.unwrap() {
        Beginning::Value(entry) => assert_eq!((&*entry.value, entry.token), (&b"newer"[..], token)),
        answer => panic!("{answer:?}"),
    }
}

/// A computation loses its lease, so the caller waits and gets the result of the newer computation.
async fn a_computation_without_its_lease_returns_the_newer_value(site: Site) {
    let arbiter = site.arbiter();
    let name = Name::of_value("a").unwrap();
    let slow = node(&site, settings(300, 60_000));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let compute = move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let (arbiter, name) = (Arc::clone(&arbiter), name.clone());
        async move {
            let long = Duration::from_secs(60);
            assert!(arbiter.invalidate(&name).await.unwrap());
            let (newer, _) = begin(&*arbiter, &name, long).await;
            let published = arbiter.publish(&newer, Ok((b"newer", long)), long);
            assert!(published.await.unwrap());
            std::future::pending::<Result<Vec<u8>, String>>().await
        }
    };
    let answer = slow.get("a", PATIENCE, compute).await.unwrap();
    assert_eq!(answer.bytes(), b"newer");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

async fn a_value_is_bounded(site: Site) {
    let node = node(&site, settings(500, 60_000));
    let compute = |_| async { Ok::<_, String>(vec![0; 1001]) };
    let error = node.get("a", PATIENCE, compute).await.unwrap_err();
    assert!(error.to_string().contains("1001 bytes"), "{error}");
    let compute = |_| async { Ok::<_, String>(vec![0; 1000]) };
    assert_eq!(node.get("b", PATIENCE, compute).await.unwrap().bytes().len(), 1000);
    assert!(matches!(node.get("", PATIENCE, compute).await, Err(Error::Name(_))));
}

async fn waiting_ends(site: Site) {
    let nodes = [(); 2].map(|()| node(&site, settings(9000, 60_000)));
    let begun = Arc::new(Notify::new());
    let compute = {
        let begun = Arc::clone(&begun);
        move |_| {
            begun.notify_one();
            std::future::pending::<Result<Vec<u8>, String>>()
        }
    };
    let patience = Duration::from_millis(300);
    let asked = Instant::now();
    let (own, others) = tokio::join!(nodes[0].get("a", patience, compute), async {
        begun.notified().await;
        nodes[1].get("a", patience, |_| unwanted()).await
    });
    assert_eq!(own.unwrap_err(), Error::TimedOut);
    assert_eq!(others.unwrap_err(), Error::TimedOut);
    assert!(asked.elapsed() >= patience);
}
