//! A child process of a test, which runs this test binary with a job in its environment. It prints events as lines of `@`
//! followed by a JSON object. All times are in microseconds since the epoch.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::redis::RedisArbiter;
use coordination::{Arbiter, ComputeOnce, ComputeSettings, Computed, Fresh, Origin};
use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::time::{interval, sleep};

use crate::site::{PATIENCE, TIMEOUTS};

pub(crate) const JOB: &str = "COORDINATION_TEST_JOB";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) prefix: String,
    /// When all processes begin their work.
    pub(crate) start_us: u64,
    pub(crate) lock_ms: u64,
    pub(crate) value_ms: u64,
    pub(crate) cost_ms: u64,
    pub(crate) work: Work,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Requests a key this many times, evenly spread over this time.
    Burst { key: String, requests: u32, over_ms: u64 },
    /// Like `Burst`, but without protection: read, compute, write.
    Stampede { key: String, requests: u32, over_ms: u64 },
    /// Begins a computation that never ends.
    Hang { key: String },
    /// Sends this process's share of the requests for the five positions of each list.
    Positions { seed: u64, rounds: u64, process: u32 },
    /// Reads a key at a constant rate.
    Hot { key: String, reads_per_s: u32, seconds: u32 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Told {
    Ready,
    Computing,
    Computed {
        began_us: u64,
        ended_us: u64,
    },
    Answer {
        asked_us: u64,
        answered_us: u64,
        token: u64,
        value: String,
    },
    Item {
        round: u64,
        position: usize,
        item: String,
    },
    Reads {
        reads: u32,
        /// When the first read that computed a value returned. That value had been published by then.
        first_us: Option<u64>,
        missed_at_us: Vec<u64>,
        refreshes: u32,
        failed: u32,
        slowest_us: u64,
    },
}

pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

fn tell(told: &Told) {
    // Begin with a line ending, because the test harness may have printed an incomplete line.
    println!("\n@{}", serde_json::to_string(told).unwrap());
}

/// Runs a job if [`processes`](crate::processes) started this process. Otherwise, does nothing.
#[test]
fn process() {
    let Ok(job) = std::env::var(JOB) else {
        return;
    };
    let job: Job = serde_json::from_str(&job).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(run(job));
}

async fn run(job: Job) {
    let arbiter = RedisArbiter::open(&job.url, &job.prefix, TIMEOUTS).unwrap();
    let settings = ComputeSettings {
        lock_ttl: Duration::from_millis(job.lock_ms),
        value_ttl: Duration::from_millis(job.value_ms),
        beta: if matches!(job.work, Work::Hot { .. }) { 1.0 } else { 0.0 },
        ..ComputeSettings::default()
    };
    let once = ComputeOnce::new(Arc::new(arbiter) as Arc<dyn Arbiter>, settings).unwrap();
    let cost = Duration::from_millis(job.cost_ms);
    // Connect before the measurement begins.
    let compute = |_| async { Ok::<_, String>(Vec::new()) };
    once.get("connected", PATIENCE, compute).await.unwrap();
    let once = Arc::new(once);
    tell(&Told::Ready);
    sleep(Duration::from_micros(job.start_us.saturating_sub(now_us()))).await;
    match job.work {
        Work::Burst { key, requests, over_ms } => {
            let requests =
                paced(requests, over_ms, |_| burst(Arc::clone(&once), key.clone(), cost));
            requests.await;
        }
        Work::Stampede { key, requests, over_ms } => {
            let client = redis::Client::open(job.url).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            paced(requests, over_ms, |_| stampede(connection.clone(), key.clone(), cost)).await;
        }
        Work::Hang { key } => {
            let compute = |_| async {
                tell(&Told::Computing);
                std::future::pending::<Result<Vec<u8>, String>>().await
            };
            once.get(&key, PATIENCE, compute).await.unwrap();
        }
        Work::Positions { seed, rounds, process } => positions(once, seed, rounds, process).await,
        Work::Hot { key, reads_per_s, seconds } => {
            read_hot(once, key, reads_per_s, seconds, cost).await;
        }
    }
}

/// Starts requests at equal intervals over this time, and waits for all of them.
async fn paced<F: Future<Output = ()> + Send + 'static>(
    requests: u32,
    over_ms: u64,
    request: impl Fn(u32) -> F,
) {
    let began = tokio::time::Instant::now();
    let mut tasks = Vec::new();
    for number in 0..requests {
        let at = Duration::from_millis(over_ms) * number / requests;
        tokio::time::sleep_until(began + at).await;
        tasks.push(tokio::spawn(request(number)));
    }
    join_all(tasks).await.into_iter().for_each(|result| result.unwrap());
}

async fn expensive(cost: Duration) -> Result<Vec<u8>, String> {
    let began_us = now_us();
    sleep(cost).await;
    tell(&Told::Computed { began_us, ended_us: now_us() });
    Ok(rand::random::<u64>().to_string().into_bytes())
}

async fn burst(once: Arc<ComputeOnce>, key: String, cost: Duration) {
    let asked_us = now_us();
    let computed = once.get(&key, PATIENCE, move |_| expensive(cost)).await.unwrap();
    let answered_us = now_us();
    let value = String::from_utf8(computed.bytes().to_vec()).unwrap();
    let token = computed.token().0;
    tell(&Told::Answer { asked_us, answered_us, token, value });
}

async fn stampede(mut connection: redis::aio::MultiplexedConnection, key: String, cost: Duration) {
    let found: Option<Vec<u8>> =
        redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
    if found.is_none() {
        let value = expensive(cost).await.unwrap();
        let writing = redis::cmd("SET").arg(&key).arg(value).to_owned();
        writing.query_async::<()>(&mut connection).await.unwrap();
    }
}

/// Requests positions 0 to 4 in each round, in any order, each from any process, and one of them late. All processes use the
/// same seed, and each sends its own part of the requests.
async fn positions(once: Arc<ComputeOnce>, seed: u64, rounds: u64, process: u32) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut tasks = Vec::new();
    for round in 0..rounds {
        let mut order = [0, 1, 2, 3, 4_usize];
        order.shuffle(&mut random);
        for (place, position) in order.into_iter().enumerate() {
            let takes = random.random_range(0..3);
            let mut delay_ms = round * 2 + random.random_range(0..4);
            if place == 4 {
                delay_ms += 500;
            }
            if takes == process {
                let once = Arc::clone(&once);
                tasks.push(tokio::spawn(async move {
                    sleep(Duration::from_millis(delay_ms)).await;
                    let computed = list(&once, round).await;
                    let item = computed.json::<Vec<String>>().unwrap().remove(position);
                    tell(&Told::Item { round, position, item });
                }));
            }
        }
    }
    join_all(tasks).await.into_iter().for_each(|result| result.unwrap());
}

async fn list(once: &ComputeOnce, round: u64) -> Computed {
    let compute = |_| async {
        sleep(Duration::from_millis(3)).await;
        // The five items differ from each other and, with high probability, from those of other computations.
        let first = rand::random::<u32>();
        Fresh::json(&[0, 1, 2, 3, 4].map(|n| (u64::from(first) + n).to_string()))
    };
    once.get(&format!("round{round}"), PATIENCE, compute).await.unwrap()
}

async fn read_hot(
    hot: Arc<ComputeOnce>,
    key: String,
    reads_per_s: u32,
    seconds: u32,
    cost: Duration,
) {
    const TICKS_PER_S: u32 = 100;
    let mut ticks = interval(Duration::from_secs(1) / TICKS_PER_S);
    let mut tasks = Vec::new();
    for tick in 0..seconds * TICKS_PER_S {
        ticks.tick().await;
        let reads = reads_per_s * (tick + 1) / TICKS_PER_S - reads_per_s * tick / TICKS_PER_S;
        for _ in 0..reads {
            let (hot, key) = (Arc::clone(&hot), key.clone());
            tasks.push(tokio::spawn(async move {
                let asked_us = now_us();
                let read = hot.get(&key, PATIENCE, move |_| expensive(cost)).await;
                read.map(|computed| (computed.origin, asked_us, now_us() - asked_us))
            }));
        }
    }
    let (mut refreshes, mut failed, mut slowest_us) = (0, 0, 0);
    let (mut first_us, mut missed_at_us) = (None, Vec::new());
    let reads = u32::try_from(tasks.len()).unwrap();
    for answer in join_all(tasks).await {
        let Ok((origin, asked_us, took_us)) = answer.unwrap() else {
            failed += 1;
            continue;
        };
        match origin {
            Origin::Kept => slowest_us = slowest_us.max(took_us),
            Origin::Refreshing => refreshes += 1,
            Origin::Computed => {
                first_us.get_or_insert(asked_us + took_us);
                missed_at_us.push(asked_us);
            }
            Origin::Awaited => missed_at_us.push(asked_us),
        }
    }
    tell(&Told::Reads { reads, first_us, missed_at_us, refreshes, failed, slowest_us });
}
