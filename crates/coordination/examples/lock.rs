//! A lock whose holders are slower than its time to live. With SET NX and DEL it lapses under the first, who does not notice, and
//! then deletes the lock of the second. A `Mutex` is renewed while its holder lives, lapses when it dies, and is released by
//! its own token only.
//!
//! `cargo run -p coordination --example lock [redis://127.0.0.1:6379]`

mod shared;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use coordination::{Arbiter, Holder, Mutex, Name};
use futures_util::future::{join_all, try_join_all};
use tokio::time::sleep;

use shared::Result;

const PATIENCE: Duration = Duration::from_secs(20);
const LOCK_TTL: Duration = Duration::from_millis(400);
const WORK: Duration = Duration::from_millis(600);

/// What the lock is to protect.
#[derive(Default)]
struct Room {
    inside: AtomicU32,
    most: AtomicU32,
}

impl Room {
    async fn work(&self, node: usize) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        println!("  node {node} comes in: {inside} inside");
        sleep(WORK).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        println!("  node {node} leaves");
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let nodes = shared::nodes(4)?;

    println!("SET NX PX to lock, DEL to release:");
    let (key, room) = (Key::default(), Room::default());
    join_all((1..4).map(|node| naive(node, &key, &room))).await;
    println!("naive: {} at a time\n", room.most.load(Ordering::SeqCst));

    println!("A Mutex. Node 0 takes it and crashes:");
    crash(nodes[0].as_ref()).await?;
    let room = Room::default();
    let workers = (1..4).map(|node| protected(node, Arc::clone(&nodes[node]), &room));
    try_join_all(workers).await?;
    println!("Mutex: {} at a time", room.most.load(Ordering::SeqCst));
    Ok(())
}

/// A key of Redis that has a time to live.
#[derive(Default)]
struct Key(std::sync::Mutex<Option<Instant>>);

impl Key {
    /// `SET key 1 NX PX ttl`
    fn set_nx(&self, ttl: Duration) -> bool {
        let mut expires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = expires.is_none_or(|it| it <= Instant::now());
        if is_free {
            *expires = Some(Instant::now() + ttl);
        }
        is_free
    }

    /// `DEL key`
    fn del(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn naive(node: usize, key: &Key, room: &Room) {
    while !key.set_nx(LOCK_TTL) {
        sleep(Duration::from_millis(10)).await;
    }
    room.work(node).await;
    // It lapsed meanwhile, and this is another's.
    key.del();
}

async fn protected(node: usize, arbiter: Arc<dyn Arbiter>, room: &Room) -> Result<()> {
    let mutex = Mutex::new(arbiter, "room", LOCK_TTL)?;
    let guard = mutex.acquire(PATIENCE).await?;
    // The work stops when the lock is lost all the same. What it writes to elsewhere gets `guard.token()`.
    guard.protect(room.work(node)).await?;
    guard.release().await?;
    Ok(())
}

/// What a crash is to the others: the lock is held, and nobody renews it or lets it go.
async fn crash(arbiter: &dyn Arbiter) -> Result<()> {
    let name = Name::of_mutex("room")?;
    let holder = Holder::random();
    let answer = arbiter.lock(&name, &holder, LOCK_TTL, None).await?;
    println!("  node 0: {answer:?}");
    Ok(())
}
