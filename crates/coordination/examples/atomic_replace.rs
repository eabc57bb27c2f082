//! An atomic replace: one message, delivered twice, makes two writers put the same list in the place of the old one
//! at the same moment. Step by step (DEL, RPUSH, EXPIRE) it may come out doubled; in one step it cannot.
//!
//! `cargo run -p coordination --example atomic_replace [redis://127.0.0.1:6379]`

mod shared;

use std::time::Duration;

use coordination::AtomicReplace;

use shared::Result;

const FRIENDS: [&str; 3] = ["user2", "user3", "user4"];
const ROUNDS: usize = 200;

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(3)?;

    println!("Step by step, the steps of two writers in turn:");
    let mut list: Vec<&str> = vec!["user9"];
    for (writer, step) in [("A", "DEL"), ("B", "DEL"), ("A", "RPUSH"), ("B", "RPUSH")] {
        match step {
            "DEL" => list.clear(),
            _ => list.extend(FRIENDS),
        }
        println!("  {writer} {step:5} → {list:?}");
    }
    println!(
        "  doubled: {} friends instead of {}\n",
        list.len(),
        FRIENDS.len()
    );

    println!("In one step, {ROUNDS} times, two writers at once and a reader:");
    let ttl = Duration::from_secs(60);
    let lists = nodes
        .into_iter()
        .map(|arbiter| AtomicReplace::new(arbiter, ttl));
    let lists: Vec<_> = lists.collect::<std::result::Result<_, _>>()?;
    let mut lengths = std::collections::BTreeMap::new();
    lists[0].replace("user1", &FRIENDS).await?;
    for _ in 0..ROUNDS {
        let (a, b, read) = tokio::join!(
            lists[0].replace("user1", &FRIENDS),
            lists[1].replace("user1", &FRIENDS),
            lists[2].read("user1"),
        );
        a?;
        b?;
        *lengths.entry(read?.len()).or_insert(0) += 1;
    }
    for (length, times) in lengths {
        println!("  {times} times the list had {length} friends");
    }
    Ok(())
}
