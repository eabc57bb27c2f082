//! Computing a value once for all that ask, in any process.
//!
//! The first that asks gets the right to compute; the others wait until it has published, and read without
//! consuming. The right is renewed while the computation goes on. When its process dies it lapses, and one of the
//! waiters gets it. A value that is computed without the right is not published.

use std::fmt::Display;
use std::future::Future;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry};
use super::computed::{ComputeError, Computed, Origin};
use super::flights::Flights;
use super::lease::{Attempt, Lease};
use super::name::{Name, Token};
use super::settings::{ComputeSettings, InvalidSetting};

/// A waiter asks again after this long at the latest, in case it missed a wake-up.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the arbiter did not answer.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest message of an error that is passed on, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Values that are computed once.
#[derive(Debug)]
pub struct ComputeOnce {
    arbiter: Arc<dyn Arbiter>,
    settings: ComputeSettings,
    flights: Flights,
}

impl ComputeOnce {
    /// Refuses settings with a lock that lives as long as the value, or longer.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        settings: ComputeSettings,
    ) -> Result<Self, InvalidSetting> {
        Ok(Self {
            arbiter,
            settings: settings.checked()?,
            flights: Flights::default(),
        })
    }

    /// The value of this key: the one that is kept, or the one that somebody computes, or else what `compute` gives.
    ///
    /// `patience` bounds the waiting for others, not the caller's own computation. `compute` gets the token of its
    /// right, for places that it writes to. It is dropped half-way when the right is lost, and may then be called
    /// again.
    pub async fn get<C, F, E>(
        &self,
        key: &str,
        patience: Duration,
        compute: C,
    ) -> Result<Computed, ComputeError>
    where
        C: FnMut(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        self.get_unless(key, patience, compute, |_| false).await
    }

    /// The value of this key, if there is one. Computes nothing, waits for nobody and leaves nothing behind.
    pub async fn peek(&self, key: &str) -> Result<Option<Computed>, ComputeError> {
        let entry = self.arbiter.peek(&Name::of_value(key)?).await?;
        Ok(entry.map(|entry| Computed::read(entry, Origin::Kept)))
    }

    /// The same as [`get`](Self::get), but one that finds a value `outdated` computes it again, unless somebody else does so already. The
    /// others take the value as it is, and so does the caller whose computation fails.
    pub async fn get_unless<C, F, E>(
        &self,
        key: &str,
        patience: Duration,
        mut compute: C,
        outdated: impl FnOnce(&Entry) -> bool,
    ) -> Result<Computed, ComputeError>
    where
        C: FnMut(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        let name = Name::of_value(key)?;
        let deadline = Instant::now() + patience;
        match self.begin(&name, None).await {
            Ok(Begun::Value(entry)) => {
                if outdated(&entry) {
                    return Ok(self.refreshed(&name, entry, compute).await);
                }
                return Ok(Computed::read(entry, Origin::Kept));
            }
            Ok(Begun::Failed(message)) => return Err(ComputeError::Failed(message)),
            Ok(Begun::Granted(lease)) => {
                if let Break(outcome) = self.compute(lease, &mut compute).await {
                    return outcome;
                }
            }
            Ok(Begun::Busy(_)) | Err(ArbiterError::Unavailable(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let waiting = self.wait(&name, deadline, compute);
        self.flights.share(&name, deadline, waiting).await
    }

    /// Waits for the value of somebody else, or computes it instead.
    async fn wait<C, F, E>(
        &self,
        name: &Name,
        deadline: Instant,
        mut compute: C,
    ) -> Result<Computed, ComputeError>
    where
        C: FnMut(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        let mut listener = self.arbiter.listen(name, None);
        loop {
            let wait = match self.begin(name, None).await {
                Ok(Begun::Value(entry)) => {
                    return Ok(Computed::read(entry, Origin::Awaited));
                }
                Ok(Begun::Failed(message)) => return Err(ComputeError::Failed(message)),
                Ok(Begun::Granted(lease)) => {
                    if let Break(outcome) = self.compute(lease, &mut compute).await {
                        return outcome;
                    }
                    Duration::ZERO
                }
                Ok(Begun::Busy(wait)) => wait,
                Err(ArbiterError::Unavailable(message)) => {
                    if Instant::now() + PAUSE >= deadline {
                        return Err(ArbiterError::Unavailable(message).into());
                    }
                    sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if Instant::now() >= deadline {
                return Err(ComputeError::TimedOut);
            }
            // Rounded up, so that the right has lapsed when it is asked for again.
            let again = Instant::now() + wait.min(ASKED_AGAIN) + Duration::from_millis(1);
            let _ = timeout_at(again.min(deadline), listener.woken()).await;
        }
    }

    /// A newer value than this one if it can be had at once or computed, otherwise this one.
    async fn refreshed<C, F, E>(&self, name: &Name, entry: Entry, mut compute: C) -> Computed
    where
        C: FnMut(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        match self.begin(name, Some(entry.token)).await {
            Ok(Begun::Value(newer)) => Computed::read(newer, Origin::Kept),
            Ok(Begun::Granted(lease)) => match self.compute(lease, &mut compute).await {
                Break(Ok(newer)) => newer.with_origin(Origin::Refreshed),
                Break(Err(error)) => {
                    tracing::warn!(name = name.as_str(), %error, "a value was not refreshed");
                    Computed::read(entry, Origin::Kept)
                }
                Continue(()) => Computed::read(entry, Origin::Kept),
            },
            _ => Computed::read(entry, Origin::Kept),
        }
    }

    /// Asks once.
    async fn begin(&self, name: &Name, outdated: Option<Token>) -> Result<Begun, ArbiterError> {
        let mut attempt = Attempt::new(&self.arbiter, name);
        let asked = Instant::now();
        let ttl = self.settings.lock_ttl;
        let asking = self.arbiter.begin(name, &attempt.holder, ttl, outdated);
        let begun = match asking.await? {
            Beginning::Granted(token) => {
                let lease = Lease::new(attempt, token, ttl, asked);
                return Ok(Begun::Granted(lease));
            }
            Beginning::Value(entry) => Begun::Value(entry),
            Beginning::Failed(message) => Begun::Failed(message),
            Beginning::Busy(wait) => Begun::Busy(wait),
        };
        attempt.settle();
        Ok(begun)
    }

    /// Computes and publishes. Nothing when the right was lost on the way: somebody else computes.
    async fn compute<C, F, E>(
        &self,
        mut lease: Lease,
        compute: &mut C,
    ) -> ControlFlow<Result<Computed, ComputeError>>
    where
        C: FnMut(Token) -> F,
        F: Future<Output = Result<Vec<u8>, E>>,
        E: Display,
    {
        let began = Instant::now();
        let outcome = tokio::select! {
            biased;
            () = lease.lost().cancelled() => return Continue(()),
            outcome = compute(lease.token()) => outcome.map_err(|error| error.to_string()),
        };
        let cost = began.elapsed();
        let most = self.settings.value_bytes_max;
        let outcome = outcome.and_then(|value| match value.len() {
            bytes if bytes > most => Err(format!("a value of {bytes} bytes is over {most}")),
            _ => Ok(value),
        });
        match self.publish(&lease, &outcome, cost).await {
            Ok(true) => lease.settle(),
            Ok(false) => return Continue(()),
            Err(error) => return Break(Err(error.into())),
        }
        Break(match outcome {
            Ok(value) => Ok(Computed::fresh(
                value,
                lease.token(),
                cost,
                self.settings.value_ttl,
            )),
            Err(message) => Err(ComputeError::Failed(shortened(&message).to_owned())),
        })
    }

    /// Publishes a value or an error, again and again until the arbiter has answered or the right is lost.
    async fn publish(
        &self,
        lease: &Lease,
        outcome: &Result<Vec<u8>, String>,
        cost: Duration,
    ) -> Result<bool, ArbiterError> {
        let (name, token) = (lease.name(), lease.token());
        let ComputeSettings {
            value_ttl,
            error_ttl,
            ..
        } = self.settings;
        loop {
            let published = match outcome {
                Ok(value) => {
                    self.arbiter
                        .publish(name, token, value, cost, value_ttl)
                        .await
                }
                Err(message) => {
                    let message = shortened(message);
                    self.arbiter.fail(name, token, message, error_ttl).await
                }
            };
            match published {
                Err(ArbiterError::Unavailable(_)) if !lease.lost().is_cancelled() => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}

/// The arbiter's answer, the right to compute being kept.
enum Begun {
    Value(Entry),
    Failed(String),
    Granted(Lease),
    Busy(Duration),
}

fn shortened(message: &str) -> &str {
    let fits = |end: &usize| message.is_char_boundary(*end);
    let end = (0..=message.len().min(MESSAGE_BYTES_MAX)).rev().find(fits);
    &message[..end.unwrap_or_default()]
}
