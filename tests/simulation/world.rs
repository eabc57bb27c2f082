//! The state shared by all nodes of a schedule: virtual time, randomness, Redis, the model, and the trace.

use std::sync::MutexGuard;

use coordination::memory::MemoryArbiter;
use event_data_service::event::Partitions;
use event_data_service::store::redis;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::dice::Dice;
use super::oracle::{Oracle, Violation};
use super::script::Outage;
use super::state::{PREFIX, tags};
use crate::simulation::prelude::*;

/// Tokio's paused clock, used as wall-clock time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    began: Instant,
    begins: i64,
}

impl Time {
    pub(crate) fn after(self) -> i64 {
        i64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn now(self) -> i64 {
        self.begins + self.after()
    }

    pub(crate) fn now_ms(self) -> i64 {
        self.now().div_euclid(1_000_000)
    }

    pub(crate) fn instant(self, after: i64) -> Instant {
        self.began + Duration::from_nanos(u64::try_from(after).unwrap_or(0))
    }
}

impl coordination::memory::Clock for Time {
    fn now_us(&self) -> u64 {
        self.now().unsigned_abs() / 1000
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) time: Time,
    pub(crate) redis: Arc<LuaRedis>,
    tags: Vec<String>,
    /// Locked during a call, so that its effect and the update of the model are a single step.
    pub(crate) step: tokio::sync::Mutex<()>,
    arbiter: Arc<MemoryArbiter>,
    pub(crate) calm: AtomicBool,
    pub(crate) failed: Notify,
    oracle: Mutex<Oracle>,
    dice: Mutex<Dice>,
    violation: Mutex<Option<Violation>>,
    trace: Option<Mutex<Vec<String>>>,
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64, mutant: Option<Mutant>, traced: bool) -> Self {
        let time = Time { began: Instant::now(), begins: plan.begins };
        let retention = plan.max_age * 2;
        Self {
            time,
            redis: Arc::new(LuaRedis::new(
                Box::new(move || time.now().div_euclid(1000)),
                mutant.and_then(Mutant::change),
            )),
            tags: tags(plan.partitions, plan.rollups.len()),
            step: tokio::sync::Mutex::default(),
            arbiter: Arc::new(MemoryArbiter::new(Arc::new(time))),
            calm: AtomicBool::new(false),
            failed: Notify::new(),
            oracle: Mutex::new(Oracle::new(&plan, retention)),
            dice: Mutex::new(Dice::new(!seed)),
            violation: Mutex::new(None),
            trace: traced.then(Mutex::default),
            plan,
        }
    }

    pub(crate) fn partitions(&self) -> Partitions {
        partitions(&self.plan)
    }

    /// Returns the arbiter that decides which node may probe an unreachable output.
    pub(crate) fn arbiter(&self) -> Arc<dyn coordination::Arbiter> {
        Arc::clone(&self.arbiter) as Arc<dyn coordination::Arbiter>
    }

    pub(crate) fn look<R>(&self, look: impl FnOnce(&State<'_>) -> R) -> R {
        look(&State::new(&self.redis.keyspace(), &self.tags))
    }

    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap()
    }

    pub(crate) fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap()
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub(crate) fn is_away(&self, outages: &[Outage], node: usize) -> bool {
        let now = self.time.after();
        let mine = |outage: &Outage| outage.node.is_none_or(|only| only == node);
        outages.iter().any(|outage| mine(outage) && (outage.from..outage.to).contains(&now))
    }

    /// Records a verdict of the model. The first violation ends the schedule.
    pub(crate) fn judge(&self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.note(|| format!("VIOLATION {violation}"));
            let mut first = self.violation.lock().unwrap();
            if first.is_none() {
                *first = Some(violation);
                self.failed.notify_one();
            }
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.violation.lock().unwrap().take().map_or(Ok(()), Err)
    }

    pub(crate) fn note(&self, words: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let at = std::time::Duration::from_nanos(self.time.after().unsigned_abs());
            let line = format!("{:>4}.{:03} {}", at.as_secs(), at.subsec_millis(), words());
            trace.lock().unwrap().push(line);
        }
    }

    pub(crate) fn take_trace(&self) -> Vec<String> {
        let trace = self.trace.as_ref();
        trace.map_or_else(Vec::new, |trace| std::mem::take(&mut trace.lock().unwrap()))
    }
}

fn partitions(plan: &Plan) -> Partitions {
    let rollups = plan.rollups.iter().enumerate();
    redis::partitions(PREFIX, plan.partitions.try_into().unwrap(), None)
        .with_rollups(rollups.map(|(number, rollup)| rollup.rollup(number)).collect())
}
