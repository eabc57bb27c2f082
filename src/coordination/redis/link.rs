//! The way to the server, or to the master of a cluster that has a key; made again when it breaks.
//!
//! Nothing waits without a bound. While a server is away only one caller at a time tries to connect, after a pause
//! that grows; all others are told at once. In a cluster the client follows the slots by itself.

use std::time::Duration;

use rand::RngExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, from_redis_value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Timeouts;
use super::reply::{arbiter_error, ends_connection, lacks_script};
use super::scripts::{Arguments, Source};
use crate::coordination::arbiter::ArbiterError;

/// The pause after the first failed attempt to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Where it leads.
#[derive(Clone)]
pub(super) enum Target {
    Server(Box<Client>),
    Cluster(Box<ClusterClient>),
}

impl Target {
    fn place(&self) -> String {
        match self {
            Self::Server(client) => client.get_connection_info().addr().to_string(),
            Self::Cluster(_) => "a cluster".to_owned(),
        }
    }
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

enum State {
    /// And how many connections there were before.
    Connected(Connection, u64),
    Away {
        error: ArbiterError,
        attempts: u32,
        next: Instant,
        connections: u64,
    },
}

/// A connection that is made again when it breaks.
pub(super) struct Link {
    target: Target,
    timeouts: Timeouts,
    state: Mutex<State>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A client could show its password.
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(target: Target, timeouts: Timeouts) -> Self {
        let state = State::Away {
            error: ArbiterError::Unavailable("not connected yet".to_owned()),
            attempts: 0,
            next: Instant::now(),
            connections: 0,
        };
        Self {
            target,
            timeouts,
            state: Mutex::new(state),
        }
    }

    /// Runs a script on the node that has its keys. Only a node that lacks the script is sent its text.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Source,
        arguments: &Arguments,
    ) -> Result<T, ArbiterError> {
        let (mut connection, number) = self.connection().await?;
        let mut answer = connection.query(&script.by_sha1(arguments)).await;
        if answer.as_ref().is_err_and(lacks_script) {
            answer = connection.query(&script.by_text(arguments)).await;
        }
        self.judged(number, answer).await
    }

    /// Runs a command that may be sent twice.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, ArbiterError> {
        let (mut connection, number) = self.connection().await?;
        let answer = connection.query(command).await;
        self.judged(number, answer).await
    }

    async fn connection(&self) -> Result<(Connection, u64), ArbiterError> {
        let mut state = self.state.lock().await;
        let (attempts, connections) = match &*state {
            State::Connected(connection, number) => return Ok((connection.clone(), *number)),
            State::Away { error, next, .. } if Instant::now() < *next => return Err(error.clone()),
            State::Away {
                attempts,
                connections,
                ..
            } => (*attempts, *connections),
        };
        match self.connect().await {
            Ok(connection) => {
                let number = connections + 1;
                *state = State::Connected(connection.clone(), number);
                Ok((connection, number))
            }
            Err(error) => {
                let error = arbiter_error(&error);
                let longest = PAUSE_MIN.saturating_mul(1 << attempts.min(8));
                let pause = longest.min(PAUSE_MAX);
                *state = State::Away {
                    error: error.clone(),
                    attempts: attempts + 1,
                    next: Instant::now() + pause.mul_f64(rand::rng().random_range(0.5..1.0)),
                    connections,
                };
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        match &self.target {
            Target::Server(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.timeouts.connect))
                    .set_response_timeout(Some(self.timeouts.response));
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Connection::Server(connection.await?))
            }
            // The builder of the client has the timeouts.
            Target::Cluster(client) => {
                Ok(Connection::Cluster(client.get_async_connection().await?))
            }
        }
    }

    /// Gives the connection up if it can no longer be trusted.
    async fn judged<T: FromRedisValue>(
        &self,
        number: u64,
        answer: Result<redis::Value, RedisError>,
    ) -> Result<T, ArbiterError> {
        let answer = answer.and_then(|value| Ok(from_redis_value(value)?));
        let error = match answer {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let meaning = arbiter_error(&error);
        if ends_connection(&error) {
            let mut state = self.state.lock().await;
            if matches!(*state, State::Connected(_, current) if current == number) {
                tracing::warn!(redis = self.target.place(), error = %meaning, "lost the connection to Redis; connecting again");
                *state = State::Away {
                    error: meaning.clone(),
                    attempts: 0,
                    next: Instant::now(),
                    connections: number,
                };
            }
        }
        Err(meaning)
    }
}

impl Connection {
    async fn query(&mut self, command: &Cmd) -> Result<redis::Value, RedisError> {
        let value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        value.and_then(redis::Value::extract_error)
    }
}
