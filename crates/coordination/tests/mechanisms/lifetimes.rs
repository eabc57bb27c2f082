//! Tests that values and errors expire and can be invalidated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coordination::{ComputeOnce, ComputeSettings, Error, Failure, Fresh, Name, Origin, Token};
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::site::{PATIENCE, Site, begin, over_each};

over_each!(
    an_invalidated_value_is_computed_again,
    a_computation_during_invalidation_is_repeated,
    a_repeated_publication_after_invalidation_is_refused,
    values_and_errors_say_how_long_they_are_kept,
);

fn node(site: &Site) -> ComputeOnce {
    ComputeOnce::new(site.arbiter(), ComputeSettings::default()).unwrap()
}

/// A computation that returns the number of its call, counted from 0. Each call waits for a permit.
#[derive(Clone)]
struct Numbers {
    calls: Arc<AtomicU32>,
    begun: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
}

impl Numbers {
    fn new(go_on: usize) -> Self {
        Self {
            calls: Arc::default(),
            begun: Arc::new(Semaphore::new(0)),
            go_on: Arc::new(Semaphore::new(go_on)),
        }
    }

    fn compute(
        &self,
    ) -> impl Fn(Token) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync + 'static {
        let numbers = self.clone();
        move |_| {
            let numbers = numbers.clone();
            Box::pin(async move {
                let number = numbers.calls.fetch_add(1, Ordering::SeqCst);
                numbers.begun.add_permits(1);
                numbers.go_on.acquire().await.unwrap().forget();
                Ok(number.to_string().into_bytes())
            })
        }
    }
}

async fn an_invalidated_value_is_computed_again(site: Site) {
    let nodes = [(); 2].map(|()| node(&site));
    let numbers = Numbers::new(9);
    let get = async |node: &ComputeOnce| node.get("a", PATIENCE, numbers.compute()).await.unwrap();
    assert!(!nodes[0].invalidate("a").await.unwrap());
    let first = get(&nodes[0]).await;
    assert_eq!(get(&nodes[1]).await.origin, Origin::Kept);
    assert!(nodes[1].invalidate("a").await.unwrap());
    assert!(nodes[0].peek("a").await.unwrap().is_none());
    let second = get(&nodes[0]).await;
    assert_eq!((first.bytes(), second.bytes()), (&b"0"[..], &b"1"[..]));
    assert!(second.token() > first.token());
}

/// A publication is repeated because the response was lost. It must not restore the value after an invalidation.
async fn a_repeated_publication_after_invalidation_is_refused(site: Site) {
    let arbiter = site.arbiter();
    let (name, ttl) = (Name::of_value("a").unwrap(), PATIENCE);
    let (claim, _) = begin(&*arbiter, &name, ttl).await;
    let publish = async || arbiter.publish(&claim, Ok((b"value", ttl)), ttl).await.unwrap();
    assert!(publish().await && publish().await);
    assert!(arbiter.invalidate(&name).await.unwrap());
    assert!(!publish().await);
    assert!(!arbiter.invalidate(&name).await.unwrap());
}

async fn values_and_errors_say_how_long_they_are_kept(site: Site) {
    let node = node(&site);
    let (ttl, long) = (Duration::from_millis(300), Duration::from_secs(300));
    let asked = Instant::now();
    let value =
        |ttl| move |_| async move { Ok::<_, String>(Fresh::from(b"a".to_vec()).kept_for(ttl)) };
    let short = node.get("short", PATIENCE, value(ttl)).await.unwrap();
    assert_eq!(short.remaining(), ttl);
    node.get("long", PATIENCE, value(long)).await.unwrap();
    while node.peek("short").await.unwrap().is_some() {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(asked.elapsed() >= ttl);
    let kept = node.peek("long").await.unwrap().unwrap();
    assert_eq!(kept.age() + kept.remaining(), long);

    let nothing =
        |ttl| move |_| async move { Err::<Vec<u8>, _>(Failure::from("none").kept_for(ttl)) };
    let calls = Numbers::new(9);
    let absent = Error::Failed("none".to_owned());
    for (key, ttl) in [("absent", long), ("away", ttl)] {
        let error = node.get(key, PATIENCE, nothing(ttl)).await.unwrap_err();
        assert_eq!(error, absent);
    }
    while node.get("away", PATIENCE, calls.compute()).await.is_err() {
        sleep(Duration::from_millis(5)).await;
    }
    let error = node.get("absent", PATIENCE, calls.compute()).await.unwrap_err();
    assert_eq!(error, absent);
    assert_eq!(calls.calls.load(Ordering::SeqCst), 1);
}

/// The computation may have read its data before the change that caused the invalidation, so it must be repeated.
async fn a_computation_during_invalidation_is_repeated(site: Site) {
    let nodes = [(); 2].map(|()| node(&site));
    let numbers = Numbers::new(0);
    let getting = nodes[0].get("a", PATIENCE, numbers.compute());
    let invalidating = async {
        numbers.begun.acquire().await.unwrap().forget();
        assert!(nodes[1].invalidate("a").await.unwrap());
        numbers.go_on.add_permits(9);
        nodes[1].get("a", PATIENCE, numbers.compute()).await.unwrap()
    };
    let (early, late) = tokio::join!(getting, invalidating);
    let early = early.unwrap();
    assert_eq!((early.bytes(), late.bytes()), (&b"1"[..], &b"1"[..]));
    assert_eq!(numbers.calls.load(Ordering::SeqCst), 2);
}
