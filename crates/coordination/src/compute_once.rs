//! Computing a value once for all callers, in any process.
//!
//! The first that asks gets the right to compute; the others wait until it has published, and read without consuming. The
//! right is renewed during the computation. When its process dies it lapses, and one of the waiters gets it. A value that is
//! computed without the right is not published.
//!
//! A computation is a task, see `flight`: it outlives the caller that began it, and its result serves the next.
//! [`ComputeSettings`] bound how many there are and how long they take.
//!
//! With [`beta`](ComputeSettings::beta) a hot value is computed again before it expires: the value is kept with its cost
//! and its expiry, each read draws a number and decides by [`xfetch`](super::xfetch) whether it begins to compute again, and one
//! does so at a time. All of them read on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::arbiter::{Arbiter, ArbiterError, Entry};
use super::computed::{ComputeError, Computed, Failure, Fresh, Origin};
use super::event::Event;
use super::flight::{Flights, Work};
use super::name::{Name, Token};
use super::settings::{ComputeSettings, InvalidSetting};
use super::xfetch::{Chance, is_due};

/// Values that are computed once. A clone is the same.
#[derive(Debug, Clone)]
pub struct ComputeOnce {
    flights: Arc<Flights>,
}

impl ComputeOnce {
    /// Refuses settings out of bounds, and with a lock that lives as long as the value, or longer.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        settings: ComputeSettings,
    ) -> Result<Self, InvalidSetting> {
        Ok(Self { flights: Flights::new(arbiter, settings.checked()?) })
    }

    /// Returns the value of this key: the kept one, or that of a running computation, or else the output of `compute`: bytes, or a
    /// [`Fresh`] value with its own time to live; as an error anything that displays, or a [`Failure`] with one.
    ///
    /// A value that is due to be refreshed is returned as it is, and computed again in the background unless a computation runs
    /// already. It stays when that fails.
    ///
    /// `patience` bounds how long this caller waits. The computation outlives the caller, also when the future is dropped.
    /// `compute` runs as a task of the caller's runtime and gets the token of its right, for places that it writes to. It is
    /// dropped half-way when the right is lost, and may then be called again. Its panic is [`ComputeError::Failed`]. While it
    /// blocks its thread the right is still renewed, but on a runtime of one thread no caller is answered: use
    /// [`get_blocking`](Self::get_blocking).
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
        let compute = Arc::new(compute);
        let work: Work = Arc::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            Box::pin(async move {
                let _permit = permit;
                compute(token).await.map(Into::into).map_err(Into::into)
            })
        });
        self.find(key, patience, work).await
    }

    /// Returns the value of this key like [`get`](Self::get), by a computation that blocks its thread and runs by
    /// [`spawn_blocking`]. It cannot be stopped half-way: when it loses its right, or takes too long, it runs to its end, and its
    /// output is dropped.
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
        let work: Work = Arc::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            let blocking = spawn_blocking(move || {
                let _permit = permit;
                compute(token).map(Into::into).map_err(Into::into)
            });
            Box::pin(async move {
                blocking.await.unwrap_or_else(|ended| match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(ended) => Err(ended.into()),
                })
            })
        });
        self.find(key, patience, work).await
    }

    /// Returns the value of this key, if there is one. Computes nothing, does not wait and leaves no key behind.
    pub async fn peek(&self, key: &str) -> Result<Option<Computed>, ComputeError> {
        let entry = self.flights.arbiter.peek(&Name::of_value(key)?).await?;
        Ok(entry.map(|entry| Computed { entry, origin: Origin::Kept }))
    }

    /// Removes the value of this key, or the error. Later callers get no value of a computation that began before: a running one
    /// loses its right, and starts again for its waiters. True when there was something.
    pub async fn invalidate(&self, key: &str) -> Result<bool, ComputeError> {
        Ok(self.flights.arbiter.invalidate(&Name::of_value(key)?).await?)
    }

    async fn find(
        &self,
        key: &str,
        patience: Duration,
        work: Work,
    ) -> Result<Computed, ComputeError> {
        let (name, began) = (Name::of_value(key)?, Instant::now());
        let arbiter = &self.flights.arbiter;
        loop {
            match arbiter.peek(&name).await {
                Ok(Some(entry)) => {
                    let mut origin = Origin::Kept;
                    // No caller waits for it.
                    if self.is_to_be_refreshed(&entry)
                        && self.flights.board(&name, Some(entry.token), &work).is_first
                    {
                        origin = Origin::Refreshing;
                    }
                    let computed = Computed { entry, origin };
                    arbiter.observe(&name, &Event::Found { age: computed.age() });
                    return Ok(computed);
                }
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

    /// Draws a number.
    fn is_to_be_refreshed(&self, entry: &Entry) -> bool {
        let chance = Chance::draw(&mut rand::rng());
        let beta = self.flights.settings.beta;
        is_due(entry.now_us, entry.expires_us, entry.cost, beta, chance)
    }
}
