//! A hot key: a value that expires every half second, takes 50 ms to compute and is read 500 times a second. Without
//! protection every reader that finds it expired computes it; computed once, they all wait; refreshed early (XFetch),
//! none waits.
//!
//! `cargo run -p coordination --example early_refresh [redis://127.0.0.1:6379]`

mod shared;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{ComputeError, ComputeOnce, ComputeSettings, Origin};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_millis(500);
const COST: Duration = Duration::from_millis(50);
const READS: u32 = 1000;
const BETWEEN_READS: Duration = Duration::from_millis(2);

#[tokio::main]
async fn main() -> Result<()> {
    let arbiter = shared::nodes(1)?.remove(0);
    println!("{READS} reads in 2 s of a value that lives {TTL:?} and takes {COST:?} to compute.");
    let cache = Arc::new(RwLock::new(None));
    show("naive", &read(|| naive(Arc::clone(&cache))).await?);
    for (what, beta) in [("ComputeOnce", 0.0), ("refreshed early", 1.0)] {
        let settings = ComputeSettings {
            lock_ttl: TTL / 2,
            value_ttl: TTL,
            beta,
            ..ComputeSettings::default()
        };
        let hot = ComputeOnce::new(Arc::clone(&arbiter), settings)?;
        show(what, &read(|| get(hot.clone(), what)).await?);
    }
    Ok(())
}

/// How a read came to its value.
type Found = std::result::Result<Origin, ComputeError>;

/// How many reads came to their value in each way.
async fn read<F>(one: impl Fn() -> F) -> Result<HashMap<Origin, u32>>
where
    F: Future<Output = Found> + Send + 'static,
{
    let (mut ticks, mut reads) = (interval(BETWEEN_READS), JoinSet::new());
    for _ in 0..READS {
        ticks.tick().await;
        reads.spawn(one());
    }
    let mut origins = HashMap::new();
    for origin in reads.join_all().await {
        *origins.entry(origin?).or_insert(0) += 1;
    }
    Ok(origins)
}

fn show(what: &str, origins: &HashMap<Origin, u32>) {
    let of = |origin| origins.get(&origin).copied().unwrap_or(0);
    println!(
        "{what}: {} computations, {} of them early; {} reads waited for them",
        of(Origin::Computed) + of(Origin::Refreshing),
        of(Origin::Refreshing),
        of(Origin::Computed) + of(Origin::Awaited),
    );
}

/// Read, compute, write: every reader without a value computes.
async fn naive(cache: Arc<RwLock<Option<Instant>>>) -> Found {
    let written = *cache.read().await;
    if written.is_some_and(|it| it.elapsed() < TTL) {
        return Ok(Origin::Kept);
    }
    sleep(COST).await;
    *cache.write().await = Some(Instant::now());
    Ok(Origin::Computed)
}

async fn get(hot: ComputeOnce, key: &'static str) -> Found {
    let compute = |_token| async {
        sleep(COST).await;
        Ok::<_, Infallible>(b"value".to_vec())
    };
    let computed = hot.get(key, PATIENCE, compute).await?;
    Ok(computed.origin)
}
