//! Shows each mechanism once, in memory or on the Redis server with the given URL:
//!
//! `cargo run -p coordination --example mechanisms [redis://127.0.0.1:6379]`

use std::sync::Arc;
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::redis::{RedisArbiter, Timeouts};
use coordination::{Arbiter, AtomicReplace, ComputeOnce, ComputeSettings, Fresh, Mutex, Origin};
use futures_util::future::try_join_all;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arbiter: Arc<dyn Arbiter> = match std::env::args().nth(1) {
        None => Arc::new(MemoryArbiter::default()),
        Some(url) => {
            // The prefix is random, so that a second run does not find the data of the first.
            let prefix = format!("example-{:08x}", rand::random::<u32>());
            Arc::new(RedisArbiter::open(&url, &prefix, Timeouts::default())?)
        }
    };

    // A lock. The work is dropped if the lock is lost. The token is passed to the stores to which the work writes.
    let mutex = Mutex::new(Arc::clone(&arbiter), "reports", SECOND)?;
    let guard = mutex.acquire(PATIENCE).await?;
    guard.protect(sleep(SECOND * 2)).await?;
    println!("Mutex: held for twice its time to live, with token {}", guard.token());

    // A list that is replaced as a whole, unless a newer writer has already replaced it.
    let lists = AtomicReplace::new(Arc::clone(&arbiter), PATIENCE)?;
    lists.replace("user1", &["user2", "user3"], Some(guard.token())).await?;
    guard.release().await?;
    println!("AtomicReplace: {} friends", lists.read("user1").await?.len());

    // Five concurrent requests for an expensive list. Each of them uses a different item of the list.
    let once = ComputeOnce::new(Arc::clone(&arbiter), ComputeSettings::default())?;
    let list = |_token| async {
        sleep(SECOND / 3).await;
        let random = rand::random::<u16>();
        Fresh::json(&[0, 1, 2, 3, 4].map(|item| format!("item {item} of list {random}")))
    };
    let positions = [3, 0, 4, 1, 2];
    let answers = try_join_all(positions.map(|_| once.get("front-page", PATIENCE, list))).await?;
    for (position, answer) in positions.iter().zip(&answers) {
        println!("{}", answer.json::<Vec<String>>()?[*position]);
    }
    let computed = answers.iter().filter(|answer| answer.origin == Origin::Computed).count();
    println!("ComputeOnce: {computed} computed");

    // A frequently read value that lives for 500 ms and takes 50 ms to compute. Only the first read waits for the value.
    let (lock_ttl, value_ttl) = (SECOND / 4, SECOND / 2);
    let settings = ComputeSettings { lock_ttl, value_ttl, beta: 1.0, ..ComputeSettings::default() };
    let hot = ComputeOnce::new(arbiter, settings)?;
    let (mut refreshed, mut waited) = (0, 0);
    for _ in 0..1000 {
        let value = |_token| async {
            sleep(SECOND / 20).await;
            Ok::<_, String>(b"value".to_vec())
        };
        match hot.get("hot", PATIENCE, value).await?.origin {
            Origin::Kept => {}
            Origin::Refreshing => refreshed += 1,
            Origin::Computed | Origin::Awaited => waited += 1,
        }
        sleep(SECOND / 500).await;
    }
    println!("early refresh: {refreshed} early refreshes; {waited} reads waited");
    Ok(())
}
