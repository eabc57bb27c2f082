//! A [`Link`] holds a [`Connection`] to a Redis server and replaces it when it is lost. If permitted, the command that
//! noticed the loss is then resent over the new connection. There is a timeout for connecting, for each reply, and for data
//! that the peer does not acknowledge. Only one caller at a time connects. The others wait for the first attempt; if it
//! fails, they fail immediately while one caller at a time retries after increasing pauses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Cmd, Pipeline, RedisError, RedisFuture, Value};
use tokio::time::Instant;

use crate::fault::ends_connection;
use crate::flight::Flight;
use crate::settings::{Endpoint, Settings};
use crate::{Check, Fault};

/// The approximate protocol overhead of each argument of a command, in bytes.
const FRAMING: usize = 12;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Link {
    endpoint: Endpoint,
    settings: Arc<Settings>,
    check: Check,
    flight: Flight,
    /// The number of connections lost so far. After a loss, the server may be a different one.
    losses: AtomicU64,
    /// The lock is never held across an await.
    state: Mutex<State>,
    connecting: tokio::sync::Mutex<()>,
}

struct State {
    connection: Option<Connection>,
    fault: Fault,
    attempts: u32,
    next: Instant,
}

impl Link {
    pub(crate) fn new(endpoint: &Endpoint, settings: &Arc<Settings>, check: &Check) -> Self {
        let (fault, now) = (Fault::unavailable("not connected yet"), Instant::now());
        let state = State { connection: None, fault, attempts: 0, next: now };
        Self {
            endpoint: endpoint.clone(),
            settings: Arc::clone(settings),
            check: Arc::clone(check),
            flight: Flight::new(settings.timeouts.response),
            losses: AtomicU64::new(0),
            state: Mutex::new(state),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state().connection.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics halfway through a change of the state, so a poisoned lock is safe to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, or the last fault if it is too early to retry. Returns None if it is time to connect.
    fn known(&self) -> Option<Result<Connection, Fault>> {
        let state = self.state();
        match &state.connection {
            Some(connection) => Some(Ok(connection.clone())),
            None => (Instant::now() < state.next).then(|| Err(state.fault.clone())),
        }
    }

    fn failure(&self) -> Option<Fault> {
        let state = self.state();
        (state.attempts > 0).then(|| state.fault.clone())
    }

    pub(crate) async fn connection(&self) -> Result<Connection, Fault> {
        if let Some(known) = self.known() {
            return known;
        }
        let _turn = if let Ok(turn) = self.connecting.try_lock() {
            turn
        } else {
            // Another caller is connecting. Wait for it only if this is the first attempt.
            if let Some(fault) = self.failure() {
                return Err(fault);
            }
            let turn = self.connecting.lock().await;
            if let Some(fault) = self.failure() {
                return Err(fault);
            }
            turn
        };
        if let Some(known) = self.known() {
            return known;
        }
        let connected = self.connect().await;
        let mut state = self.state();
        match &connected {
            Ok(connection) => (state.connection, state.attempts) = (Some(connection.clone()), 0),
            Err(fault) => {
                let longest = PAUSE_MIN.saturating_mul(1 << state.attempts.min(8)).min(PAUSE_MAX);
                let pause = longest.mul_f64(rand::rng().random_range(0.5..1.0));
                state.next = Instant::now() + pause;
                state.attempts = state.attempts.saturating_add(1);
                state.fault = fault.clone();
            }
        }
        drop(state);
        connected.map(|connection| Connection { is_new: true, ..connection })
    }

    fn at(&self, fault: Fault) -> Fault {
        fault.at(&format_args!("Redis at {}", self.endpoint))
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        // A new client, because the password may have been replaced.
        let client = self.settings.client(&self.endpoint);
        let client = client.map_err(|error| self.at(Fault::unavailable(error.to_string())))?;
        let greeted = async {
            let mut connection = self.settings.connect(&client).await?;
            let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
            Ok((connection, info))
        };
        let (inner, info) =
            greeted.await.map_err(|error| self.at(Fault::of_greeting(&error, &client)))?;
        let checked = crate::check_loaded(&info).and_then(|()| (self.check)(&info));
        checked.map_err(|fault| self.at(fault))?;
        let flight = Arc::new(self.flight.next());
        Ok(Connection { inner, flight, is_new: false, repeats_by: None })
    }

    /// Returns the fault for a failed command, after dropping the connection if it is no longer usable.
    pub(crate) fn failed(&self, connection: &Connection, error: &RedisError) -> Fault {
        let fault = self.at(Fault::of(error));
        if !ends_connection(error) {
            return fault;
        }
        let mut state = self.state();
        let is_known = |known: &Connection| Arc::ptr_eq(&known.flight, &connection.flight);
        if state.connection.as_ref().is_some_and(is_known) {
            (state.connection, state.fault, state.next) = (None, fault.clone(), Instant::now());
            self.losses.fetch_add(1, Ordering::AcqRel);
            drop(state);
            connection.flight.close();
            tracing::warn!(error = %fault, "lost the connection to Redis; reconnecting");
        }
        fault
    }
}

/// A connection to a server; see the [crate]. All clones use the same socket.
#[derive(Clone)]
pub struct Connection {
    inner: MultiplexedConnection,
    flight: Arc<Flight>,
    /// Whether the connection was made for this command, so that the server cannot have closed it for being idle.
    is_new: bool,
    pub(crate) repeats_by: Option<Arc<Link>>,
}

impl Connection {
    /// Returns whether the command failed on another connection first, and may have been carried out there. Only for lanes
    /// that are not watched.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        self.repeats_by.is_none()
    }

    /// Replaces the connection after this error, and returns whether to resend the command that failed. Returns false if the
    /// connection is not lost or cannot be replaced, or if the command has been resent already or must not be.
    async fn is_replaced(&mut self, error: &RedisError) -> bool {
        let is_lost = ends_connection(error) && error.is_connection_dropped();
        let Some(link) = self.repeats_by.take() else {
            return false;
        };
        if self.is_new || !is_lost {
            return false;
        }
        link.failed(self, error);
        let Ok(connection) = link.connection().await else {
            return false;
        };
        *self = connection;
        true
    }

    async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let _seat = self.flight.enter(size(command)).await?;
        self.inner.req_packed_command(command).await
    }

    async fn send_all(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> Result<Vec<Value>, RedisError> {
        let _seat = self.flight.enter(pipeline.cmd_iter().map(size).sum()).await?;
        self.inner.req_packed_commands(pipeline, offset, count).await
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            match self.send(command).await {
                Err(error) if self.is_replaced(&error).await => self.send(command).await,
                answer => answer,
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            match self.send_all(pipeline, offset, count).await {
                Err(error) if self.is_replaced(&error).await => {
                    self.send_all(pipeline, offset, count).await
                }
                answers => answers,
            }
        })
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

fn size(command: &Cmd) -> usize {
    let bytes = |argument: Arg<&[u8]>| match argument {
        Arg::Simple(bytes) => bytes.len() + FRAMING,
        _ => FRAMING,
    };
    command.args_iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_command_is_near_its_bytes() {
        let mut command = redis::cmd("SADD");
        command.arg("key").arg("x".repeat(10_000));
        let packed = command.get_packed_command().len();
        assert!(size(&command).abs_diff(packed) < 40);
    }
}
