//! One life of a node, from its start to its end: what can end it, what lets it sleep, and its ledger.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use event_data_service::telemetry::Ledger;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::world::World;

/// See the module.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) number: usize,
    pub(crate) node: usize,
    pub(crate) ledger: Arc<Ledger>,
    /// Cancelled when the node is stopped in order.
    pub(crate) stop: CancellationToken,
    world: Arc<World>,
    dead: AtomicBool,
    died: Notify,
    asleep_until: Mutex<Instant>,
    generation: AtomicU64,
}

impl Life {
    pub(crate) fn new(world: &Arc<World>, node: usize) -> Self {
        Self {
            number: world.oracle().born(),
            node,
            ledger: Arc::default(),
            stop: CancellationToken::new(),
            world: Arc::clone(world),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            asleep_until: Mutex::new(Instant::now()),
            generation: AtomicU64::new(1),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The connection to the store is another one from now on.
    pub(crate) fn reconnect(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn kill(&self) {
        self.world
            .note(|| format!("life {} is killed", self.number));
        self.dead.store(true, Ordering::Relaxed);
        self.died.notify_one();
    }

    /// Ends the life at this very step.
    pub(crate) async fn die(&self) -> ! {
        self.kill();
        std::future::pending().await
    }

    /// Returns when the life was killed.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }

    /// Nothing of the node runs for this long, while time goes on.
    pub(crate) fn put_to_sleep(&self, span: Duration) {
        self.world
            .note(|| format!("life {} sleeps for {span:?}", self.number));
        let mut until = self.asleep_until.lock().unwrap();
        *until = until.max(Instant::now() + span);
    }

    /// As [`Life::put_to_sleep`], at this very step.
    pub(crate) async fn sleep(&self, span: Duration) {
        self.put_to_sleep(span);
        tokio::task::yield_now().await;
    }

    pub(crate) fn is_asleep(&self) -> bool {
        *self.asleep_until.lock().unwrap() > Instant::now()
    }

    /// Compares the ledger with the model. A life that was killed goes no further.
    pub(crate) async fn audit(&self) {
        if self.dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let verdict = self
            .world
            .oracle()
            .audit(self.number, &self.ledger.totals());
        self.world.judge(verdict);
    }

    /// The node's clock, in nanoseconds since the epoch.
    pub(crate) fn now(&self) -> i64 {
        self.world.time.now() + self.world.plan.skews[self.node]
    }
}

/// Runs what a node does, except while it sleeps.
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
