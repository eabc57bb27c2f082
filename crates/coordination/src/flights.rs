//! A flight brings one value to all callers of this process that wait for it.
//!
//! It is a task of its own: it asks for the right to compute, computes or waits for another process, and publishes. Callers
//! only wait for it, each as long as it likes, and what a flight brings never depends on their patience. A flight
//! that computes goes on when its callers are gone; one that waits for others ends with its last caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::arbiter::{Arbiter, ArbiterError, Beginning};
use super::computation::Work;
use super::computed::{ComputeError, Computed, Fresh, Origin};
use super::event::Event;
use super::lease::{ASKED_AGAIN, Attempt, Lease, PAUSE};
use super::name::{Name, Token};
use super::settings::{ComputeSettings, bounded_ttl};
use super::wakes::Listener;

pub(super) type Outcome = Result<Computed, ComputeError>;

/// What is known of a flight.
#[derive(Debug, Default)]
struct News {
    /// How often the arbiter was asked. A caller that comes later must not take the answer: it may be older than the caller.
    asked: u64,
    /// Why the arbiter did not answer the last time.
    obstacle: Option<ArbiterError>,
    /// What the flight brought.
    outcome: Option<Outcome>,
}

/// All flights of a process, and what they have in common.
#[derive(Debug)]
pub(super) struct Flights {
    pub(super) arbiter: Arc<dyn Arbiter>,
    pub(super) settings: ComputeSettings,
    /// One for each computation that may run.
    permits: Arc<Semaphore>,
    under_way: Mutex<HashMap<Name, watch::Sender<News>>>,
}

impl Flights {
    pub(super) fn new(arbiter: Arc<dyn Arbiter>, settings: ComputeSettings) -> Arc<Self> {
        Arc::new(Self {
            arbiter,
            settings,
            permits: Arc::new(Semaphore::new(settings.computations_max)),
            under_way: Mutex::default(),
        })
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Name, watch::Sender<News>>> {
        // Nothing here panics half-way.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat in the flight of this name, which begins with `work` if there is none. A flight to refresh the value
    /// with the token `outdated` waits for nobody.
    pub(super) fn board(
        self: &Arc<Self>,
        name: &Name,
        outdated: Option<Token>,
        work: impl FnOnce() -> Work,
    ) -> Seat {
        let mut under_way = self.under_way();
        let is_first = !under_way.contains_key(name);
        let news = under_way.entry(name.clone()).or_default().clone();
        let seat = Seat { asked: news.borrow().asked, news: news.subscribe(), is_first };
        // A runtime that shuts down drops what it is given at once, and a flight that is dropped takes the lock.
        drop(under_way);
        if is_first {
            let flight = Flight {
                flights: Arc::clone(self),
                name: name.clone(),
                news,
                work: work(),
                outdated,
            };
            tokio::spawn(flight.run());
        }
        seat
    }
}

/// A caller's place in a flight.
#[derive(Debug)]
pub(super) struct Seat {
    asked: u64,
    news: watch::Receiver<News>,
    /// Whether the flight began with this caller.
    pub(super) is_first: bool,
}

impl Seat {
    /// What the flight brings; `None` when it ends with nothing, or with nothing newer than the caller.
    pub(super) async fn wait(mut self, deadline: Instant) -> Option<Outcome> {
        let landing = self.news.wait_for(|news| news.outcome.is_some());
        if let Ok(landed) = timeout_at(deadline, landing).await {
            let news = landed.ok()?;
            let outcome = news.outcome.clone().filter(|_| news.asked > self.asked)?;
            return Some(outcome.map(|computed| match computed.origin() {
                Origin::Computed if !self.is_first => computed.with_origin(Origin::Awaited),
                _ => computed,
            }));
        }
        let obstacle = self.news.borrow().obstacle.clone();
        Some(Err(obstacle.map_or(ComputeError::TimedOut, ComputeError::Arbiter)))
    }
}

/// See the module.
struct Flight {
    flights: Arc<Flights>,
    name: Name,
    news: watch::Sender<News>,
    work: Work,
    outdated: Option<Token>,
}

/// The arbiter's answer, the right to compute being kept.
enum Begun {
    Outcome(Outcome),
    Granted(Lease),
    Busy(Duration),
}

impl Flight {
    async fn run(self) {
        let outcome = self.fly().await;
        if let (Some(Err(error)), Some(_)) = (&outcome, self.outdated) {
            let name = self.name.as_str();
            tracing::warn!(name, %error, "a value was not refreshed, and stays as it is");
        }
        let news = self.news.clone();
        // From now on nobody boards.
        drop(self);
        if outcome.is_some() {
            news.send_modify(|news| news.outcome = outcome);
        }
    }

    async fn fly(&self) -> Option<Outcome> {
        let (mut permit, mut listener) = (None, None);
        loop {
            let permits = &self.flights.permits;
            permit = permit.or_else(|| Arc::clone(permits).try_acquire_owned().ok());
            let wait = match self.ask(permit.is_some()).await {
                Ok(Begun::Outcome(outcome)) => return Some(outcome),
                Ok(Begun::Granted(lease)) => match self.compute(lease, permit.take()?).await {
                    None if self.outdated.is_none() => continue,
                    outcome => return outcome,
                },
                _ if self.outdated.is_some() => return None,
                Ok(Begun::Busy(wait)) => {
                    self.news.send_modify(|news| news.obstacle = None);
                    wait
                }
                Err(error @ ArbiterError::Unavailable(_)) => {
                    self.news.send_modify(|news| news.obstacle = Some(error));
                    PAUSE
                }
                Err(error) => return Some(Err(error.into())),
            };
            permit = self.wait(wait, &mut listener, permit.is_some()).await;
            if self.is_unwanted() {
                return None;
            }
        }
    }

    /// Asks once: for the right to compute, or without a permit only for the value.
    async fn ask(&self, may_compute: bool) -> Result<Begun, ArbiterError> {
        self.news.send_modify(|news| news.asked += 1);
        let arbiter = &self.flights.arbiter;
        let read = |entry| Begun::Outcome(Ok(Computed::read(entry, Origin::Awaited)));
        if !may_compute {
            let entry = arbiter.peek(&self.name).await?;
            let entry = entry.filter(|entry| Some(entry.token) != self.outdated);
            return Ok(entry.map_or(Begun::Busy(ASKED_AGAIN), read));
        }
        let mut attempt = Attempt::new(arbiter, &self.name);
        let asked = Instant::now();
        let ttl = self.flights.settings.lock_ttl;
        let begun = arbiter.begin(&self.name, &attempt.holder, ttl, self.outdated);
        let begun = match begun.await? {
            Beginning::Granted(token) => {
                let granted = attempt.granted(token, ttl, asked).map(Begun::Granted);
                return Ok(granted.unwrap_or(Begun::Busy(Duration::ZERO)));
            }
            Beginning::Value(entry) => read(entry),
            Beginning::Failed(message) => Begun::Outcome(Err(ComputeError::Failed(message))),
            Beginning::Busy(wait) => Begun::Busy(wait),
        };
        attempt.settle();
        Ok(begun)
    }

    /// Waits until it is worth to ask again: for so long, or until it is woken, has a permit, or is not wanted any more.
    async fn wait(
        &self,
        wait: Duration,
        listener: &mut Option<Listener>,
        had_permit: bool,
    ) -> Option<OwnedSemaphorePermit> {
        let listener =
            listener.get_or_insert_with(|| self.flights.arbiter.listen(&self.name, None));
        // Rounded up, so that the right has lapsed when it is asked for again.
        let wait = wait.min(ASKED_AGAIN) + Duration::from_millis(1);
        tokio::select! {
            () = listener.woken() => None,
            () = sleep(wait) => None,
            () = self.news.closed() => None,
            permit = Arc::clone(&self.flights.permits).acquire_owned(), if !had_permit => permit.ok(),
        }
    }

    /// Whether nobody waits for it. If so nobody boards any more.
    fn is_unwanted(&self) -> bool {
        let mut under_way = self.flights.under_way();
        let is_unwanted = self.news.receiver_count() == 0;
        if is_unwanted {
            under_way.remove(&self.name);
        }
        is_unwanted
    }

    /// Computes and publishes. `None` when the right was lost on the way.
    async fn compute(&self, mut lease: Lease, permit: OwnedSemaphorePermit) -> Option<Outcome> {
        let settings = &self.flights.settings;
        let observe = |event| self.flights.arbiter.observe(&self.name, &event);
        observe(Event::Computing);
        let began = Instant::now();
        let output = tokio::select! {
            biased;
            () = lease.lost().cancelled() => return None,
            output = self.work.run(lease.token(), permit, settings) => output?,
        };
        let cost = began.elapsed();
        let ttl = bounded_ttl(match &output {
            Ok(fresh) => fresh.ttl.unwrap_or(settings.value_ttl),
            Err(failure) => failure.ttl.unwrap_or(settings.error_ttl),
        });
        let token = lease.token();
        let published = loop {
            self.news.send_modify(|news| news.asked += 1);
            let arbiter = &self.flights.arbiter;
            let publishing = match &output {
                Ok(fresh) => arbiter.publish(&self.name, token, &fresh.value, cost, ttl),
                Err(failure) => arbiter.fail(&self.name, token, &failure.message, ttl),
            };
            match publishing.await {
                Err(ArbiterError::Unavailable(_)) if !lease.lost().is_cancelled() => {
                    sleep(PAUSE).await;
                }
                published => break published,
            }
        };
        match published {
            Ok(true) => lease.settle(),
            Ok(false) => return None,
            Err(error) => return Some(Err(error.into())),
        }
        Some(match output {
            Ok(Fresh { value, .. }) => {
                let bytes = value.len();
                observe(Event::Computed { cost, bytes });
                Ok(Computed::fresh(value, token, cost, ttl))
            }
            Err(failure) => {
                observe(Event::Failed { cost });
                Err(ComputeError::Failed(failure.message))
            }
        })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut under_way = self.flights.under_way();
        let is_own = |news: &watch::Sender<News>| news.same_channel(&self.news);
        if under_way.get(&self.name).is_some_and(is_own) {
            under_way.remove(&self.name);
        }
    }
}
