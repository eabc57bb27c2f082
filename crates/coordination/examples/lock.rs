//! A lock whose holders are slower than its time to live. With SET NX and DEL it lapses under the first, who does not notice, and
//! then deletes the lock of the second. A `Mutex` is renewed while its holder lives, lapses when it dies, and is released by
//! its own token only.
//!
//! `cargo run -p coordination --example lock [redis://127.0.0.1:6379]`

mod shared;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coordination::{Arbiter, Holder, Mutex, Name};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::RwLock;
use tokio::time::sleep;

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(20);
const LOCK_TTL: Duration = Duration::from_millis(400);
const WORK: Duration = Duration::from_millis(600);

/// The protected place: the nodes inside, and their maximum.
#[derive(Default)]
struct Room(AtomicU32, AtomicU32);

impl Room {
    async fn work(&self, node: usize) {
        let inside = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(inside, Ordering::SeqCst);
        println!("  node {node} comes in: {inside} inside");
        sleep(WORK).await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(4)?;

    println!("SET NX PX to lock, DEL to release:");
    let (key, room) = (RwLock::default(), Room::default());
    join_all((1..4).map(|node| naive(node, &key, &room))).await;
    println!("naive: {} at a time\n", room.1.load(Ordering::SeqCst));

    println!("A Mutex. Node 0 takes it and crashes:");
    // For the others, a crash means that the lock is neither renewed nor released.
    nodes[0].lock(&Name::of_mutex("room")?, &Holder::random(), LOCK_TTL, None).await?;
    let room = Room::default();
    let workers = (1..4).map(|node| protected(node, Arc::clone(&nodes[node]), &room));
    try_join_all(workers).await?;
    println!("Mutex: {} at a time", room.1.load(Ordering::SeqCst));
    Ok(())
}

/// `SET key 1 NX PX ttl`, of a key that expires at this instant.
async fn set_nx(key: &RwLock<Option<Instant>>) -> bool {
    let mut expires = key.write().await;
    let is_free = expires.is_none_or(|it| it <= Instant::now());
    if is_free {
        *expires = Some(Instant::now() + LOCK_TTL);
    }
    is_free
}

async fn naive(node: usize, key: &RwLock<Option<Instant>>, room: &Room) {
    while !set_nx(key).await {
        sleep(Duration::from_millis(10)).await;
    }
    room.work(node).await;
    // `DEL key`. The lock expired, and this is another holder's.
    *key.write().await = None;
}

async fn protected(node: usize, arbiter: Arc<dyn Arbiter>, room: &Room) -> Result<()> {
    let mutex = Mutex::new(arbiter, "room", LOCK_TTL)?;
    let guard = mutex.acquire(PATIENCE).await?;
    // The work stops if the lock is lost. Writes elsewhere get `guard.token()`.
    guard.protect(room.work(node)).await?;
    guard.release().await?;
    Ok(())
}
