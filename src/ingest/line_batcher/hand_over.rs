//! When an open batch is due, and where it goes.

use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

use super::LineBatcher;
use crate::diagnosis::LossCause;
use crate::event::OpenBatch;

/// A batch of so many events is due although it is young.
const BATCH_EVENTS: usize = 16_384;
/// A batch with so many events a series is worth its commands, so it need not grow.
const SERIES_EVENTS: usize = 4096;
/// A batch for the disk of so many bytes is due although it is young.
const OVERFLOW_BYTES: usize = 1024 * 1024;

/// How long an event waits for others in its batch.
#[derive(Debug, Clone, Copy)]
pub struct Linger {
    /// Where its batch has many events a series or may have events of a minute that is over, and where the queue fills.
    pub least: Duration,
    /// Anywhere else: a command costs the store more than an event.
    pub most: Duration,
}

impl Linger {
    /// The age at which a batch is due.
    fn of(&self, batch: &OpenBatch, now_nanos: i64) -> Duration {
        let most = i64::try_from(self.most.as_nanos()).unwrap_or(i64::MAX);
        let until = now_nanos.saturating_add(most).div_euclid(1_000_000);
        let is_over = (batch.earliest()).is_some_and(|minute| minute.end_millis() <= until);
        if is_over || batch.events() >= batch.groups() * SERIES_EVENTS {
            self.least
        } else {
            self.most
        }
    }
}

/// A batch that grows.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) batch: OpenBatch,
    /// When the batch was first seen with events.
    since: Option<Instant>,
}

impl Open {
    fn is_due(
        &mut self,
        is_large: bool,
        age: impl Fn(&OpenBatch) -> Duration,
        now: Instant,
    ) -> bool {
        self.batch.events() > 0 && {
            let since = *self.since.get_or_insert(now);
            is_large || now - since >= age(&self.batch)
        }
    }

    fn take(&mut self) -> OpenBatch {
        self.since = None;
        std::mem::take(&mut self.batch)
    }
}

impl LineBatcher {
    /// Enters what was added into the ledger, and learns from it how much room there is.
    pub fn commit(&mut self) {
        self.totals = self.node.ledger.take_in(&std::mem::take(&mut self.intake));
    }

    /// Hands over the batches that are this old, or large. A batch whose recorder is busy goes on growing.
    pub fn hand_over(&mut self, age: Duration, now: Instant) {
        let (least, most) = (age, age);
        self.hand_over_due(Linger { least, most }, now, i64::MIN);
    }

    /// Hands over the batches that have lingered enough, or are large.
    pub fn hand_over_due(&mut self, linger: Linger, now: Instant, now_nanos: i64) {
        self.commit();
        let Linger { least, most } = linger;
        let fills = self.totals.in_memory() >= self.limits.events / 2
            || self.totals.queued_bytes >= self.limits.bytes / 2;
        let most = if fills { least } else { most };
        let linger = Linger { least, most };
        for (open, recorder) in self.open.iter_mut().zip(&self.recorders) {
            let age = |batch: &OpenBatch| linger.of(batch, now_nanos);
            if !open.is_due(open.batch.events() >= BATCH_EVENTS, age, now) {
                continue;
            }
            match recorder.try_reserve() {
                Ok(permit) => permit.send(open.take().close().into()),
                Err(TrySendError::Full(())) => {}
                Err(TrySendError::Closed(())) => {
                    // A recorder ends before its listeners only when the node aborts.
                    let batch = open.take();
                    self.node.ledger.dropped(LossCause::Shutdown, batch.events());
                    self.node.ledger.released(batch.bytes());
                }
            }
        }
        if let Some(overflow) = &mut self.overflow {
            let open = &mut overflow.open;
            let since = open.since;
            if open.is_due(open.batch.bytes() >= OVERFLOW_BYTES, |_| least, now)
                && let Err(batch) = overflow.spool.try_keep(open.take().close())
            {
                (open.batch, open.since) = (batch.into(), since.or(Some(now)));
            }
        }
    }

    /// The events in open batches for the recorders, and for the disk.
    #[must_use]
    pub fn open_events(&self) -> (usize, usize) {
        let events = self.open.iter().map(|open| open.batch.events());
        let overflow = self.overflow.as_ref();
        let on_disk = overflow.map_or(0, |overflow| overflow.open.batch.events());
        (events.sum(), on_disk)
    }

    /// Gives up the events that the disk did not take.
    pub fn drop_overflow(&mut self) {
        if let Some(overflow) = &mut self.overflow {
            let lost = overflow.open.take().events();
            (self.node.ledger).refused_by_spool(LossCause::SpoolFailed, lost);
        }
    }
}
