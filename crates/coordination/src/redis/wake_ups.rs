//! The task that receives the messages of the scripts, on a dedicated connection.
//!
//! It subscribes to the wake-ups of all names with its prefix. When the connection breaks it connects to the next server, and
//! wakes every listener when it has subscribed again. In a cluster each server passes on the messages of all servers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::{RedisError, Value};
use redis_link::{Fault, Redis, Timeouts};
use tokio::time::{sleep, timeout};

use crate::wakes::Wakes;

/// The pause before connecting again.
const PAUSE: Duration = Duration::from_millis(250);
/// The silence of a connection after which the server is sent a PING.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}")]
    Unreachable(#[from] Fault),
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("no answer in time")]
    Late(#[from] tokio::time::error::Elapsed),
    #[error("it was closed")]
    Closed,
}

pub(super) async fn hear(redis: Arc<Redis>, timeouts: Timeouts, wakes: Arc<Wakes>, prefix: String) {
    // An ACL allows a pattern that is written in the same way.
    let patterns = ["mutex", "once"].map(|kind| {
        let prefix: String = prefix
            .chars()
            .flat_map(|it| {
                let is_special = matches!(it, '*' | '?' | '[' | ']' | '\\');
                is_special.then_some('\\').into_iter().chain([it])
            })
            .collect();
        format!("{{{prefix}:{kind}:*")
    });
    for attempt in 0.. {
        let Err(lost) = hear_server(&redis, timeouts, &wakes, &patterns, attempt).await;
        tracing::debug!(error = %lost, "wake-ups are not heard; connecting again");
        wakes.deafen();
        sleep(PAUSE).await;
    }
}

async fn hear_server(
    redis: &Redis,
    timeouts: Timeouts,
    wakes: &Wakes,
    patterns: &[String; 2],
    attempt: usize,
) -> Result<Infallible, Lost> {
    let client = redis.client(attempt).await?;
    let connecting = timeout(timeouts.connect, client.get_async_pubsub());
    let (mut sink, mut messages) = connecting.await??.split();
    timeout(timeouts.response, sink.psubscribe(patterns)).await??;
    wakes.hear();
    loop {
        tokio::select! {
            message = messages.next() => {
                wakes.wake(message.ok_or(Lost::Closed)?.get_channel_name());
            }
            () = sleep(SILENCE_MAX) => {
                timeout(timeouts.response, sink.ping::<Value>()).await??;
            }
        }
    }
}
