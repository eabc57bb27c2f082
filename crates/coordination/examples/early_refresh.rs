//! A hot key: a value that expires every two seconds, takes 100 ms to compute and is read 500 times a second. First
//! without protection, then computed once, then refreshed early (XFetch).
//!
//! `cargo run -p coordination --example early_refresh [redis://127.0.0.1:6379]`

mod shared;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coordination::{Arbiter, ComputeOnce, ComputeSettings, EarlyRefresh, Origin};
use tokio::time::{interval, sleep};

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(2);
const COST: Duration = Duration::from_millis(100);
const READS: u32 = 3000;
const BETWEEN_READS: Duration = Duration::from_millis(2);

#[tokio::main]
async fn main() -> Result<()> {
    let arbiter = shared::nodes(1)?.remove(0);
    println!("{READS} reads in 6 s of a value that lives 2 s and takes 100 ms to compute.\n");
    unprotected().await?;
    protected(&arbiter, "computed once, never early (beta 0)", 0.0).await?;
    protected(&arbiter, "refreshed early (beta 1)", 1.0).await?;
    println!("\nRefreshed early, only the very first reads wait.");
    Ok(())
}

/// Look, compute, write: whoever finds nothing computes.
async fn unprotected() -> Result<()> {
    let cache = Arc::new(tokio::sync::RwLock::new(None::<Instant>));
    let computations = Arc::new(AtomicU32::new(0));
    let mut ticks = interval(BETWEEN_READS);
    let mut reads = Vec::new();
    for _ in 0..READS {
        ticks.tick().await;
        let (cache, computations) = (Arc::clone(&cache), Arc::clone(&computations));
        reads.push(tokio::spawn(async move {
            let is_there = cache
                .read()
                .await
                .is_some_and(|written| written.elapsed() < TTL);
            if !is_there {
                computations.fetch_add(1, Ordering::Relaxed);
                sleep(COST).await;
                *cache.write().await = Some(Instant::now());
            }
        }));
    }
    for read in reads {
        read.await?;
    }
    let computations = computations.load(Ordering::Relaxed);
    println!("without protection: {computations} computations");
    Ok(())
}

async fn protected(arbiter: &Arc<dyn Arbiter>, what: &str, beta: f64) -> Result<()> {
    let settings = ComputeSettings {
        lock_ttl: Duration::from_secs(1),
        value_ttl: TTL,
        ..ComputeSettings::default()
    };
    let once = ComputeOnce::new(Arc::clone(arbiter), settings)?;
    let hot = Arc::new(EarlyRefresh::new(once, beta)?);
    let mut ticks = interval(BETWEEN_READS);
    let mut reads = Vec::new();
    for _ in 0..READS {
        ticks.tick().await;
        let (hot, key) = (Arc::clone(&hot), what.to_owned());
        reads.push(tokio::spawn(async move {
            let compute = |_| async {
                sleep(COST).await;
                Ok::<_, Infallible>(b"value".to_vec())
            };
            hot.get(&key, PATIENCE, compute).await
        }));
    }
    let mut origins = BTreeMap::new();
    for read in reads {
        let computed = read.await??;
        *origins
            .entry(format!("{:?}", computed.origin()))
            .or_insert(0) += 1;
    }
    let of = |origin: Origin| origins.get(&format!("{origin:?}")).copied().unwrap_or(0);
    println!(
        "{what}: {} computations, {} of them before the value expired; {} reads waited for another's",
        of(Origin::Computed) + of(Origin::Refreshing),
        of(Origin::Refreshing),
        of(Origin::Awaited),
    );
    Ok(())
}
