//! Requests of this process that wait for the same value: one of them asks the arbiter, the others share what it
//! gets.
//!
//! There is no leader to lose: they take turns. A request whose turn comes takes an answer that is newer than the
//! request, and asks the arbiter otherwise. One that times out passes its turn on.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::{Instant, timeout_at};

use super::computed::{ComputeError, Computed, Origin};
use super::name::Name;

type Outcome = Result<Computed, ComputeError>;

#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Mutex<HashMap<Name, Weak<Slot>>>,
}

/// The last answer, and when it was got. Behind the lock that makes them take turns.
#[derive(Debug, Default)]
struct Slot(tokio::sync::Mutex<Option<(Instant, Outcome)>>);

impl Flights {
    fn slots(&self) -> MutexGuard<'_, HashMap<Name, Weak<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, name: &Name) -> Arc<Slot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(name).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::default();
        slots.insert(name.clone(), Arc::downgrade(&slot));
        slot
    }

    /// What `ask` answers, or what it answered to somebody else meanwhile. Waits for its turn until the deadline.
    pub(super) async fn share(
        &self,
        name: &Name,
        deadline: Instant,
        ask: impl Future<Output = Outcome>,
    ) -> Outcome {
        let came = Instant::now();
        let turn = Turn {
            flights: self,
            name,
            slot: Some(self.slot(name)),
        };
        let Some(slot) = &turn.slot else {
            return ask.await;
        };
        let Ok(mut last) = timeout_at(deadline, slot.0.lock()).await else {
            return Err(ComputeError::TimedOut);
        };
        if let Some((got, outcome)) = &*last
            && *got >= came
        {
            let outcome = outcome.clone();
            return outcome.map(|computed| computed.with_origin(Origin::Awaited));
        }
        let outcome = ask.await;
        // Others may have more patience.
        if outcome != Err(ComputeError::TimedOut) {
            *last = Some((Instant::now(), outcome.clone()));
        }
        outcome
    }
}

/// Takes the slot away with the last that used it.
struct Turn<'a> {
    flights: &'a Flights,
    name: &'a Name,
    slot: Option<Arc<Slot>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.slot = None;
        let mut slots = self.flights.slots();
        if slots
            .get(self.name)
            .is_some_and(|it| it.strong_count() == 0)
        {
            slots.remove(self.name);
        }
    }
}
