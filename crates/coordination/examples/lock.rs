//! A cached resource behind a named lock: who finds the cache empty takes the lock, looks again if it had to wait,
//! and only then fetches. A holder that crashes holds nobody up for longer than the lock's time.
//!
//! `cargo run -p coordination --example lock [redis://127.0.0.1:6379]`

mod shared;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{Arbiter, Holder, Locking, Mutex, Name};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(20);
const LOCK_TTL: Duration = Duration::from_secs(2);

/// Any cache that the processes share.
type Cache = Arc<tokio::sync::RwLock<Option<String>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(4)?;
    let cache = Cache::default();
    let began = Instant::now();

    println!("Node 0 takes the lock and crashes:");
    crash(nodes[0].as_ref()).await?;

    println!("Nodes 1 to 3 want the resource:");
    let lookups = (1..4).map(|number| {
        let (arbiter, cache) = (Arc::clone(&nodes[number]), Arc::clone(&cache));
        lookup(number, arbiter, cache, began)
    });
    try_join_all(lookups).await?;
    println!("\nIt was fetched once, soon after the lock of the crashed node had lapsed.");
    Ok(())
}

/// What a crash is to the others: the lock is held, and nobody renews it or lets it go.
async fn crash(arbiter: &dyn Arbiter) -> Result<()> {
    let name = Name::of_mutex("resource")?;
    let answer = arbiter
        .lock(&name, &Holder::random(), LOCK_TTL, None)
        .await?;
    if let Locking::Granted(token) = answer {
        println!("  node 0 had token {token}\n");
    }
    Ok(())
}

async fn lookup(
    number: usize,
    arbiter: Arc<dyn Arbiter>,
    cache: Cache,
    began: Instant,
) -> Result<()> {
    let say = |message: &str| {
        println!(
            "  {:4} ms, node {number}: {message}",
            began.elapsed().as_millis()
        );
    };
    if cache.read().await.is_some() {
        say("in the cache");
        return Ok(());
    }
    say("not in the cache; takes the lock or waits for it");
    let mutex = Mutex::new(arbiter, "resource", LOCK_TTL)?;
    let guard = mutex.acquire(PATIENCE).await?;
    // Whoever had to wait looks again: the one before may have fetched it.
    let found = if guard.tries() > 0 {
        cache.read().await.clone()
    } else {
        None
    };
    if let Some(resource) = found {
        say(&format!("has the lock, and finds {resource} in the cache"));
    } else {
        let token = guard.token();
        say(&format!("has the lock (token {token}) and fetches …"));
        let fetching = async {
            sleep(Duration::from_millis(500)).await;
            *cache.write().await = Some("the resource".to_owned());
        };
        // The work stops when the lock is lost.
        guard.protect(fetching).await?;
        say("has fetched");
    }
    guard.release().await?;
    Ok(())
}
