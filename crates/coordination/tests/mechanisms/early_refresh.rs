//! Tests values that are refreshed before they expire.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use coordination::{ComputeOnce, ComputeSettings, Origin};
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::site::{PATIENCE, Site, over_each};

over_each!(
    one_refreshes_while_all_others_read_on,
    a_failed_refresh_leaves_the_value,
    without_a_cost_nothing_is_early,
);

fn node(site: &Site, beta: f64) -> Arc<ComputeOnce> {
    let settings = ComputeSettings {
        lock_ttl: Duration::from_secs(3),
        value_ttl: Duration::from_secs(60),
        error_ttl: Duration::from_secs(60),
        beta,
        ..ComputeSettings::default()
    };
    Arc::new(ComputeOnce::new(site.arbiter(), settings).unwrap())
}

/// With this β, it is practically certain that the first read of a value triggers a refresh.
const AT_ONCE: f64 = 1e9;

async fn one_refreshes_while_all_others_read_on(site: Site) {
    let nodes = [(); 3].map(|()| node(&site, AT_ONCE));
    let (running, computed) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicU32::new(0)));
    let compute = move |_| {
        let (running, computed) = (Arc::clone(&running), Arc::clone(&computed));
        async move {
            let others = running.fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "two computations at once");
            let number = computed.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(500)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, String>(number.to_string().into_bytes())
        }
    };
    let first = nodes[0].get("a", PATIENCE, compute.clone()).await.unwrap();
    assert_eq!((first.bytes(), first.origin), (b"0".as_slice(), Origin::Computed));
    let tasks = (0..60).map(|number| {
        let (node, compute) = (Arc::clone(&nodes[number % 3]), compute.clone());
        tokio::spawn(async move { node.get("a", PATIENCE, compute).await.unwrap() })
    });
    let answers: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let count_of = |origin| answers.iter().filter(|answer| answer.origin == origin).count();
    // No caller waited, not even the one whose read started the computation.
    assert_eq!((count_of(Origin::Awaited), count_of(Origin::Computed)), (0, 0));
    assert!(count_of(Origin::Refreshing) >= 1);
    while nodes[1].get("a", PATIENCE, compute.clone()).await.unwrap().bytes() == b"0" {
        sleep(Duration::from_millis(20)).await;
    }
}

async fn a_failed_refresh_leaves_the_value(site: Site) {
    let node = node(&site, AT_ONCE);
    let compute = |_| async {
        sleep(Duration::from_millis(20)).await;
        Ok::<_, String>(b"good".to_vec())
    };
    node.get("a", PATIENCE, compute).await.unwrap();
    let computed = Arc::new(AtomicU32::new(0));
    let compute = {
        let computed = Arc::clone(&computed);
        move |_| {
            computed.fetch_add(1, Ordering::SeqCst);
            async { Err::<Vec<u8>, _>("away") }
        }
    };
    let mut reads = 0;
    // A failed refresh is not repeated immediately.
    while computed.load(Ordering::SeqCst) == 0 || reads < 20 {
        let answer = node.get("a", PATIENCE, compute.clone()).await.unwrap();
        assert_eq!(answer.bytes(), b"good");
        sleep(Duration::from_millis(1)).await;
        reads += 1;
    }
    assert_eq!(computed.load(Ordering::SeqCst), 1);
}

async fn without_a_cost_nothing_is_early(site: Site) {
    let node = node(&site, 0.0);
    for _ in 0..5 {
        let compute = |_| async { Ok::<_, String>(rand::random::<u64>().to_string().into_bytes()) };
        let answer = node.get("a", PATIENCE, compute).await.unwrap();
        let again = node.get("a", PATIENCE, compute).await.unwrap();
        assert_eq!((again.bytes(), again.origin), (answer.bytes(), Origin::Kept));
    }
    for beta in [-1.0, f64::NAN, f64::INFINITY] {
        let settings = ComputeSettings { beta, ..ComputeSettings::default() };
        let refused = ComputeOnce::new(site.arbiter(), settings);
        assert!(refused.unwrap_err().to_string().starts_with("beta must be"));
    }
}

#[test]
fn blocking_refresh_delays_no_reader() {
    for site in [Site::memory(), Site::redis(), Site::cluster()] {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(reads_go_on_while_a_refresh_blocks(&site));
    }
}

/// All readers and tasks share one thread. The refresh blocks a separate thread until the reads have finished.
async fn reads_go_on_while_a_refresh_blocks(site: &Site) {
    let node = node(site, AT_ONCE);
    let (go_on, may_go_on) = mpsc::channel();
    let may_go_on = Arc::new(Mutex::new(may_go_on));
    let get = || {
        let may_go_on = Arc::clone(&may_go_on);
        node.get_blocking("a", PATIENCE, move |_| {
            let number = may_go_on.lock().unwrap().recv_timeout(PATIENCE);
            number.map(|byte: u8| vec![byte])
        })
    };
    // The computation takes some time, because a refresh is only due for values that take time to compute.
    let (first, ()) = tokio::join!(get(), async {
        sleep(Duration::from_millis(20)).await;
        go_on.send(0).unwrap();
    });
    assert_eq!(first.unwrap().origin, Origin::Computed);
    for number in 0..10 {
        let read = get().await.unwrap();
        let expected = if number == 0 { Origin::Refreshing } else { Origin::Kept };
        assert_eq!((read.bytes(), read.origin), ([0].as_slice(), expected));
    }
    go_on.send(1).unwrap();
    drop(go_on);
    let refreshed = async {
        while get().await.unwrap().bytes() != [1] {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, refreshed).await.unwrap();
}
