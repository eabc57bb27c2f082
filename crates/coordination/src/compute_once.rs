//! Computes a value once for all callers in all processes: the first caller gets the lease to compute the value, and the
//! others wait for the result. If the lease is lost during the computation, its result is not published. A computation runs
//! in its own task (see `flight`) and outlives its caller. With [`beta`](ComputeSettings::beta), a frequently read value is
//! recomputed before it expires, so that its readers do not have to wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::arbiter::{Answer, Arbiter, Entry, Error, Name, Token, micros};
use super::computed::{Computed, Failure, Fresh, Origin};
use super::flight::{Flights, Work};
use super::settings::{ComputeSettings, InvalidSetting};
use super::xfetch::{draw, is_due};

/// Computes each value once for all callers in all processes that share an arbiter. Clones share their settings and limits.
#[derive(Debug, Clone)]
pub struct ComputeOnce {
    flights: Arc<Flights>,
}

impl ComputeOnce {
    /// Returns an instance for this arbiter. Fails if a setting is out of bounds, or `lock_ttl` is not below `value_ttl`.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        settings: ComputeSettings,
    ) -> Result<Self, InvalidSetting> {
        Ok(Self { flights: Flights::new(arbiter, settings.checked()?) })
    }

    /// Returns the value for this key: the stored value, the result of a running computation, or the output of `compute`. A
    /// stored value that is due for an early refresh is returned immediately and recomputed in the background.
    ///
    /// `compute` returns bytes or [`Fresh`] or, if it fails, a [`Failure`] or anything that is `Display`. It receives the
    /// token of its lease and runs as a task on the caller's runtime. If the lease is lost, the task is dropped midway, and
    /// `compute` may be called again. If `compute` panics, its callers get [`Error::Failed`]. If `compute` blocks its
    /// thread, use [`get_blocking`](Self::get_blocking) instead. `patience` limits the time the caller waits.
    pub async fn get<C, F, V, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
    ) -> Answer<Computed>
    where
        C: Fn(Token) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::new(compute);
        let work: Work = Arc::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            tokio::spawn(async move {
                let _permit = permit;
                compute(token).await.map(Into::into).map_err(Into::into)
            })
        });
        self.find(key, patience, work).await
    }

    /// Like [`get`](Self::get), but runs `compute` with [`spawn_blocking`]. `compute` always runs to completion.
    pub async fn get_blocking<C, V, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
    ) -> Answer<Computed>
    where
        C: Fn(Token) -> Result<V, E> + Send + Sync + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::new(compute);
        let work: Work = Arc::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            spawn_blocking(move || {
                let _permit = permit;
                compute(token).map(Into::into).map_err(Into::into)
            })
        });
        self.find(key, patience, work).await
    }

    /// Returns the stored value for this key, if there is one. Neither computes the value nor waits for a computation.
    pub async fn peek(&self, key: &str) -> Answer<Option<Computed>> {
        let entry = self.flights.arbiter.peek(&Name::of_value(key)?).await?;
        Ok(entry.map(|entry| Computed { entry, origin: Origin::Kept }))
    }

    /// Removes the stored value or error for this key. If the value is being computed, the result is discarded and the
    /// computation restarted for its callers. Returns whether there was a value, an error or a computation.
    pub async fn invalidate(&self, key: &str) -> Answer<bool> {
        self.flights.arbiter.invalidate(&Name::of_value(key)?).await
    }

    async fn find(&self, key: &str, patience: Duration, work: Work) -> Answer<Computed> {
        let (name, began) = (Name::of_value(key)?, Instant::now());
        loop {
            match self.flights.arbiter.peek(&name).await {
                Ok(Some(entry)) => {
                    let mut origin = Origin::Kept;
                    let Entry { now_us, expires_us, cost, token, .. } = entry;
                    let beta = self.flights.settings.beta;
                    if is_due(now_us, expires_us, cost, beta, draw(&mut rand::rng()))
                        && self.flights.board(&name, Some(token), &work).is_first
                    {
                        origin = Origin::Refreshing;
                    }
                    let computed = Computed { entry, origin };
                    tracing::debug!(
                        name = name.as_str(),
                        age_us = micros(computed.age()),
                        "found a value"
                    );
                    return Ok(computed);
                }
                Ok(None) | Err(Error::Unavailable(_)) => {}
                Err(error) => return Err(error),
            }
            let seat = self.flights.board(&name, None, &work);
            if let Some(outcome) = seat.wait(began + patience).await {
                let (name, waited_us) = (name.as_str(), micros(began.elapsed()));
                let error = outcome.as_ref().err().map(tracing::field::display);
                tracing::debug!(name, waited_us, error, "waited for a value");
                return outcome;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_it_was_written() {
        let list = ["a", "b\"ü", ""];
        let value = Fresh::json(&list).unwrap().output.into();
        let (token, cost) = (Token(1), Duration::ZERO);
        let entry = Entry { value, token, cost, written_us: 0, expires_us: 0, now_us: 0 };
        let computed = Computed { entry, origin: Origin::Kept };
        assert_eq!(computed.json::<Vec<String>>().unwrap(), list);
        assert!(computed.json::<u64>().is_err());
    }
}
