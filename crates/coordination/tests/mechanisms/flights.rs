//! Tests that computations are separate tasks, which outlive their callers and cannot block the renewal of their leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, Beginning, Claim, ComputeOnce, ComputeSettings, Error, Name};
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore};

use crate::faulty::{Fate, Faulty};
use crate::site::{PATIENCE, Site, begin, over_each};

over_each!(
    a_computation_outlives_the_callers_that_began_it,
    a_panic_comes_back_as_an_error_to_all_that_wait,
);

const LOCK_TTL: Duration = Duration::from_secs(1);

fn node(arbiter: Arc<dyn Arbiter>) -> Arc<ComputeOnce> {
    let settings = ComputeSettings { lock_ttl: LOCK_TTL, ..ComputeSettings::default() };
    Arc::new(ComputeOnce::new(arbiter, settings).unwrap())
}

/// Three nodes on one runtime request a value. Its computation blocks a thread for three times the duration of the lease,
/// during which a different client never gets the lease.
fn a_blocking_computation_is_computed_once(site: &Site, runtime: &mut Builder) {
    let (begun, computations) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let runtime = runtime.enable_all().build().unwrap();
    let nodes = [(); 3].map(|()| node(site.arbiter()));
    let asking = thread::spawn(move || {
        let gets = nodes.map(|node| {
            let (begun, released) = (begun.clone(), Arc::clone(&released));
            runtime.spawn(async move {
                let compute = move |_| {
                    let (begun, released) = (begun.clone(), Arc::clone(&released));
                    async move {
                        begun.send(()).unwrap();
                        // The sender is dropped to end all computations.
                        let _ = released.lock().unwrap().recv();
                        Ok::<_, String>(b"value".to_vec())
                    }
                };
                node.get("a", PATIENCE, compute).await
            })
        });
        drop(begun);
        runtime.block_on(join_all(gets))
    });
    computations.recv().unwrap();
    let watcher = Builder::new_current_thread().enable_all().build().unwrap();
    watcher.block_on(async {
        let (arbiter, name) = (site.arbiter(), Name::of_value("a").unwrap());
        let blocked = Instant::now();
        while blocked.elapsed() < LOCK_TTL * 3 {
            let claim = Claim::new(name.clone(), LOCK_TTL);
            let answer = arbiter.begin(&claim, None).await.unwrap();
            assert!(matches!(answer, Beginning::Busy(_)), "{answer:?}");
            tokio::time::sleep(LOCK_TTL / 20).await;
        }
    });
    drop(release);
    for answer in asking.join().unwrap() {
        assert_eq!(answer.unwrap().unwrap().bytes(), b"value");
    }
    assert_eq!(computations.iter().count(), 0, "more than one computation");
}

macro_rules! blocking {
    ($($name:ident: $site:expr, $runtime:expr;)*) => {$(
        #[test]
        fn $name() {
            a_blocking_computation_is_computed_once(&$site, &mut $runtime);
        }
    )*};
}

blocking! {
    a_closure_that_blocks_one_worker_of_four_in_memory: Site::memory(), Builder::new_multi_thread().worker_threads(4);
    a_closure_that_blocks_one_worker_of_four_on_redis: Site::redis(), Builder::new_multi_thread().worker_threads(4);
    a_closure_that_blocks_one_worker_of_four_on_a_cluster: Site::cluster(), Builder::new_multi_thread().worker_threads(4);
    a_closure_that_blocks_the_only_thread_in_memory: Site::memory(), Builder::new_current_thread();
    a_closure_that_blocks_the_only_thread_on_redis: Site::redis(), Builder::new_current_thread();
    a_closure_that_blocks_the_only_thread_on_a_cluster: Site::cluster(), Builder::new_current_thread();
}

/// Each caller is dropped while the computation is running.
async fn a_computation_outlives_the_callers_that_began_it(site: Site) {
    let nodes = [(); 3].map(|()| node(site.arbiter()));
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let computations = Arc::new(AtomicU32::new(0));
    let compute = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        let computations = Arc::clone(&computations);
        move |_| {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            computations.fetch_add(1, Ordering::SeqCst);
            async move {
                begun.notify_one();
                go_on.acquire().await.unwrap().forget();
                Ok::<_, String>(b"value".to_vec())
            }
        }
    };
    tokio::select! {
        answer = nodes[0].get("a", PATIENCE, compute.clone()) => panic!("{answer:?}"),
        () = begun.notified() => {}
    }
    for node in &nodes {
        let impatient = node.get("a", Duration::ZERO, compute.clone());
        assert_eq!(impatient.await.unwrap_err(), Error::TimedOut);
    }
    go_on.add_permits(1);
    let answer = nodes[1].get("a", PATIENCE, compute).await.unwrap();
    assert_eq!(answer.bytes(), b"value");
    assert_eq!(computations.load(Ordering::SeqCst), 1);
}

async fn a_panic_comes_back_as_an_error_to_all_that_wait(site: Site) {
    let nodes = [(); 3].map(|()| node(site.arbiter()));
    let computations = Arc::new(AtomicU32::new(0));
    let gets = [0, 0, 1, 2].map(|number| {
        let (node, computations) = (Arc::clone(&nodes[number]), Arc::clone(&computations));
        tokio::spawn(async move {
            let compute = move |_| {
                let computations = Arc::clone(&computations);
                async move {
                    computations.fetch_add(1, Ordering::SeqCst);
                    assert!(std::hint::black_box(false), "no such row");
                    Ok::<Vec<u8>, String>(Vec::new())
                }
            };
            node.get("a", PATIENCE, compute).await
        })
    });
    for answer in join_all(gets).await {
        let error = answer.expect("the caller does not panic").unwrap_err();
        assert!(error.to_string().contains("no such row"), "{error}");
    }
    assert_eq!(computations.load(Ordering::SeqCst), 1);
}

/// While the arbiter is unreachable, one caller times out, but a concurrent caller waits until it is reachable again.
#[tokio::test(start_paused = true)]
async fn short_timeout_of_a_caller_does_not_fail_others() {
    let away = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let arbiter = Faulty::new(Arc::<MemoryArbiter>::default(), move |_| {
        if is_away.load(Ordering::SeqCst) {
            return Fate::LOST;
        }
        Fate::FINE
    });
    let node = node(arbiter);
    let get = async |patience| {
        let compute = |_| async { Ok::<_, String>(b"value".to_vec()) };
        let answer = node.get("a", patience, compute).await;
        away.store(false, Ordering::SeqCst);
        answer
    };
    let (impatient, patient) = tokio::join!(get(Duration::from_millis(150)), get(PATIENCE));
    let error = impatient.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(patient.unwrap().bytes(), b"value");
}

/// The arbiter is unreachable for a moment, and then reports that a different process is computing the value.
#[tokio::test(start_paused = true)]
async fn outage_of_the_arbiter_is_retried() {
    let memory = Arc::<MemoryArbiter>::default();
    begin(&*memory, &Name::of_value("a").unwrap(), PATIENCE * 2).await;
    let asked = AtomicU32::new(0);
    let node = node(Faulty::new(memory, move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0..3 => Fate::LOST,
        _ => Fate::FINE,
    }));
    let compute = |_| async { Ok::<_, String>(b"value".to_vec()) };
    let error = node.get("a", Duration::from_secs(5), compute).await;
    assert_eq!(error.unwrap_err(), Error::TimedOut);
}
