//! Tracks the lines that each life has received, and checks its ledger.

use event_data_service::diagnosis::LossCause;
use event_data_service::event::Rejection;
use event_data_service::node::LedgerTotals;

use super::super::event::{MINUTE, SECOND};
use super::{Oracle, must};
use crate::simulation::prelude::*;

/// The maximum time by which the timestamp of an event may be in the future.
const MAX_FUTURE: i64 = MINUTE;

#[derive(Debug, Default)]
pub(crate) struct LifeBook {
    received: u64,
    recorded: u64,
    too_old: u64,
    too_far_ahead: u64,
    queue_full: u64,
    /// How often each event has been accepted without being confirmed yet.
    outstanding: BTreeMap<Event, u64>,
    last_stamp: i64,
    accepted: BTreeSet<Event>,
    /// The events of the last confirmation. The ledger counts them unless they were replayed or will be recorded again.
    heard: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) event: Event,
    pub(crate) stamped: bool,
    /// The time of arrival by the node's clock, in nanoseconds since the epoch.
    pub(crate) now: i64,
    pub(crate) max_age: i64,
    pub(crate) queue_events: u64,
    pub(crate) queued: u64,
}

impl LifeBook {
    /// Removes the events of the last confirmation if the ledger has counted them. It must have counted all of them or none.
    fn settle(&mut self, totals: &LedgerTotals) -> Verdict {
        let heard = std::mem::take(&mut self.heard);
        if totals.recorded == self.recorded {
            return Ok(());
        }
        for event in &heard {
            let Some(count) = self.outstanding.get_mut(event) else {
                return Err(format!("{event:?} was counted as recorded twice"));
            };
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(event);
            }
        }
        self.recorded += heard.len() as u64;
        Ok(())
    }
}

impl Oracle {
    pub(crate) fn born(&mut self) -> usize {
        self.lives.push(LifeBook::default());
        self.lives.len() - 1
    }

    /// Checks whether a node was right to accept or reject a line.
    pub(crate) fn arrived(&mut self, life: usize, arrival: &Arrival, taken: bool) -> Verdict {
        let Arrival { mut event, now, .. } = *arrival;
        let book = &mut self.lives[life];
        book.received += 1;
        let full = arrival.queued >= arrival.queue_events;
        if !arrival.stamped && !full {
            book.last_stamp = now.max(book.last_stamp + 1);
            event.at = book.last_stamp;
        }
        let reason = if full {
            Some(&mut book.queue_full)
        } else if event.at < now - arrival.max_age {
            Some(&mut book.too_old)
        } else if event.at > now + MAX_FUTURE {
            Some(&mut book.too_far_ahead)
        } else {
            None
        };
        must!(taken == reason.is_none(), "life {life} took {event:?}: {taken}, at {now}");
        if let Some(count) = reason {
            *count += 1;
        } else {
            book.accepted.insert(event);
            *book.outstanding.entry(event).or_default() += 1;
        }
        Ok(())
    }

    /// Notes that the store has confirmed these events to a recorder. `totals` is the ledger before the confirmation.
    pub(crate) fn confirmed(
        &mut self,
        life: usize,
        events: &[Event],
        totals: &LedgerTotals,
    ) -> Verdict {
        let book = &mut self.lives[life];
        book.settle(totals)?;
        let strange = events.iter().find(|event| !book.accepted.contains(event));
        must!(strange.is_none(), "life {life} recorded {strange:?}, which it did not have");
        book.heard = events.to_vec();
        Ok(())
    }

    pub(crate) fn audit(&mut self, life: usize, totals: &LedgerTotals) -> Verdict {
        let book = &mut self.lives[life];
        book.settle(totals)?;
        let outstanding: u64 = book.outstanding.values().sum();
        let waited = totals.rejected[Rejection::TooOld.index()].checked_sub(book.too_old);
        let at_shutdown = totals.dropped[LossCause::Shutdown as usize];
        let one_too_many = totals.rejected[Rejection::TooManyUsers.index()];
        let rejected: u64 = totals.rejected.iter().sum();
        must!(
            totals.is_balanced()
                && totals.received == book.received
                && totals.recorded == book.recorded
                && totals.rejected[Rejection::TooFarAhead.index()] == book.too_far_ahead
                && totals.dropped[LossCause::QueueFull as usize] == book.queue_full
                && waited.is_some_and(|waited| {
                    rejected == book.too_old + book.too_far_ahead + waited + one_too_many
                        && totals.queued + waited + one_too_many + at_shutdown == outstanding
                }),
            "the ledger of life {life} is {totals:?}; right is {book:?}"
        );
        Ok(())
    }

    /// Checks at the end of a life or of the schedule that all events were recorded, or rejected as too old, or dropped.
    pub(crate) fn ended(
        &mut self,
        life: usize,
        totals: &LedgerTotals,
        (now, max_age): (i64, i64),
    ) -> Verdict {
        self.audit(life, totals)?;
        must!(totals.queued == 0 && totals.queued_bytes == 0, "life {life} ended with {totals:?}");
        let book = &self.lives[life];
        let young = |event: &&Event| (event.minute() + 1) * MINUTE >= now - max_age - SECOND / 1000;
        let young: u64 =
            book.outstanding.iter().filter(|(event, _)| young(event)).map(|(_, count)| count).sum();
        must!(
            young
                <= totals.dropped[LossCause::Shutdown as usize]
                    + totals.rejected[Rejection::TooManyUsers.index()],
            "life {life} lost {young} events that it had accepted: {book:?}"
        );
        Ok(())
    }
}
