//! One life of a node, from start to end, with its death, sleeps and ledger.

use std::pin::Pin;
use std::task::{Context, Poll};

use event_data_service::node::{Clock, Node, Rng};
use event_data_service::telemetry::Metrics;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::simulation::prelude::*;

/// The minimum time during which nothing is closed after a failure.
const SETTLE_MIN: Duration = Duration::from_secs(5);
/// The maximum age of an event on arrival, caused by late delivery and a clock that is ahead.
const OLDEST: Duration = Duration::from_secs(200);

#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) number: usize,
    pub(crate) node: usize,
    pub(crate) shared: Arc<Node>,
    pub(crate) stop: CancellationToken,
    world: Arc<World>,
    dead: AtomicBool,
    died: Notify,
    asleep_until: Mutex<Instant>,
    generation: AtomicU64,
    pub(crate) cuts: Arc<AtomicU64>,
    connected: Mutex<Instant>,
    began: Instant,
    /// For each partition, since when a recorder has been holding events that the store has not accepted.
    unrecorded: Mutex<BTreeMap<usize, Instant>>,
    reported: Mutex<BTreeSet<usize>>,
    metrics: Mutex<Option<Arc<Metrics>>>,
    /// For each partition, when a claim last failed.
    unclaimed: Mutex<BTreeMap<usize, Instant>>,
}

impl Life {
    pub(crate) fn new(world: &Arc<World>, node: usize) -> Self {
        let (time, skew) = (world.time, world.plan.skews[node]);
        let clock = Clock::new(move || time.now() + skew);
        let shared = Node::new(clock, Rng::new(world.dice().next()));
        Self {
            number: world.oracle().born(),
            node,
            shared: Arc::new(shared),
            stop: CancellationToken::new(),
            world: Arc::clone(world),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            asleep_until: Mutex::new(Instant::now()),
            generation: AtomicU64::new(1),
            cuts: Arc::default(),
            connected: Mutex::new(Instant::now()),
            began: Instant::now(),
            unrecorded: Mutex::default(),
            reported: Mutex::default(),
            metrics: Mutex::default(),
            unclaimed: Mutex::default(),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn reconnect(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.cuts.fetch_add(1, Ordering::Relaxed);
        *self.connected.lock().unwrap() = Instant::now();
    }

    /// Notes that a recorder has received the response for its events.
    pub(crate) fn heard_of_recording(&self, partition: Partition, failed: bool) {
        let mut unrecorded = self.unrecorded.lock().unwrap();
        if failed {
            unrecorded.entry(partition.index()).or_insert_with(Instant::now);
        } else {
            unrecorded.remove(&partition.index());
        }
    }

    pub(crate) fn heard_of_claim(&self, partition: Partition, failed: bool) {
        if failed {
            let mut unclaimed = self.unclaimed.lock().unwrap();
            unclaimed.insert(partition.index(), Instant::now());
        }
    }

    pub(crate) fn counts_with(&self, metrics: &Arc<Metrics>) {
        *self.metrics.lock().unwrap() = Some(Arc::clone(metrics));
    }

    /// Checks that the metrics of this life include all late events that the store counted for it.
    pub(crate) fn has_counted_late(&self) -> Verdict {
        let partitions = 0..self.world.partitions().all().count();
        let found = self.world.look(|state| {
            let stamps = partitions.flat_map(|partition| state.stamps(partition));
            let own = stamps.filter(|stamp| life_of(stamp.node) == self.number);
            own.map(|stamp| stamp.late).sum::<u64>()
        });
        let metrics = self.metrics.lock().unwrap();
        let counted = metrics.as_ref().unwrap().events_late.get();
        if counted == found {
            return Ok(());
        }
        Err(format!("life {} has counted {counted} of {found} late events", self.number))
    }

    pub(crate) fn reported_lag(&self, partition: Partition, lags: bool) {
        let mut reported = self.reported.lock().unwrap();
        if lags {
            reported.insert(partition.index());
        } else {
            reported.remove(&partition.index());
        }
    }

    /// Checks that a node with this history may request these claims.
    pub(crate) fn may_ask(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        interval: Duration,
    ) -> Verdict {
        let now = Instant::now();
        let settle = request.grace.max(SETTLE_MIN);
        let past = |at: Instant, span: Duration| now.duration_since(at) >= span;
        let connected = *self.connected.lock().unwrap();
        let unclaimed = self.unclaimed.lock().unwrap();
        let is_settled = (connected <= self.began || past(connected, settle))
            && past(self.began, request.grace)
            && unclaimed.get(&partition.index()).is_none_or(|at| past(*at, settle));
        if request.finished_max > 0 && !is_settled {
            return Err(format!("life {} closes minutes right after trouble", self.number));
        }
        if request.lapsed_max > 0 && !past(connected, SETTLE_MIN.max(3 * interval)) {
            return Err(format!(
                "life {} takes claims over from a store that may have gone back",
                self.number
            ));
        }
        let reported = self.reported.lock().unwrap().contains(&partition.index());
        self.may_report(partition, reported)
    }

    /// Checks that a node with this history may report whether it lags.
    pub(crate) fn may_report(&self, partition: Partition, lags: bool) -> Verdict {
        let now = Instant::now();
        let unrecorded = self.unrecorded.lock().unwrap();
        // Events that have become too old are no longer recorded.
        let young = self.world.plan.max_age.saturating_sub(OLDEST);
        let is_young = |at: &Instant| *at < now && now.duration_since(*at) < young;
        if !lags && unrecorded.get(&partition.index()).is_some_and(is_young) {
            return Err(format!("life {} lags and does not say so", self.number));
        }
        Ok(())
    }

    pub(crate) fn kill(&self) {
        self.world.note(|| format!("life {} is killed", self.number));
        self.dead.store(true, Ordering::Relaxed);
        self.world.oracle().ends(self.number);
        self.died.notify_one();
    }

    pub(crate) async fn die(&self) -> ! {
        self.kill();
        std::future::pending().await
    }

    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }

    pub(crate) fn put_to_sleep(&self, span: Duration) {
        self.world.note(|| format!("life {} sleeps for {span:?}", self.number));
        self.world.oracle().sleeps(self.number);
        let mut until = self.asleep_until.lock().unwrap();
        *until = until.max(Instant::now() + span);
    }

    /// Like [`Life::put_to_sleep`], but begins right now.
    pub(crate) async fn sleep(&self, span: Duration) {
        self.put_to_sleep(span);
        tokio::task::yield_now().await;
    }

    pub(crate) fn is_asleep(&self) -> bool {
        *self.asleep_until.lock().unwrap() > Instant::now()
    }

    /// Compares the ledger with the model. Never returns if the life has been killed.
    pub(crate) async fn audit(&self) {
        if self.dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let verdict = self.world.oracle().audit(self.number, &self.shared.ledger.totals());
        self.world.judge(verdict);
    }
}

pub(crate) fn name_of(life: usize) -> String {
    format!("life{life}")
}

pub(crate) fn life_of(node: &str) -> usize {
    let name = node.split('#').next();
    let number = name.and_then(|name| name.strip_prefix("life"));
    number.and_then(|number| number.parse().ok()).unwrap()
}

pub(crate) struct Sleepy<F> {
    inner: Pin<Box<F>>,
    alarm: Pin<Box<Sleep>>,
    life: Arc<Life>,
}

impl<F: Future> Sleepy<F> {
    pub(crate) fn new(life: &Arc<Life>, inner: F) -> Self {
        Self {
            inner: Box::pin(inner),
            alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
            life: Arc::clone(life),
        }
    }
}

impl<F: Future> Future for Sleepy<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let until = *self.life.asleep_until.lock().unwrap();
        if until > Instant::now() {
            self.alarm.as_mut().reset(until);
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(context)
    }
}
