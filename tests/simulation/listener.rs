//! Replaces the listener, whose socket does not work in virtual time, and passes lines to the real batcher.

use std::collections::VecDeque;

use event_data_service::event::{LineLimits, LineRules, Precision};
use event_data_service::ingest::{self, BatcherSettings, LineBatcher, QueueLimits};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::node::window;
use super::oracle::Arrival;
use crate::simulation::prelude::*;

/// The time a stopping listener waits before it tries again to send a batch.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Reads lines until the life is stopped, and then hands over the open batches.
pub(crate) async fn listen(
    world: &World,
    life: &Life,
    inbox: &Mutex<VecDeque<Delivery>>,
    recorders: Vec<mpsc::Sender<ingest::Delivery>>,
) {
    let mut intake = Intake {
        batcher: LineBatcher::new(
            &batcher_settings(world),
            Arc::default(),
            Arc::clone(&life.shared),
            recorders,
        ),
        life,
        world,
        queued: 0,
    };
    let mut sweep: Option<Instant> = None;
    while !life.stop.is_cancelled() {
        let next = inbox.lock().unwrap().front().map(|next| next.after);
        let next = next.map(|after| world.time.instant(after));
        let far = Instant::now() + Duration::from_secs(86_400);
        let wake = next.unwrap_or(far).min(sweep.unwrap_or(far));
        tokio::select! {
            biased;
            () = life.stop.cancelled() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Some(delivery) = due(world, inbox) {
            intake.take(&delivery);
        }
        if sweep.is_some_and(|at| at <= Instant::now()) {
            sweep = None;
            intake.hand_over();
        }
        if sweep.is_none() && intake.has_open() {
            sweep = Some(Instant::now() + world.plan.linger);
        }
    }
    intake.hand_over();
    while intake.has_open() {
        tokio::time::sleep(BUSY_PAUSE).await;
        intake.hand_over();
    }
}

fn due(world: &World, inbox: &Mutex<VecDeque<Delivery>>) -> Option<Delivery> {
    let now = world.time.after();
    let mut inbox = inbox.lock().unwrap();
    let due = inbox.front().is_some_and(|next| next.after <= now);
    if due { inbox.pop_front() } else { None }
}

struct Intake<'a> {
    batcher: LineBatcher,
    life: &'a Life,
    world: &'a World,
    /// The number of events queued on the node after the last commit.
    queued: u64,
}

impl Intake<'_> {
    fn take(&mut self, delivery: &Delivery) {
        let now = self.life.shared.clock.now_nanos();
        let before = self.life.shared.ledger.totals().queued;
        self.batcher.add(delivery.line().as_str().into(), usize::MAX, now);
        self.batcher.commit();
        let after = self.life.shared.ledger.totals().queued;
        let arrival = Arrival {
            event: delivery.event,
            stamped: delivery.stamped,
            now,
            max_age: i64::try_from(self.world.plan.max_age.as_nanos()).unwrap(),
            queue_events: self.world.plan.queue_events,
            queued: self.queued,
        };
        self.queued = after;
        let number = self.life.number;
        let taken = after > before;
        self.world.note(|| {
            format!("life {number} {} {delivery:?}", if taken { "takes" } else { "refuses" })
        });
        let verdict = self.world.oracle().arrived(number, &arrival, taken);
        self.world.judge(verdict);
    }

    fn has_open(&self) -> bool {
        self.batcher.open_events() != (0, 0)
    }

    fn hand_over(&mut self) {
        self.batcher.hand_over(Duration::ZERO, Instant::now());
        self.queued = self.life.shared.ledger.totals().queued;
    }
}

fn batcher_settings(world: &World) -> BatcherSettings {
    BatcherSettings {
        rules: LineRules {
            user_field: "value".to_owned(),
            precision: Precision::Nanoseconds,
            statsd: false,
            measurement_tag: None,
            limits: LineLimits { line: 1024, series: 256, tag: 64, user: 64 },
        },
        window: window(world.plan.max_age),
        partitions: world.partitions(),
        limits: QueueLimits { events: world.plan.queue_events, bytes: u64::MAX },
    }
}
