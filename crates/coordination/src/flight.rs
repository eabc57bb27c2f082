//! A flight is a task that gets one value for all callers in this process. It requests the lease, and then computes the
//! value or waits for another process to compute it. A flight that computes the value also publishes it, and continues even
//! without callers; a flight that waits ends when its last caller leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{Answer, Arbiter, Beginning, Entry, Error, Name, Token, micros};
use super::computed::{Computed, Failure, Fresh, Origin};
use super::lease::{ASKED_AGAIN, Attempt, Lease, PAUSE};
use super::settings::{ComputeSettings, bounded_ttl};
use super::wakes::Listener;

const MESSAGE_BYTES_MAX: usize = 1024;

pub(super) type Output = Result<Fresh, Failure>;
pub(super) type Outcome = Result<Computed, Error>;
/// Starts a computation as a task. The computation counts as running until the task drops its permit.
pub(super) type Work = Arc<dyn Fn(Token, OwnedSemaphorePermit) -> JoinHandle<Output> + Send + Sync>;

#[derive(Debug, Default)]
struct News {
    /// The number of requests sent to the arbiter so far. A reply is only valid for callers that boarded before its request.
    asked: u64,
    obstacle: Option<Error>,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
pub(super) struct Flights {
    pub(super) arbiter: Arc<dyn Arbiter>,
    pub(super) settings: ComputeSettings,
    permits: Arc<Semaphore>,
    under_way: Mutex<HashMap<Name, watch::Sender<News>>>,
}

impl Flights {
    pub(super) fn new(arbiter: Arc<dyn Arbiter>, settings: ComputeSettings) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(settings.computations_max));
        Arc::new(Self { arbiter, settings, permits, under_way: Mutex::default() })
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Name, watch::Sender<News>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Boards the flight for this name, after starting it if there is none, and returns a seat to wait in. If the flight is
    /// to refresh a value, `outdated` is the token of that value; such a flight does not wait for other processes.
    pub(super) fn board(
        self: &Arc<Self>,
        name: &Name,
        outdated: Option<Token>,
        work: &Work,
    ) -> Seat {
        let mut under_way = self.under_way();
        let is_first = !under_way.contains_key(name);
        let news = under_way.entry(name.clone()).or_default().clone();
        // Unlock before spawning: a runtime that is shutting down drops the new task immediately, which locks this again.
        drop(under_way);
        let seat = Seat { asked: news.borrow().asked, news: news.subscribe(), is_first };
        if is_first {
            let (flights, name, work) = (Arc::clone(self), name.clone(), Arc::clone(work));
            tokio::spawn(Flight { flights, name, news, work, outdated }.run());
        }
        seat
    }
}

#[derive(Debug)]
pub(super) struct Seat {
    asked: u64,
    news: watch::Receiver<News>,
    pub(super) is_first: bool,
}

impl Seat {
    /// Waits for the outcome of the flight until the deadline. Returns None if the flight ended without an outcome, or with
    /// an outcome that may predate the caller; the caller then has to board another flight.
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
        Some(Err(obstacle.unwrap_or(Error::TimedOut)))
    }
}

struct Flight {
    flights: Arc<Flights>,
    name: Name,
    news: watch::Sender<News>,
    work: Work,
    outdated: Option<Token>,
}

enum Begun {
    Value(Entry),
    Granted(Lease),
    Busy(Duration),
}

impl Flight {
    async fn run(self) {
        let outcome = self.fly().await;
        if let (Some(Err(error)), Some(_)) = (&outcome, self.outdated) {
            let name = self.name.as_str();
            tracing::warn!(name, %error, "failed to refresh a value; keeping the old one");
        }
        let news = self.news.clone();
        // From here on, no caller can board this flight.
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
                Ok(Begun::Value(entry)) => {
                    return Some(Ok(Computed { entry, origin: Origin::Awaited }));
                }
                Ok(Begun::Granted(lease)) => match self.compute(lease, permit.take()?).await {
                    None if self.outdated.is_none() => continue,
                    outcome => return outcome,
                },
                _ if self.outdated.is_some() => return None,
                Ok(Begun::Busy(wait)) => {
                    self.news.send_modify(|news| news.obstacle = None);
                    wait
                }
                Err(error @ Error::Unavailable(_)) => {
                    self.news.send_modify(|news| news.obstacle = Some(error));
                    PAUSE
                }
                Err(error) => return Some(Err(error)),
            };
            permit = self.wait(wait, &mut listener, permit.is_some()).await;
            // A caller that boards after this check gets no outcome, and therefore boards another flight.
            if self.news.receiver_count() == 0 {
                return None;
            }
        }
    }

    /// Requests the value or the lease to compute it. If this process may not compute yet, requests only the value.
    async fn ask(&self, may_compute: bool) -> Answer<Begun> {
        self.news.send_modify(|news| news.asked += 1);
        let arbiter = &self.flights.arbiter;
        if !may_compute {
            let entry = arbiter.peek(&self.name).await?;
            let entry = entry.filter(|entry| Some(entry.token) != self.outdated);
            return Ok(entry.map_or(Begun::Busy(ASKED_AGAIN), Begun::Value));
        }
        let mut attempt = Attempt::new(arbiter, &self.name, self.flights.settings.lock_ttl);
        let asked = Instant::now();
        let begun = match arbiter.begin(&attempt.claim, self.outdated).await? {
            Beginning::Granted(token) => {
                let granted = attempt
                    .granted(token, asked, self.flights.settings.lock_ttl)
                    .map(Begun::Granted);
                return Ok(granted.unwrap_or(Begun::Busy(Duration::ZERO)));
            }
            Beginning::Value(entry) => Ok(Begun::Value(entry)),
            Beginning::Failed(message) => Err(Error::Failed(message)),
            Beginning::Busy(wait) => Ok(Begun::Busy(wait)),
        };
        attempt.is_settled = true;
        begun
    }

    /// Waits for at most `wait`, or until the flight is woken, gets a permit or has no callers left. Returns any new permit.
    async fn wait(
        &self,
        wait: Duration,
        listener: &mut Option<Listener>,
        had_permit: bool,
    ) -> Option<OwnedSemaphorePermit> {
        let listener =
            listener.get_or_insert_with(|| self.flights.arbiter.listen(&self.name, None));
        // One more millisecond, to be sure that the lease has lapsed by the next request.
        let wait = wait.min(ASKED_AGAIN) + Duration::from_millis(1);
        tokio::select! {
            _ = listener.woken() => None,
            () = sleep(wait) => None,
            () = self.news.closed() => None,
            permit = Arc::clone(&self.flights.permits).acquire_owned(), if !had_permit => permit.ok(),
        }
    }

    /// Computes and publishes the value. Returns None if the lease was lost or the runtime is shutting down.
    async fn compute(&self, mut lease: Lease, permit: OwnedSemaphorePermit) -> Option<Outcome> {
        let Flights { arbiter, settings, .. } = &*self.flights;
        let name = self.name.as_str();
        tracing::debug!(name, "computing a value");
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
            let output = output.as_ref().map(|fresh| (fresh.output.as_slice(), cost));
            let output = output.map_err(|failure| failure.output.as_str());
            match arbiter.publish(&lease.attempt.claim, output, ttl).await {
                Err(Error::Unavailable(_)) if !lease.lost.is_cancelled() => {
                    sleep(PAUSE).await;
                }
                published => break published,
            }
        };
        match published {
            Ok(true) => lease.attempt.is_settled = true,
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        Some(match output {
            Ok(Fresh { output: value, .. }) => {
                tracing::debug!(
                    name,
                    cost_us = micros(cost),
                    bytes = value.len(),
                    "computed a value"
                );
                let (value, expires_us) = (value.into(), micros(ttl));
                let entry = Entry { value, token, cost, written_us: 0, expires_us, now_us: 0 };
                Ok(Computed { entry, origin: Origin::Computed })
            }
            Err(failure) => {
                let error = &failure.output;
                tracing::debug!(name, cost_us = micros(cost), error, "computation failed");
                Err(Error::Failed(failure.output))
            }
        })
    }

    /// Runs the computation within its limits and returns its output. Returns None if the runtime shuts down first.
    async fn work(&self, token: Token, permit: OwnedSemaphorePermit) -> Option<Output> {
        let ComputeSettings { computation_max, value_bytes_max, .. } = self.flights.settings;
        let task = AbortOnDropHandle::new((self.work)(token, permit));
        let output = match timeout(computation_max, task).await {
            Ok(Ok(output)) => output,
            Ok(Err(ended)) => Err(panic_message(ended)?.into()),
            Err(_) => Err(format!("the computation took longer than {computation_max:?}").into()),
        };
        let output = output.and_then(|fresh| match fresh.output.len() {
            bytes if bytes > value_bytes_max => {
                Err(format!("the value is {bytes} bytes long; the limit is {value_bytes_max}")
                    .into())
            }
            _ => Ok(fresh),
        });
        Some(output.map_err(|mut failure| {
            let message = &mut failure.output;
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

fn panic_message(ended: JoinError) -> Option<String> {
    let panic = ended.try_into_panic().ok()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    Some(format!("the computation panicked: {}", message.unwrap_or("no message")))
}
