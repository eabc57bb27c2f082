//! A [`Link`] is a connection to Redis that is made again when it breaks. The commands of a [`Connection`] take turns; one that may be
//! carried out twice is sent once more, over another connection, when this one was lost.
//!
//! Nothing waits without a bound: connecting, each answer, and a peer that vanishes
//! (`TCP_USER_TIMEOUT` for what was sent, keep-alive for an idle line). When there is no connection one caller
//! makes it. The others wait for the first attempt; once that has failed, one caller tries again after a pause
//! that grows, and all others fail at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::RngExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture, Value};
use tokio::time::Instant;

use crate::fault::ends_connection;
use crate::flight::{Flight, Pace};
use crate::settings::{Dial, Settings, Timeouts};
use crate::{Check, Fault};

/// The bytes that frame an argument.
const FRAMING: usize = 12;
/// The pause after the first failed attempt to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often the data of the server is looked at over a connection, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that is made again when it breaks.
pub(crate) struct Link {
    client: Client,
    dial: Option<Dial>,
    timeouts: Timeouts,
    check: Check,
    /// The bytes that may be in flight, by what answers took.
    pace: Arc<Pace>,
    /// Counts the connections that were lost. Whoever remembers what Redis confirmed forgets it when this
    /// changes: the next connection may lead to a Redis that was restarted or replaced.
    losses: AtomicU64,
    /// Never held while anything is waited for.
    state: Mutex<State>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
    /// When the server's data is looked at next.
    next_look: Mutex<Instant>,
}

#[derive(Clone)]
enum State {
    Connected(Connection),
    Away(Away),
}

#[derive(Clone)]
struct Away {
    error: Fault,
    /// Attempts to connect that failed since there was a connection.
    attempts: u32,
    next: Instant,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connected(_) => f.write_str("Connected"),
            Self::Away(Away { error, .. }) => write!(f, "Away({error})"),
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A client could show its password.
        f.debug_struct("Link").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(client: Client, settings: &Settings, check: Check) -> Self {
        let timeouts = settings.timeouts;
        let away = Away {
            error: Fault::unavailable("not connected yet"),
            attempts: 0,
            next: Instant::now(),
        };
        Self {
            client,
            dial: settings.dial.clone(),
            timeouts,
            check,
            pace: Pace::new(timeouts.response),
            losses: AtomicU64::new(0),
            state: Mutex::new(State::Away(away)),
            connecting: tokio::sync::Mutex::new(()),
            next_look: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Whether there is a connection, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(&*self.state(), State::Connected(_))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a panic elsewhere leaves a state that holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, or why there is none. `None` when it is time to try.
    fn known(&self) -> Option<Result<Connection, Fault>> {
        match &*self.state() {
            State::Connected(connected) => Some(Ok(connected.clone())),
            State::Away(away) if Instant::now() < away.next => Some(Err(away.error.clone())),
            State::Away(_) => None,
        }
    }

    /// Why there is no connection, once an attempt to make one has failed.
    fn failure(&self) -> Option<Fault> {
        match &*self.state() {
            State::Away(away) if away.attempts > 0 => Some(away.error.clone()),
            _ => None,
        }
    }

    /// The connection, made now if there is none.
    pub(crate) async fn connection(&self) -> Result<Connection, Fault> {
        if let Some(known) = self.known() {
            return known;
        }
        let _turn = match self.connecting.try_lock() {
            Ok(turn) => turn,
            // Somebody tries already. Only the first attempt is worth waiting for.
            Err(_) => match self.failure() {
                Some(error) => return Err(error),
                None => self.waited().await?,
            },
        };
        if let Some(known) = self.known() {
            return known;
        }
        match self.connect().await {
            Ok(mut connection) => {
                *self.state() = State::Connected(connection.clone());
                connection.is_new = true;
                Ok(connection)
            }
            Err(error) => {
                self.put_off(&error);
                Err(error)
            }
        }
    }

    /// Waits for the attempt that somebody makes. It ends one way or the other; if it failed, this one gets the error.
    async fn waited(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Fault> {
        let turn = self.connecting.lock().await;
        self.failure().map_or(Ok(turn), Err)
    }

    /// An attempt failed: the next one is made after a pause.
    fn put_off(&self, error: &Fault) {
        let mut state = self.state();
        let attempts = match &*state {
            State::Away(away) => away.attempts,
            State::Connected(_) => 0,
        };
        let longest = PAUSE_MIN.saturating_mul(1 << attempts.min(8)).min(PAUSE_MAX);
        let pause = longest.mul_f64(rand::rng().random_range(0.5..1.0));
        *state = State::Away(Away {
            error: error.clone(),
            attempts: attempts.saturating_add(1),
            next: Instant::now() + pause,
        });
    }

    /// Returns true for one caller an interval.
    pub(crate) fn is_time_to_look(&self) -> bool {
        let now = Instant::now();
        let mut next = self.next_look.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = now >= *next;
        if is_time {
            *next = now + LOOK_INTERVAL;
        }
        is_time
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response));
        let greeted = async {
            let client = &self.client;
            let mut connection = if let Some(dial) = &self.dial {
                dial.connect(client, config).await?
            } else {
                let dialled = client.get_multiplexed_async_connection_with_config(&config);
                dialled.await?
            };
            redis::cmd("PING").exec_async(&mut connection).await?;
            Ok(connection)
        };
        let checked = async {
            let greeted = greeted.await;
            let connection = greeted.map_err(|error| Fault::of_greeting(&error, &self.client))?;
            let mut connection = Connection::new(connection, &self.pace, self.losses());
            let info = redis::cmd("INFO").query_async(&mut connection).await;
            let info: String = info.map_err(|error| Fault::of(&error))?;
            (self.check)(&info)?;
            Ok(connection)
        };
        checked.await.map_err(|fault: Fault| fault.at(&self.server()))
    }

    /// What it is connected to, for messages.
    fn server(&self) -> String {
        format!("Redis at {}", self.client.get_connection_info().addr())
    }

    /// What an error of a command means. Ends a connection that can no longer be trusted.
    pub(crate) fn failed(&self, connection: &Connection, error: &redis::RedisError) -> Fault {
        let meaning = Fault::of(error).at(&self.server());
        if !ends_connection(error) {
            return meaning;
        }
        let mut state = self.state();
        if matches!(&*state, State::Connected(now) if now.losses == connection.losses) {
            *state =
                State::Away(Away { error: meaning.clone(), attempts: 0, next: Instant::now() });
            self.losses.fetch_add(1, Ordering::AcqRel);
            drop(state);
            connection.close();
            tracing::warn!(error = %meaning, "lost the connection to Redis; connecting again");
        }
        meaning
    }
}

/// A connection to a server, see the [crate]. Clones share it.
#[derive(Clone)]
pub struct Connection {
    inner: MultiplexedConnection,
    flight: Arc<Flight>,
    /// How many connections of the link were lost before it.
    pub(crate) losses: u64,
    /// Whether it was made for this call, so it was not idle before.
    pub(crate) is_new: bool,
    /// The link that makes another connection, for commands that may be carried out twice.
    pub(crate) repeats_by: Option<Arc<Link>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("losses", &self.losses).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(inner: MultiplexedConnection, pace: &Arc<Pace>, losses: u64) -> Self {
        Self { inner, flight: Arc::new(Flight::new(pace)), losses, is_new: false, repeats_by: None }
    }

    /// Fails the commands that wait for their turn.
    pub(crate) fn close(&self) {
        self.flight.close();
    }

    /// Replaces the connection over which a command failed by another one, once. Returns false where the command may not be repeated,
    /// where it failed for another reason than a lost connection, or where no connection can be made.
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
        let bytes = pipeline.cmd_iter().map(size).sum();
        let _seat = self.flight.enter(bytes).await?;
        let inner = &mut self.inner;
        inner.req_packed_commands(pipeline, offset, count).await
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

/// Returns the bytes of a command as it is sent, roughly.
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
    fn the_size_of_a_command_is_that_of_its_bytes() {
        let mut command = redis::cmd("SADD");
        command.arg("key").arg("x".repeat(10_000));
        let packed = command.get_packed_command().len();
        assert!(size(&command).abs_diff(packed) < 40);
    }
}
