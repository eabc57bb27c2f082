//! Runs random operations with a controlled clock in memory, on a Redis server, on a Redis Cluster, and behind Sentinel. The
//! replies must be identical to those of the model. Leases, places and values expire, and keys are evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, Beginning, Claim, Locking, Name, Token};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use testing::load::seed;

use crate::clocked::Clocked;
use crate::reference::{Key, Reference};
use crate::site::lock;

/// The default number of schedules for the comparison with the arbiter in memory.
const SCHEDULES: u64 = 3000;
const SCHEDULES_VARIABLE: &str = "COORDINATION_SCHEDULES";
/// The time at which schedules begin.
const BEGIN_US: u64 = 1_700_000_000_000_000;
/// The number of steps in a schedule.
const STEPS: usize = 60;

/// An operation that is run on all arbiters.
#[derive(Debug)]
struct Step {
    operation: u32,
    claim: Claim,
    token: Option<Token>,
    bytes: Vec<u8>,
}

/// Returns one of a few round durations, so that an operation may be run at the exact time at which something expires.
fn even_ms(random: &mut SmallRng) -> Duration {
    Duration::from_millis(*[2, 10, 20, 20, 50, 100, 400].choose(random).unwrap())
}

impl Step {
    fn random(random: &mut SmallRng, names: &[Name], holders: &[String], tokens: &[Token]) -> Self {
        // Prefer tokens that were granted recently.
        let recent = &tokens[tokens.len().saturating_sub(4)..];
        Self {
            operation: random.random_range(0..14),
            claim: Claim {
                name: names.choose(random).unwrap().clone(),
                holder: holders.choose(random).unwrap().clone(),
                ttl: even_ms(random),
            },
            token: recent.choose(random).copied(),
            bytes: vec![random.random(); random.random_range(0..3)],
        }
    }

    /// Runs the operation. Returns a description of the reply, and the token if a lease was granted.
    async fn ask(&self, arbiter: &dyn Arbiter) -> (String, Option<Token>) {
        let Self { claim, bytes, .. } = self;
        let Claim { name, ttl, .. } = claim;
        let reply = match self.operation {
            operation @ 0..4 => {
                // Request a place in the queue that is kept for some time, or no place.
                let presence = (operation > 0).then_some(*ttl * operation / 2);
                let answer = arbiter.lock(claim, presence).await.unwrap();
                if let Locking::Granted(token) = answer {
                    return (format!("locked by {token}"), Some(token));
                }
                format!("{answer:?}")
            }
            4 | 5 => {
                let outdated = self.token.filter(|_| self.operation == 4);
                let answer = arbiter.begin(claim, outdated).await.unwrap();
                if let Beginning::Granted(token) = answer {
                    return (format!("begun by {token}"), Some(token));
                }
                format!("{answer:?}")
            }
            6 => format!("renewed {}", arbiter.renew(claim).await.unwrap()),
            7 => format!("released {}", arbiter.release(claim).await.unwrap()),
            8 => format!("{:?}", arbiter.peek(name).await.unwrap()),
            9 => {
                let published = arbiter.publish(claim, Ok((bytes, *ttl)), *ttl).await;
                format!("published {}", published.unwrap())
            }
            10 => format!("failed {}", arbiter.publish(claim, Err("why"), *ttl).await.unwrap()),
            11 => {
                let items = vec![bytes.as_slice(); bytes.len()];
                // The time to live of a list has a resolution of 1 ms, so Redis may keep the list slightly longer.
                let ttl = *ttl + Duration::from_millis(1);
                let replaced = arbiter.replace(name, &items, ttl, self.token).await;
                format!("replaced {}", replaced.unwrap())
            }
            12 => format!("invalidated {}", arbiter.invalidate(name).await.unwrap()),
            _ => format!("{:?}", arbiter.list(name).await.unwrap()),
        };
        (reply, None)
    }
}

/// The arbiter that is compared with the model.
enum Compared<'a> {
    Memory,
    Redis(&'a Clocked),
}

/// Runs the schedule of a seed. Returns how many leases were granted, or a description of the first difference.
async fn agree(seed: u64, begin_us: u64, compared: Compared<'_>) -> Result<usize, String> {
    let mut random = SmallRng::seed_from_u64(seed);
    let model = Reference::default();
    let clock = Arc::new(AtomicU64::default());
    let real: Arc<dyn Arbiter> = match &compared {
        Compared::Memory => Arc::new(MemoryArbiter::new(Arc::clone(&clock) as _)),
        Compared::Redis(clocked) => Arc::clone(&clocked.arbiter) as _,
    };
    let mut now_us = begin_us;
    let names = ["a", "b"].map(|name| {
        let unique = rand::random::<u64>();
        Name::of_value(&format!("{name}{unique}")).unwrap()
    });
    let holders = ["h0", "h1", "h2", "h3"].map(str::to_owned);
    let (mut tokens, mut log) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let span =
            if random.random_bool(0.7) { Duration::from_millis(2) } else { even_ms(&mut random) };
        now_us += u64::try_from(span.as_micros()).unwrap();
        model.world().now = now_us;
        clock.store(now_us, Ordering::SeqCst);
        if let Compared::Redis(clocked) = &compared {
            clocked.set(now_us);
            if random.random_bool(0.05) {
                let key = *[Key::Lock, Key::Queue, Key::Present, Key::Entry, Key::List]
                    .choose(&mut random)
                    .unwrap();
                clocked.evict(&names[0], key);
                model.evict(&names[0], key);
                log.push(format!("evicted {key:?}"));
            }
        }
        let step = Step::random(&mut random, &names, &holders, &tokens);
        let (expected, token) = step.ask(&model).await;
        let (found, _) = step.ask(&*real).await;
        log.push(format!("at {now_us} {step:?}: {expected}"));
        if found != expected {
            let log = log.join("\n");
            return Err(format!("EDS_TEST_SEED={seed}, after:\n{log}\nfound: {found}"));
        }
        tokens.extend(token);
    }
    Ok(tokens.len())
}

#[tokio::test]
async fn memory_matches_the_model() {
    let schedules =
        std::env::var(SCHEDULES_VARIABLE).map_or(SCHEDULES, |number| number.parse().unwrap());
    let first = seed();
    let mut granted = 0;
    for number in 0..schedules {
        let agreed = agree(first.wrapping_add(number), BEGIN_US, Compared::Memory).await;
        granted += agreed.unwrap_or_else(|difference| panic!("{difference}"));
    }
    let granted = granted as u64;
    assert!(granted > schedules * 5, "{granted} grants in {schedules} schedules");
}

async fn redis_does_as_the_model(clocked: Clocked) {
    let first = seed();
    for number in 0..60 {
        // Each schedule continues with the state that the previous schedule left.
        let begin_us = BEGIN_US + number * 3_600_000_000;
        let agreed = agree(first.wrapping_add(number), begin_us, Compared::Redis(&clocked)).await;
        agreed.unwrap_or_else(|difference| panic!("{difference}"));
    }
}

#[tokio::test]
async fn server_matches_the_model() {
    redis_does_as_the_model(Clocked::server()).await;
}

#[tokio::test]
async fn cluster_matches_the_model() {
    redis_does_as_the_model(Clocked::cluster()).await;
}

#[tokio::test]
async fn sentinel_master_matches_the_model() {
    redis_does_as_the_model(Clocked::sentinel()).await;
}

#[tokio::test]
async fn tokens_grow_when_the_clock_is_set_back() {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
    let (name, ttl) = (Name::of_mutex("a").unwrap(), Duration::from_secs(10));
    let grant = async || {
        let (claim, token) = lock(&arbiter, &name, ttl).await.expect("a free lock");
        assert!(arbiter.release(&claim).await.unwrap());
        token.0
    };
    assert_eq!(grant().await, 1_000_000);
    clock.store(500_000, Ordering::SeqCst);
    assert_eq!(grant().await, 1_000_001);
}
