//! A connection to Redis that is made again when it breaks.
//!
//! Nothing waits without a bound: connecting, each answer, and a peer that is gone without a word
//! (`TCP_USER_TIMEOUT` for what was sent, keep-alive for an idle line). While Redis is away only one caller at a
//! time tries to connect, after a pause that grows; all others are told at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::fitness;
use super::reply;
use crate::store::StoreError;

/// The pause after the first failed attempt to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long to wait for Redis.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection, name resolution and TLS included.
    pub connect: Duration,
    /// For each answer.
    pub response: Duration,
}

/// A connection that is made again when it breaks.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    timeouts: Timeouts,
    /// Counts the connections that were lost. Whoever remembers what Redis confirmed forgets it when this
    /// changes: the next connection may lead to a Redis that was restarted or replaced.
    losses: AtomicU64,
    state: Mutex<State>,
}

enum State {
    Connected(MultiplexedConnection),
    Away {
        error: StoreError,
        attempts: u32,
        next: Instant,
    },
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connected(_) => f.write_str("Connected"),
            Self::Away { error, .. } => write!(f, "Away({error})"),
        }
    }
}

impl Link {
    pub(super) fn new(client: Client, timeouts: Timeouts) -> Self {
        let error = StoreError::Unavailable("not connected yet".to_owned());
        let state = State::Away {
            error,
            attempts: 0,
            next: Instant::now(),
        };
        Self {
            client,
            timeouts,
            losses: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// The connection, made now if there is none.
    pub(super) async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut state = self.state.lock().await;
        let attempts = match &*state {
            State::Connected(connection) => return Ok(connection.clone()),
            State::Away {
                error,
                attempts,
                next,
            } => {
                if Instant::now() < *next {
                    return Err(error.clone());
                }
                *attempts
            }
        };
        match self.connect().await {
            Ok(connection) => {
                *state = State::Connected(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let longest = PAUSE_MIN
                    .saturating_mul(1 << attempts.min(8))
                    .min(PAUSE_MAX);
                let pause = longest.mul_f64(rand::rng().random_range(0.5..1.0));
                let next = Instant::now() + pause;
                *state = State::Away {
                    error: error.clone(),
                    attempts: attempts + 1,
                    next,
                };
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| reply::store_error(&error))?;
        fitness::check_server(&mut connection).await?;
        Ok(connection)
    }

    /// Says what an error of a command means, and gives the connection up if it can no longer be trusted.
    pub(super) async fn failed(&self, losses: u64, error: &redis::RedisError) -> StoreError {
        let meaning = reply::store_error(error);
        if reply::ends_connection(error) {
            let mut state = self.state.lock().await;
            if self.losses() == losses && matches!(*state, State::Connected(_)) {
                let next = Instant::now();
                *state = State::Away {
                    error: meaning.clone(),
                    attempts: 0,
                    next,
                };
                self.losses.fetch_add(1, Ordering::AcqRel);
                tracing::warn!(error = %meaning, "lost the connection to Redis; connecting again");
            }
        }
        meaning
    }
}
