//! An expensive list for five requests: a page shows five items, each of which asks by a request of its own, on
//! whatever node, for the item at its position. The list is computed once.
//!
//! `cargo run -p coordination --example compute_once [redis://127.0.0.1:6379]`

mod shared;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{ComputeOnce, ComputeSettings, Fresh, Token};
use futures_util::future::try_join_all;
use tokio::time::sleep;

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    let settings = ComputeSettings {
        lock_ttl: Duration::from_secs(2),
        value_ttl: Duration::from_secs(30),
        ..ComputeSettings::default()
    };
    let nodes = shared::nodes(3)?.into_iter();
    let nodes = nodes.map(|arbiter| Ok(Arc::new(ComputeOnce::new(arbiter, settings)?)));
    let nodes: Vec<_> = nodes.collect::<Result<_>>()?;

    println!("Five requests on three nodes, none of which knows of the others:");
    let began = Instant::now();
    let requests = [3, 0, 4, 1, 2].map(|position| {
        let node = Arc::clone(&nodes[position % 3]);
        async move { request(&node, position, began).await }
    });
    try_join_all(requests).await?;

    println!("\nA sixth request, for position 0 again, two seconds late and on another node:");
    sleep(Duration::from_secs(2)).await;
    request(&nodes[2], 0, began).await?;
    println!("\nOne list was computed, and every request took its position of it.");
    Ok(())
}

async fn request(node: &ComputeOnce, position: usize, began: Instant) -> Result<()> {
    let number = position % 3 + 1;
    let compute = move |token: Token| async move {
        println!("  node {number} computes the list (token {token}) …");
        sleep(Duration::from_millis(800)).await;
        // Computed twice, it would be another list.
        let first = rand::random::<u16>();
        let items = (0..5).map(|n| format!("item-{}", u32::from(first) * 10 + n));
        Fresh::json(&items.collect::<Vec<_>>())
    };
    let computed = node.get("front-page", PATIENCE, compute).await?;
    let items: Vec<String> = computed.json()?;
    println!(
        "  after {:4} ms: position {position} is {} ({:?})",
        began.elapsed().as_millis(),
        items[position],
        computed.origin(),
    );
    Ok(())
}
