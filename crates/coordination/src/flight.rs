//! A flight brings one value to all callers of this process that wait for it.
//!
//! It is a task: it asks for the right to compute, computes or waits for another process, and publishes. Callers only wait for
//! it, each as long as it likes, and the outcome of a flight never depends on their patience. A flight that computes outlives
//! its callers; one that waits for another process ends with its last caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry, micros};
use super::computed::{ComputeError, Computed, Failure, Fresh, Origin};
use super::event::Event;
use super::lease::{ASKED_AGAIN, Attempt, Lease, PAUSE};
use super::name::{Name, Token};
use super::settings::{ComputeSettings, bounded_ttl};
use super::wakes::Listener;

/// The longest message of an error that is passed on, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

pub(super) type Output = Result<Fresh, Failure>;
pub(super) type Outcome = Result<Computed, ComputeError>;
/// Begins a computation, which counts as running until it drops its permit.
pub(super) type Work =
    Arc<dyn Fn(Token, OwnedSemaphorePermit) -> BoxFuture<'static, Output> + Send + Sync>;

/// The progress of a flight.
#[derive(Debug, Default)]
struct News {
    /// The number of requests to the arbiter. A caller that comes later must not take the answer: it may be older than the caller.
    asked: u64,
    /// The error of the last request, if it got no answer.
    obstacle: Option<ArbiterError>,
    outcome: Option<Outcome>,
}

/// All flights of a process.
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
        let permits = Arc::new(Semaphore::new(settings.computations_max));
        Arc::new(Self { arbiter, settings, permits, under_way: Mutex::default() })
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Name, watch::Sender<News>>> {
        // Nothing here panics half-way.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat in the flight of this name, which begins with `work` if there is none. A flight to refresh the value with the
    /// token `outdated` does not wait for other processes.
    pub(super) fn board(
        self: &Arc<Self>,
        name: &Name,
        outdated: Option<Token>,
        work: &Work,
    ) -> Seat {
        let mut under_way = self.under_way();
        let is_first = !under_way.contains_key(name);
        let news = under_way.entry(name.clone()).or_default().clone();
        // A runtime that shuts down drops a new task at once, and a flight that is dropped takes the lock.
        drop(under_way);
        let seat = Seat { asked: news.borrow().asked, news: news.subscribe(), is_first };
        if is_first {
            let (flights, name, work) = (Arc::clone(self), name.clone(), Arc::clone(work));
            tokio::spawn(Flight { flights, name, news, work, outdated }.run());
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
    /// The outcome; `None` when the flight ends with none, or with one that may be older than the caller.
    pub(super) async fn wait(mut self, deadline: Instant) -> Option<Outcome> {
        let landing = self.news.wait_for(|news| news.outcome.is_some());
        if let Ok(landed) = timeout_at(deadline, landing).await {
            let news = landed.ok()?;
            let mut outcome = news.outcome.clone().filter(|_| news.asked > self.asked)?;
            if let Ok(computed) = &mut outcome
                && computed.origin == Origin::Computed
                && !self.is_first
            {
                computed.origin = Origin::Awaited;
            }
            return Some(outcome);
        }
        let obstacle = self.news.borrow().obstacle.clone();
        Some(Err(obstacle.map_or(ComputeError::TimedOut, ComputeError::Arbiter)))
    }
}

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
        // No caller boards any longer.
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
        let read = |entry| Begun::Outcome(Ok(Computed { entry, origin: Origin::Awaited }));
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
        attempt.is_settled = true;
        Ok(begun)
    }

    /// Waits until it is worth to ask again: at most `wait`, or until the flight is woken, has a permit, or has no callers.
    async fn wait(
        &self,
        wait: Duration,
        listener: &mut Option<Listener>,
        had_permit: bool,
    ) -> Option<OwnedSemaphorePermit> {
        let listener =
            listener.get_or_insert_with(|| self.flights.arbiter.listen(&self.name, None));
        // Rounded up, so that the right has expired at the next request.
        let wait = wait.min(ASKED_AGAIN) + Duration::from_millis(1);
        tokio::select! {
            () = listener.woken() => None,
            () = sleep(wait) => None,
            () = self.news.closed() => None,
            permit = Arc::clone(&self.flights.permits).acquire_owned(), if !had_permit => permit.ok(),
        }
    }

    /// Whether the flight has no callers. If so, no caller boards any longer.
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
        let Flights { arbiter, settings, .. } = &*self.flights;
        let observe = |event| arbiter.observe(&self.name, &event);
        observe(Event::Computing);
        let began = Instant::now();
        let token = lease.token;
        let output = tokio::select! {
            biased;
            () = lease.lost.cancelled() => return None,
            output = self.work(token, permit) => output?,
        };
        let cost = began.elapsed();
        let ttl = bounded_ttl(match &output {
            Ok(fresh) => fresh.ttl.unwrap_or(settings.value_ttl),
            Err(failure) => failure.ttl.unwrap_or(settings.error_ttl),
        });
        let published = loop {
            self.news.send_modify(|news| news.asked += 1);
            let publishing = match &output {
                Ok(fresh) => arbiter.publish(&self.name, token, &fresh.value, cost, ttl),
                Err(failure) => arbiter.fail(&self.name, token, &failure.message, ttl),
            };
            match publishing.await {
                Err(ArbiterError::Unavailable(_)) if !lease.lost.is_cancelled() => {
                    sleep(PAUSE).await;
                }
                published => break published,
            }
        };
        match published {
            Ok(true) => lease.attempt.is_settled = true,
            Ok(false) => return None,
            Err(error) => return Some(Err(error.into())),
        }
        Some(match output {
            Ok(Fresh { value, .. }) => {
                observe(Event::Computed { cost, bytes: value.len() });
                let (value, expires_us) = (value.into(), micros(ttl));
                let entry = Entry { value, token, cost, written_us: 0, expires_us, now_us: 0 };
                Ok(Computed { entry, origin: Origin::Computed })
            }
            Err(failure) => {
                observe(Event::Failed { cost });
                Err(ComputeError::Failed(failure.message))
            }
        })
    }

    /// Runs the computation, as a task, to its end or to the end of its time. `None` when the runtime ends first. When this is
    /// dropped the task ends where it next waits.
    async fn work(&self, token: Token, permit: OwnedSemaphorePermit) -> Option<Output> {
        let ComputeSettings { computation_max, value_bytes_max, .. } = self.flights.settings;
        let task = AbortOnDropHandle::new(tokio::spawn((self.work)(token, permit)));
        let output = match timeout(computation_max, task).await {
            Ok(Ok(output)) => output,
            Ok(Err(ended)) => Err(panic_message(ended)?.into()),
            Err(_) => Err(format!("the computation took longer than {computation_max:?}").into()),
        };
        let output = output.and_then(|fresh| match fresh.value.len() {
            bytes if bytes > value_bytes_max => {
                Err(format!("a value of {bytes} bytes is over {value_bytes_max}").into())
            }
            _ => Ok(fresh),
        });
        Some(output.map_err(|mut failure| {
            let message = &mut failure.message;
            let fits = |end: &usize| message.is_char_boundary(*end);
            let end = (0..=message.len().min(MESSAGE_BYTES_MAX)).rev().find(fits);
            message.truncate(end.unwrap_or_default());
            failure
        }))
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

/// `None` when the task was ended.
fn panic_message(ended: JoinError) -> Option<String> {
    let panic = ended.try_into_panic().ok()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    Some(format!("the computation panicked: {}", message.unwrap_or("without a message")))
}
