//! Each mechanism once, in memory or on the Redis of a URL:
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
            // A second run finds no data of the first.
            let prefix = format!("example-{:08x}", rand::random::<u32>());
            Arc::new(RedisArbiter::open(&url, &prefix, Timeouts::default())?)
        }
    };

    // A lock. The work is dropped if the lock is lost; stores to which it writes get the token.
    let mutex = Mutex::new(Arc::clone(&arbiter), "reports", SECOND)?;
    let guard = mutex.acquire(PATIENCE).await?;
    guard.protect(sleep(SECOND * 2)).await?;
    println!("Mutex: held for twice its time to live, with the token {}", guard.token());

    // A list that is replaced as a whole, but not by an older writer.
    let lists = AtomicReplace::new(Arc::clone(&arbiter), PATIENCE)?;
    lists.replace("user1", &["user2", "user3"], Some(guard.token())).await?;
    guard.release().await?;
    println!("AtomicReplace: {} friends", lists.read("user1").await?.len());

    // Five requests for one position each of an expensive list.
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

    // A hot value that lives 500 ms and takes 50 ms to compute. No read waits for it except for the first.
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
    println!("early refresh: {refreshed} early computations; {waited} reads waited");
    Ok(())
}
