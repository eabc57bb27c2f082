//! How scripts and commands go to the server that has their keys.

use std::sync::Arc;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use redis_link::{Connection, Redis};
use tokio::time::Instant;

use super::lane;
use super::scripts::{Arguments, Source};
use crate::arbiter::ArbiterError;

/// Sends scripts and commands to the server that has their keys. Each may be carried out twice.
#[derive(Debug)]
pub(super) struct Link(pub(super) Arc<Redis>);

impl Link {
    /// Runs a script on the server that has its keys. Only one that lacks the script is sent its text.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Source,
        arguments: &Arguments,
    ) -> Result<T, ArbiterError> {
        let slot = arguments.slot();
        match self.send(slot, script.by_sha1(arguments)).await? {
            Some(answer) => Ok(answer),
            None => self.query(slot, script.by_text(arguments)).await,
        }
    }

    /// Runs a command on the server of this slot.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        slot: u16,
        command: Cmd,
    ) -> Result<T, ArbiterError> {
        let answer = self.send(slot, command).await?;
        answer.ok_or_else(|| ArbiterError::Unavailable("the script was flushed".to_owned()))
    }

    /// `None` when the server lacks the script.
    async fn send<T: FromRedisValue>(
        &self,
        slot: u16,
        command: Cmd,
    ) -> Result<Option<T>, ArbiterError> {
        let begun = Instant::now();
        let command = Arc::new(command);
        loop {
            let command = Arc::clone(&command);
            let send = async move |connection: &mut Connection| match command
                .query_async(connection)
                .await
            {
                Err(error) if lacks_script(&error) => Ok(None),
                answer => answer.map(Some),
            };
            match self.0.run(slot, lane(), send).await {
                Err(fault) if self.0.may_repeat(&fault, begun).await => {}
                answer => return Ok(answer?),
            }
        }
    }
}

fn lacks_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
