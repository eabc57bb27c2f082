//! Computing a value once for all that ask, in any process.
//!
//! The first that asks gets the right to compute; the others wait until it has published, and read without
//! consuming. The right is renewed while the computation goes on. When its process dies it lapses, and one of the
//! waiters gets it. A value that is computed without the right is not published.
//!
//! A computation is a task of its own, see `flights`: it outlives the caller that began it, and its
//! result serves the next. [`ComputeSettings`] bound how many there are and how long they take.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::arbiter::{Arbiter, ArbiterError, Entry};
use super::computation::Work;
use super::computed::{ComputeError, Computed, Failure, Fresh, Origin};
use super::event::Event;
use super::flights::Flights;
use super::name::{Name, Token};
use super::settings::{ComputeSettings, InvalidSetting};

/// Values that are computed once. A clone is the same.
#[derive(Debug, Clone)]
pub struct ComputeOnce {
    flights: Arc<Flights>,
}

impl ComputeOnce {
    /// Refuses settings with a lock that lives as long as the value, or longer.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        settings: ComputeSettings,
    ) -> Result<Self, InvalidSetting> {
        let flights = Flights::new(arbiter, settings.checked()?);
        Ok(Self { flights })
    }

    /// The value of this key: the one that is kept, or the one that somebody computes, or else what `compute` gives: bytes, or a
    /// [`Fresh`] value with a time to live of its own; as an error anything that displays, or a [`Failure`] with one.
    ///
    /// `patience` bounds how long this caller waits. What it began goes on without it, and so it does when the future is
    /// dropped. `compute` runs as a task of the caller's runtime and gets the token of its right, for places that it writes
    /// to. It is dropped half-way when the right is lost, and may then be called again. Its panic is
    /// [`ComputeError::Failed`]. While it blocks its thread the right is renewed all the same, but on a runtime of one thread
    /// nobody is answered: use [`get_blocking`](Self::get_blocking).
    pub async fn get<C, F, V, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
    ) -> Result<Computed, ComputeError>
    where
        C: Fn(Token) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        self.get_unless(key, patience, compute, |_| false).await
    }

    /// The same for a computation that blocks its thread: it runs where [`tokio::task::spawn_blocking`] has it. It
    /// cannot be stopped half-way: one that lost its right, or takes too long, ends by itself, and what it gives is dropped.
    pub async fn get_blocking<C, V, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
    ) -> Result<Computed, ComputeError>
    where
        C: Fn(Token) -> Result<V, E> + Send + Sync + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::new(compute);
        let work = || Work::blocking(&compute);
        self.find(key, patience, work, |_| false).await
    }

    /// The value of this key, if there is one. Computes nothing, waits for nobody and leaves nothing behind.
    pub async fn peek(&self, key: &str) -> Result<Option<Computed>, ComputeError> {
        let entry = self.flights.arbiter.peek(&Name::of_value(key)?).await?;
        Ok(entry.map(|entry| Computed::read(entry, Origin::Kept)))
    }

    /// Removes the value of this key, or the error. What was computed until now is not given to anybody who asks from now
    /// on: a computation that is under way loses its right, and is made again for those that wait. True when there was something.
    pub async fn invalidate(&self, key: &str) -> Result<bool, ComputeError> {
        Ok(self.flights.arbiter.invalidate(&Name::of_value(key)?).await?)
    }

    /// The same as [`get`](Self::get), but one that finds a value `outdated` begins to compute it again, unless somebody does so
    /// already. Nobody waits for that: this caller, too, gets the value as it is, and keeps it when the computation fails.
    pub async fn get_unless<C, F, V, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
        outdated: impl Fn(&Entry) -> bool,
    ) -> Result<Computed, ComputeError>
    where
        C: Fn(Token) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::new(compute);
        self.find(key, patience, || Work::new(&compute), outdated).await
    }

    pub(super) async fn find(
        &self,
        key: &str,
        patience: Duration,
        work: impl Fn() -> Work,
        outdated: impl Fn(&Entry) -> bool,
    ) -> Result<Computed, ComputeError> {
        let (name, began) = (Name::of_value(key)?, Instant::now());
        let arbiter = &self.flights.arbiter;
        let found = |entry: Entry, origin| {
            let computed = Computed::read(entry, origin);
            let age = computed.age();
            arbiter.observe(&name, &Event::Found { age });
            Ok(computed)
        };
        loop {
            match arbiter.peek(&name).await {
                Ok(Some(entry)) if outdated(&entry) => {
                    // Nobody waits for it.
                    let seat = self.flights.board(&name, Some(entry.token), work);
                    let is_first = seat.is_first;
                    return found(entry, if is_first { Origin::Refreshing } else { Origin::Kept });
                }
                Ok(Some(entry)) => return found(entry, Origin::Kept),
                Ok(None) | Err(ArbiterError::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let seat = self.flights.board(&name, None, &work);
            if let Some(outcome) = seat.wait(began + patience).await {
                let waited = began.elapsed();
                let event = match outcome {
                    Ok(_) | Err(ComputeError::Failed(_)) => Event::Waited { waited },
                    Err(_) => Event::GaveUp { waited },
                };
                arbiter.observe(&name, &event);
                return outcome;
            }
        }
    }
}
