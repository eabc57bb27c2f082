//! Computing a hot value again before it expires, so that nobody who reads it waits.
//!
//! The value lies together with its cost and its expiry. Each read draws a number and decides by
//! [`xfetch`](super::xfetch) whether it is the one that computes again; [`ComputeOnce`] lets only one do so at a
//! time. The others go on reading the value as it is.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::arbiter::Entry;
use super::computation::Work;
use super::compute_once::ComputeOnce;
use super::computed::{ComputeError, Computed, Failure, Fresh};
use super::name::Token;
use super::settings::InvalidSetting;
use super::xfetch::{Chance, is_due};

/// Values that are refreshed early.
#[derive(Debug)]
pub struct EarlyRefresh {
    once: ComputeOnce,
    beta: f64,
}

impl EarlyRefresh {
    /// With β = 1 a refresh begins as early as is best when costs are steady; greater is earlier; 0 never refreshes
    /// early. Its error says what β must be.
    pub fn new(once: ComputeOnce, beta: f64) -> Result<Self, InvalidSetting> {
        if !(beta.is_finite() && beta >= 0.0) {
            return Err(InvalidSetting::Beta(beta));
        }
        Ok(Self { once, beta })
    }

    /// The value of this key, as [`ComputeOnce::get`] gives it. A read that finds it due begins to compute it
    /// again, and gets the value as it is, as all others do until there is a newer one.
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
        let outdated = |entry: &Entry| is_to_be_refreshed(entry, self.beta);
        self.once.get_unless(key, patience, compute, outdated).await
    }

    /// The same for a computation that blocks its thread, as [`ComputeOnce::get_blocking`] runs it.
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
        let outdated = |entry: &Entry| is_to_be_refreshed(entry, self.beta);
        self.once.find(key, patience, work, outdated).await
    }
}

/// Whether a read that found this value is the one that computes it again. Draws a number.
#[must_use]
pub fn is_to_be_refreshed(entry: &Entry, beta: f64) -> bool {
    let chance = Chance::draw(&mut rand::rng());
    is_due(entry.now_us, entry.expires_us, entry.cost, beta, chance)
}
