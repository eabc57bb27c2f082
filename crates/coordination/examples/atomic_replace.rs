//! A list is replaced while others read it, by two writers that were sent the same message. With DEL and RPUSH a reader finds it
//! empty, and both writers push: it has every item twice. `AtomicReplace` replaces it in one step.
//!
//! `cargo run -p coordination --example atomic_replace [redis://127.0.0.1:6379]`

mod shared;

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::AtomicReplace;
use tokio::sync::RwLock;
use tokio::task::yield_now;

use shared::Result;

const FRIENDS: [&str; 3] = ["user2", "user3", "user4"];
const ROUNDS: usize = 200;
const TTL: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(3)?;

    println!("DEL, then RPUSH, {ROUNDS} times two writers at once and a reader:");
    let (list, mut lengths) = (RwLock::new(FRIENDS.to_vec()), BTreeMap::new());
    for _ in 0..ROUNDS {
        let length = async || list.read().await.len();
        let ((), (), during) = tokio::join!(naive(&list), naive(&list), length());
        for length in [during, length().await] {
            *lengths.entry(length).or_insert(0) += 1;
        }
    }
    show("naive", &lengths);

    println!("AtomicReplace, the same:");
    let lists = nodes.into_iter().map(|arbiter| Ok(AtomicReplace::new(arbiter, TTL)?));
    let lists: Vec<_> = lists.collect::<Result<_>>()?;
    lists[0].replace("user1", &FRIENDS, None).await?;
    let mut lengths = BTreeMap::new();
    for _ in 0..ROUNDS {
        let (_, _, during) = tokio::try_join!(
            lists[0].replace("user1", &FRIENDS, None),
            lists[1].replace("user1", &FRIENDS, None),
            lists[2].read("user1"),
        )?;
        for list in [during, lists[2].read("user1").await?] {
            *lengths.entry(list.len()).or_insert(0) += 1;
        }
    }
    show("AtomicReplace", &lengths);
    Ok(())
}

/// Each step is a command, and others have their turn in between.
async fn naive(list: &RwLock<Vec<&str>>) {
    list.write().await.clear();
    yield_now().await;
    list.write().await.extend(FRIENDS);
}

fn show(what: &str, lengths: &BTreeMap<usize, u32>) {
    for (length, times) in lengths {
        println!("  {times} times the list had {length} friends");
    }
    println!("{what}: {} different lengths\n", lengths.len());
}
