//! The task that receives the wake-ups for all names with one key prefix over a dedicated connection. After losing it, the
//! task connects to the next server, subscribes again and wakes every listener, in case it missed wake-ups.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::Value;
use redis_link::{Redis, Timeouts};
use tokio::time::{sleep, timeout};

use crate::arbiter::Token;
use crate::wakes::Wakes;

const PAUSE: Duration = Duration::from_millis(250);
const SILENCE_MAX: Duration = Duration::from_secs(5);

pub(super) async fn hear(redis: Arc<Redis>, timeouts: Timeouts, wakes: Arc<Wakes>, prefix: String) {
    // Redis permits a pattern only if the user's ACL contains exactly the same pattern.
    let patterns = ["mutex", "once"].map(|kind| {
        let prefix: String = prefix
            .chars()
            .flat_map(|character| {
                let is_special = matches!(character, '*' | '?' | '[' | ']' | '\\');
                is_special.then_some('\\').into_iter().chain([character])
            })
            .collect();
        format!("{{{prefix}:{kind}:*")
    });
    for attempt in 0.. {
        let Err(error) = hear_server(&redis, timeouts, &wakes, &patterns, attempt).await;
        tracing::debug!(%error, "lost the wake-up connection; reconnecting");
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
) -> Result<Infallible, Box<dyn Error + Send + Sync>> {
    let client = redis.client(attempt).await?;
    let connecting = timeout(timeouts.connect, client.get_async_pubsub());
    let (mut sink, mut messages) = connecting.await??.split();
    timeout(timeouts.response, sink.psubscribe(patterns)).await??;
    wakes.hear();
    loop {
        tokio::select! {
            message = messages.next() => {
                let message = message.ok_or("the server closed the connection")?;
                // The token of a lock that was handed over. Other messages are empty.
                let token = message.get_payload().ok().map(Token);
                wakes.wake(message.get_channel_name(), token);
            }
            () = sleep(SILENCE_MAX) => {
                timeout(timeouts.response, sink.ping::<Value>()).await??;
            }
        }
    }
}
