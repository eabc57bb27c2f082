//! An expensive list for five requests: a page shows five items, and each requests the item at its position, on any
//! node. If each request that finds no list computed one, the items would be of five lists. With `ComputeOnce` one
//! request computes, and all five get the same list.
//!
//! `cargo run -p coordination --example compute_once [redis://127.0.0.1:6379]`

mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coordination::{ComputeOnce, ComputeSettings, Fresh};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::RwLock;
use tokio::time::sleep;

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(10);
const POSITIONS: [usize; 5] = [3, 0, 4, 1, 2];

/// Each list has a number, which its items begin with.
type List = Vec<String>;

async fn compute(lists: &AtomicU32) -> List {
    let number = lists.fetch_add(1, Ordering::SeqCst) + 1;
    sleep(Duration::from_millis(300)).await;
    let items = (0..POSITIONS.len()).map(|item| format!("list {number}, item {item}"));
    items.collect()
}

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(3)?;

    println!("Look, compute, write:");
    let (cache, lists) = (RwLock::new(None), AtomicU32::new(0));
    join_all(POSITIONS.map(|position| naive(position, &cache, &lists))).await;
    println!("naive: {} computed\n", lists.load(Ordering::SeqCst));

    println!("ComputeOnce, on three nodes:");
    let settings = ComputeSettings {
        lock_ttl: Duration::from_secs(2),
        value_ttl: Duration::from_secs(30),
        ..ComputeSettings::default()
    };
    let nodes = nodes.into_iter().map(|arbiter| Ok(ComputeOnce::new(arbiter, settings)?));
    let nodes: Vec<_> = nodes.collect::<Result<_>>()?;
    let lists = Arc::new(AtomicU32::new(0));
    try_join_all(POSITIONS.map(|position| once(position, &nodes[position % 3], &lists))).await?;
    println!("A sixth request comes late:");
    once(0, &nodes[2], &lists).await?;
    println!("ComputeOnce: {} computed", lists.load(Ordering::SeqCst));
    Ok(())
}

async fn naive(position: usize, cache: &RwLock<Option<List>>, lists: &AtomicU32) {
    let found = cache.read().await.clone();
    let list = if let Some(list) = found {
        list
    } else {
        let list = compute(lists).await;
        cache.write().await.insert(list).clone()
    };
    println!("  position {position}: {}", list[position]);
}

async fn once(position: usize, node: &ComputeOnce, lists: &Arc<AtomicU32>) -> Result<()> {
    let lists = Arc::clone(lists);
    let compute = move |_token| {
        let lists = Arc::clone(&lists);
        async move { Fresh::json(&compute(&lists).await) }
    };
    let computed = node.get("front-page", PATIENCE, compute).await?;
    let list: List = computed.json()?;
    let origin = computed.origin;
    println!("  position {position}: {} ({origin:?})", list[position]);
    Ok(())
}
