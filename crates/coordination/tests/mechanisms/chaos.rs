//! Runs random schedules with faults. Operations are late, lost, or executed twice; holders continue after their lease
//! has lapsed; callers time out; computations fail or panic. Virtual time makes a run reproducible from its seed.
//!
//! Invariants: Every holder of a lock except the newest has been told of its loss. Computations do not overlap. No caller
//! gets the result of a computation that began before an invalidation. Tokens grow, so a store that compares them rejects
//! outdated holders, which have always been told of their loss. After the faults, every caller gets a result.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::Duration;

use coordination::memory::{Clock, MemoryArbiter};
use coordination::{
    Arbiter, Claim, ComputeOnce, ComputeSettings, Error, Guard, Mutex, Name, Place, Token,
};
use futures_util::future::join_all;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use testing::load::seed;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::faulty::{Fate, Faulty};
use crate::site::PATIENCE;

/// The default number of schedules.
const SCHEDULES: u64 = 1000;
const SCHEDULES_VARIABLE: &str = "COORDINATION_SCHEDULES";
const LOCK_TTL: Duration = Duration::from_secs(1);
const NODES: usize = 3;

/// The arbiter's clock, slightly slower than the holders' clocks.
#[derive(Debug)]
struct Time {
    began: Instant,
    speed: f64,
}

impl Clock for Time {
    fn now_us(&self) -> u64 {
        let elapsed = self.began.elapsed().mul_f64(self.speed);
        1_700_000_000_000_000 + u64::try_from(elapsed.as_micros()).unwrap()
    }
}

/// The state observed so far.
#[derive(Debug, Default)]
struct Seen {
    /// The holders that have entered but not left, each with the signal that tells it of its loss.
    inside: Vec<(Token, CancellationToken)>,
    /// The greatest token of a holder that has entered.
    entered: Option<Token>,
    /// The greatest token in a store that rejects smaller tokens.
    written: Option<Token>,
    /// The running computations that have not been invalidated, and the number of running invalidations.
    computing: Vec<Token>,
    invalidating: u32,
    /// Computations whose tokens are smaller than this may have been invalidated.
    valid_from: u64,
    /// The greatest token of a computation that has begun.
    began: Option<Token>,
}

#[derive(Clone)]
struct Schedule {
    clock: Arc<Time>,
    seen: Arc<StdMutex<Seen>>,
    random: Arc<StdMutex<SmallRng>>,
    has_faults: Arc<AtomicBool>,
}

impl Schedule {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Returns a random duration of up to this many lease durations.
    fn span(&self, leases: f64) -> Duration {
        LOCK_TTL.mul_f64(self.random.lock().unwrap().random_range(0.0..leases))
    }

    fn chance(&self, probability: f64) -> bool {
        self.random.lock().unwrap().random_bool(probability)
    }

    fn fate(&self) -> Fate {
        if !self.has_faults.load(Ordering::SeqCst) || self.chance(0.6) {
            return Fate::FINE;
        }
        let late = |probability| {
            if self.chance(probability) { self.span(1.5) } else { self.span(0.05) }
        };
        Fate {
            there: late(0.1),
            times: if self.chance(0.1) { 2 } else { usize::from(self.chance(0.9)) },
            back: late(0.1),
            is_answered: self.chance(0.9),
        }
    }

    fn enter(&self, guard: &Guard) {
        let mut seen = self.seen();
        assert!(
            Some(guard.token()) > seen.entered,
            "a token that is not greater than {:?}",
            seen.entered
        );
        seen.entered = Some(guard.token());
        for (token, lost) in &seen.inside {
            assert!(
                lost.is_cancelled(),
                "{token} was not told that {} holds the lock",
                guard.token()
            );
        }
        seen.inside.push((guard.token(), guard.lost().clone()));
    }

    fn leave(&self, token: Token) {
        self.seen().inside.retain(|(inside, _)| *inside != token);
    }

    fn write(&self, guard: &Guard) {
        let mut seen = self.seen();
        if Some(guard.token()) >= seen.written {
            seen.written = Some(guard.token());
        } else {
            assert!(guard.lost().is_cancelled(), "rejected, but the loss was not reported");
        }
    }

    async fn lock(self, arbiter: Arc<Faulty>) {
        // The nodes need not agree on the time of a lease.
        let ttl = if self.chance(0.5) { LOCK_TTL } else { LOCK_TTL * 3 };
        let mutex = Mutex::new(arbiter, "a", ttl).unwrap();
        for _ in 0..3 {
            sleep(self.span(1.0)).await;
            let acquiring = mutex.acquire(self.span(6.0));
            let Ok(Ok(guard)) = timeout(self.span(8.0), acquiring).await else {
                continue;
            };
            self.enter(&guard);
            if self.chance(0.5) {
                let _ = guard.protect(sleep(self.span(2.0))).await;
            } else {
                // Continue without checking whether the lock is still held.
                sleep(self.span(3.0)).await;
            }
            self.write(&guard);
            self.leave(guard.token());
            if self.chance(0.7) {
                let _ = timeout(self.span(2.0), guard.release()).await;
            }
        }
    }

    /// Acts as a client that dies while it holds a lease or has a place in the queue, and never calls again.
    async fn die(self, arbiter: Arc<Faulty>) {
        sleep(self.span(6.0)).await;
        let claim = |name| Claim::new(name, LOCK_TTL);
        let _ = arbiter.lock(&claim(Name::of_mutex("a").unwrap()), Place::Join).await;
        let _ = arbiter.begin(&claim(Name::of_value("a").unwrap()), None).await;
    }

    async fn compute(self, token: Token) -> Result<Vec<u8>, String> {
        struct Running(Schedule, Token);
        impl Drop for Running {
            fn drop(&mut self) {
                self.0.seen().computing.retain(|token| *token != self.1);
            }
        }
        {
            let mut seen = self.seen();
            if seen.invalidating == 0 && token.0 >= seen.valid_from {
                let others = &seen.computing;
                assert!(others.is_empty(), "{token} ran at the same time as {others:?}");
                seen.computing.push(token);
            }
            seen.began = seen.began.max(Some(token));
        }
        let running = Running(self.clone(), token);
        sleep(self.span(2.5)).await;
        if self.has_faults.load(Ordering::SeqCst) {
            assert!(!self.chance(0.1), "injected failure");
            if self.chance(0.1) {
                return Err("injected failure".to_owned());
            }
        }
        drop(running);
        Ok(token.to_string().into_bytes())
    }

    /// Invalidates the value. Running computations continue until they notice, so they may overlap with new ones.
    async fn invalidate(&self, node: &ComputeOnce) -> Option<Token> {
        let began = {
            let mut seen = self.seen();
            seen.invalidating += 1;
            seen.computing.clear();
            seen.began
        };
        let invalidated = node.invalidate("a").await;
        let mut seen = self.seen();
        seen.invalidating -= 1;
        // Virtual time may stand still between a grant, the invalidation and the computation.
        seen.valid_from = self.clock.now_us() + 1;
        invalidated.ok().and(began)
    }

    async fn read(self, node: ComputeOnce) {
        for _ in 0..4 {
            sleep(self.span(2.0)).await;
            let outdated = if self.chance(0.07) { self.invalidate(&node).await } else { None };
            let schedule = self.clone();
            let getting =
                node.get("a", self.span(6.0), move |token| schedule.clone().compute(token));
            let answer = timeout(self.span(8.0), getting).await;
            match answer {
                Ok(Ok(computed)) => {
                    let token = computed.token();
                    assert!(Some(token) > outdated, "{token} was invalidated");
                    assert_eq!(computed.bytes(), token.to_string().as_bytes());
                }
                Ok(Err(Error::Failed(message))) => {
                    assert!(message.contains("injected failure"), "{message}");
                }
                _ => {}
            }
        }
    }
}

async fn run(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let schedule = Schedule {
        clock: Arc::new(Time { began: Instant::now(), speed: random.random_range(0.993..1.007) }),
        seen: Arc::default(),
        random: Arc::new(StdMutex::new(random)),
        has_faults: Arc::new(AtomicBool::new(true)),
    };
    let memory = MemoryArbiter::new(Arc::clone(&schedule.clock) as _);
    let memory: Arc<dyn Arbiter> = Arc::new(memory);
    let settings = ComputeSettings {
        lock_ttl: LOCK_TTL,
        value_ttl: LOCK_TTL * 2,
        error_ttl: LOCK_TTL / 2,
        ..ComputeSettings::default()
    };
    let nodes = [(); NODES].map(|()| {
        let schedule = schedule.clone();
        let arbiter = Faulty::new(Arc::clone(&memory), move |_| schedule.fate());
        let once = ComputeOnce::new(Arc::clone(&arbiter) as _, settings).unwrap();
        (arbiter, once)
    });
    let mut tasks = Vec::new();
    for (arbiter, once) in &nodes {
        for _ in 0..2 {
            tasks.push(tokio::spawn(schedule.clone().lock(Arc::clone(arbiter))));
            tasks.push(tokio::spawn(schedule.clone().read(once.clone())));
        }
        tasks.push(tokio::spawn(schedule.clone().die(Arc::clone(arbiter))));
    }
    for task in join_all(tasks).await {
        task.unwrap();
    }
    schedule.has_faults.store(false, Ordering::SeqCst);
    for (arbiter, once) in nodes {
        let mutex = Mutex::new(arbiter as _, "a", LOCK_TTL).unwrap();
        let guard = mutex.acquire(PATIENCE).await;
        let guard = guard.unwrap_or_else(|error: Error| panic!("no lock: {error}"));
        schedule.enter(&guard);
        schedule.write(&guard);
        schedule.leave(guard.token());
        assert!(guard.release().await.unwrap());
        let value = loop {
            let schedule = schedule.clone();
            match once.get("a", PATIENCE, move |token| schedule.clone().compute(token)).await {
                Ok(value) => break value,
                // A failed computation is cached for a moment, so wait until it can be repeated.
                Err(Error::Failed(_)) => sleep(LOCK_TTL).await,
                Err(error) => panic!("no value: {error}"),
            }
        };
        assert_eq!(value.bytes(), value.token().to_string().as_bytes());
    }
}

#[test]
fn faults_never_allow_two_holders_or_computations() {
    let schedules =
        std::env::var(SCHEDULES_VARIABLE).map_or(SCHEDULES, |number| number.parse().unwrap());
    let first = seed();
    // Do not print the panics that computations raise intentionally.
    let report = take_hook();
    set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<&str>();
        if message.is_none_or(|message| !message.contains("injected failure")) {
            report(panic);
        }
    }));
    for number in 0..schedules {
        let seed = first.wrapping_add(number);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let ran = catch_unwind(AssertUnwindSafe(|| runtime.unwrap().block_on(run(seed))));
        assert!(ran.is_ok(), "with EDS_TEST_SEED={seed} and {SCHEDULES_VARIABLE}=1");
    }
}
