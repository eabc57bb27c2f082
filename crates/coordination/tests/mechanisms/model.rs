//! Runs random operations with a controlled clock in memory, on a Redis server, on a Redis Cluster, and behind Sentinel. The
//! replies must be identical to those of the model. Leases and values expire, and keys are evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, Beginning, Claim, Locking, Name, Place, Token};
use rand::rngs::SmallRng;
use rand::seq::{IndexedMutRandom, IndexedRandom};
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
/// The operation by which a new holder joins the queue.
const JOIN: u32 = 1;

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
    fn random(
        random: &mut SmallRng,
        [value, lock]: &[Name; 2],
        holders: &mut [String],
        tokens: &[Token],
    ) -> Self {
        // Prefer tokens that were granted recently.
        let recent = &tokens[tokens.len().saturating_sub(4)..];
        let operation = random.random_range(0..14);
        let is_on_lock = match operation {
            0..4 => true,
            // The operations that locks and values have in common.
            6 | 7 => random.random_bool(0.5),
            _ => false,
        };
        let holder = holders.choose_mut(random).unwrap();
        if operation == JOIN {
            *holder = format!("{}-{}", &holder[..1], random.random::<u64>());
        }
        Self {
            operation,
            claim: Claim {
                name: if is_on_lock { lock.clone() } else { value.clone() },
                holder: holder.clone(),
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
                let place = [Place::None, Place::Join, Place::Keep][operation.min(2) as usize];
                let answer = arbiter.lock(claim, place).await.unwrap();
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
    let unique = rand::random::<u64>().to_string();
    let names = [Name::of_value(&unique).unwrap(), Name::of_mutex(&unique).unwrap()];
    // The holders of two processes.
    let mut holders = ["a-0", "a-1", "b-0", "b-1"].map(str::to_owned);
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
                let key = *[Key::Holders, Key::Lock, Key::Entry].choose(&mut random).unwrap();
                let name = &names[usize::from(matches!(key, Key::Holders))];
                clocked.evict(name, key);
                model.evict(name, key);
                log.push(format!("evicted {key:?}"));
            }
        }
        let step = Step::random(&mut random, &names, &mut holders, &tokens);
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
