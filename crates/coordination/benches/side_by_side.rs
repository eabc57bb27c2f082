//! Compares this crate with `SET NX` and polling, and with no protection: for locks, cached reads, and a thousand callers
//! that wait for one value. All run on the same Redis server. The numbers of commands include those that scripts run.
//!
//! `cargo bench -p coordination`
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark panics if anything is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coordination::redis::{RedisArbiter, Timeouts};
use coordination::{Arbiter, ComputeOnce, ComputeSettings, Mutex};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use testing::redis::RedisServer;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two polls.
const POLL: Duration = Duration::from_millis(10);
const LOCK_TTL: Duration = Duration::from_secs(5);
const OPERATIONS: u32 = 2000;
/// The number of tasks that compete for the same lock.
const RIVALS: u32 = 16;
/// The number of callers that wait for one value.
const CALLERS: u32 = 1000;
const COST: Duration = Duration::from_millis(200);

/// A Redis server with an arbiter and a plain connection.
struct Bench {
    server: RedisServer,
    arbiter: Arc<dyn Arbiter>,
    connection: MultiplexedConnection,
}

impl Bench {
    /// Returns the number of commands that the server has processed so far.
    fn commands(&self) -> u64 {
        let stats: String = self.server.query(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// Runs operations in this many concurrent tasks, and prints their rate, durations and commands as a table row.
    async fn measure<F>(&self, row: &str, tasks: u32, operation: impl Fn() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (began, before) = (Instant::now(), self.commands());
        let mut spans = Vec::new();
        for _ in 0..OPERATIONS / tasks {
            let running = (0..tasks).map(|_| {
                let operation = operation();
                tokio::spawn(async move {
                    let began = Instant::now();
                    operation.await;
                    began.elapsed()
                })
            });
            spans.extend(join_all(running).await.into_iter().map(Result::unwrap));
        }
        let per_s = f64::from(OPERATIONS) / began.elapsed().as_secs_f64();
        let commands = (self.commands() - before) / u64::from(OPERATIONS);
        spans.sort_unstable();
        let at = |percent: usize| spans[(spans.len() - 1) * percent / 100];
        println!("| {row} | {per_s:.0} | {:.2?} | {:.2?} | {commands} |", at(50), at(99));
    }

    /// Has [`CALLERS`] callers request a missing value at once, and prints the computations, the delay and the commands.
    async fn stampede<F>(&self, row: &str, computed: &AtomicU32, get: impl Fn() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        computed.store(0, Ordering::SeqCst);
        let (began, before) = (Instant::now(), self.commands());
        let callers = (0..CALLERS).map(|_| tokio::spawn(get()));
        for caller in join_all(callers).await {
            caller.unwrap();
        }
        let late = began.elapsed().saturating_sub(COST);
        let (computed, commands) = (computed.load(Ordering::SeqCst), self.commands() - before);
        println!("| {row} | {computed} | {late:.2?} | {commands} |");
    }
}

/// Acquires a lock with `SET NX`, polling until it is free.
async fn set_nx(mut connection: MultiplexedConnection, key: &str) {
    loop {
        let mut command = redis::cmd("SET");
        command.arg(key).arg("held").arg("NX").arg("PX").arg(5000);
        if command.query_async::<Option<String>>(&mut connection).await.unwrap().is_some() {
            return;
        }
        sleep(POLL).await;
    }
}

async fn del(mut connection: MultiplexedConnection, key: &str) {
    redis::cmd("DEL").arg(key).exec_async(&mut connection).await.unwrap();
}

async fn read(mut connection: MultiplexedConnection, key: &str) -> Option<Vec<u8>> {
    redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap()
}

/// Computes the value and writes it, without a lock.
async fn compute(mut connection: MultiplexedConnection, computed: Arc<AtomicU32>) {
    computed.fetch_add(1, Ordering::SeqCst);
    sleep(COST).await;
    let mut command = redis::cmd("SET");
    command.arg("value").arg("v").exec_async(&mut connection).await.unwrap();
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = RedisServer::start(&[]);
    let arbiter = RedisArbiter::open(&server.url(), "bench", Timeouts::default()).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let bench = Bench {
        connection: client.get_multiplexed_async_connection().await.unwrap(),
        arbiter: Arc::new(arbiter),
        server,
    };
    let connection = || bench.connection.clone();

    println!(
        "| lock and unlock | per second | median | p99 | commands each |\n| --- | --- | --- | --- | --- |"
    );
    for (tasks, how) in [(1, "free"), (RIVALS, "16 rivals")] {
        let mutex = Mutex::new(Arc::clone(&bench.arbiter), "lock", LOCK_TTL).unwrap();
        let ours = || {
            let mutex = mutex.clone();
            async move {
                let guard = mutex.acquire(PATIENCE).await.unwrap();
                assert!(guard.release().await.unwrap());
            }
        };
        bench.measure(&format!("`Mutex`, {how}"), tasks, ours).await;
        let naive = || {
            let connection = connection();
            async move {
                set_nx(connection.clone(), "lock").await;
                del(connection, "lock").await;
            }
        };
        bench.measure(&format!("`SET NX`, polling, {how}"), tasks, naive).await;
    }

    println!(
        "\n| read a value | per second | median | p99 | commands each |\n| --- | --- | --- | --- | --- |"
    );
    let once = ComputeOnce::new(Arc::clone(&bench.arbiter), ComputeSettings::default()).unwrap();
    let value = |_| async { Ok::<_, String>(b"v".to_vec()) };
    once.get("kept", PATIENCE, value).await.unwrap();
    redis::cmd("SET").arg("kept").arg("v").exec_async(&mut connection()).await.unwrap();
    let ours = || {
        let once = once.clone();
        async move { drop(once.get("kept", PATIENCE, value).await.unwrap()) }
    };
    bench.measure("`ComputeOnce`", RIVALS, ours).await;
    let naive = || {
        let connection = connection();
        async move { drop(read(connection, "kept").await.unwrap()) }
    };
    bench.measure("`GET`", RIVALS, naive).await;

    println!(
        "\n| 1,000 callers wait for 200 ms of work | computations | delay of the last reply | commands |\n| --- | --- | --- | --- |"
    );
    let computed = Arc::new(AtomicU32::new(0));
    let ours = || {
        let (once, computed) = (once.clone(), Arc::clone(&computed));
        async move {
            let compute = move |_| {
                computed.fetch_add(1, Ordering::SeqCst);
                async {
                    sleep(COST).await;
                    Ok::<_, String>(b"v".to_vec())
                }
            };
            once.get("cold", PATIENCE, compute).await.unwrap();
        }
    };
    bench.stampede("`ComputeOnce`", &computed, ours).await;
    let naive = || {
        let (connection, computed) = (connection(), Arc::clone(&computed));
        async move {
            if read(connection.clone(), "value").await.is_some() {
                return;
            }
            set_nx(connection.clone(), "computing").await;
            // Read again, because another caller may have computed the value in the meantime.
            if read(connection.clone(), "value").await.is_none() {
                compute(connection.clone(), computed).await;
            }
            del(connection, "computing").await;
        }
    };
    bench.stampede("`SET NX`, polling", &computed, naive).await;
    del(connection(), "value").await;
    let unprotected = || {
        let (connection, computed) = (connection(), Arc::clone(&computed));
        async move {
            if read(connection.clone(), "value").await.is_none() {
                compute(connection, computed).await;
            }
        }
    };
    bench.stampede("no protection", &computed, unprotected).await;
}
