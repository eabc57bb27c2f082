//! [`Connection`]: a connection whose commands take turns. A command that may be carried out twice is sent once more, over another
//! connection, when this one was lost.

use std::sync::Arc;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Cmd, Pipeline, RedisError, RedisFuture, Value};

use crate::fault::ends_connection;
use crate::flight::{Flight, Pace};
use crate::link::Link;

/// The bytes that frame an argument.
const FRAMING: usize = 12;

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
        f.debug_struct("Connection")
            .field("losses", &self.losses)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(inner: MultiplexedConnection, pace: &Arc<Pace>, losses: u64) -> Self {
        Self {
            inner,
            flight: Arc::new(Flight::new(pace)),
            losses,
            is_new: false,
            repeats_by: None,
        }
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
