//! The task that hears what the scripts publish, on a connection of its own.
//!
//! It begins with the first listener, subscribes to what is listened to, and ends when its token is cancelled. When
//! the connection breaks it makes another, to the next server, and every listener is woken when it hears
//! again. A silent connection is asked for a sign of life.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::{PubSubSink, PubSubStream};
use redis_link::{Fault, Redis};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Timeouts;
use crate::wakes::{Altered, Wakes};

/// The pause before connecting again.
const PAUSE: Duration = Duration::from_millis(250);
/// How long it may be silent before it is asked for a sign of life.
const SILENCE_MAX: Duration = Duration::from_secs(5);

pub(super) struct Switchboard {
    /// In a cluster each server hears what any of them publishes.
    pub(super) redis: Arc<Redis>,
    pub(super) timeouts: Timeouts,
    pub(super) wakes: Arc<Wakes>,
    pub(super) stopping: CancellationToken,
}

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

impl Switchboard {
    pub(super) async fn run(self) {
        let stopping = self.stopping.clone();
        tokio::select! {
            () = stopping.cancelled() => {}
            () = self.serve() => {}
        }
    }

    async fn serve(self) {
        for attempt in 0.. {
            let lost = match self.hear(attempt).await {
                Ok(never) => match never {},
                Err(lost) => lost,
            };
            tracing::debug!(error = %lost, "wake-ups are not heard; connecting again");
            self.wakes.deafen();
            sleep(PAUSE).await;
        }
    }

    async fn hear(&self, attempt: usize) -> Result<std::convert::Infallible, Lost> {
        let client = self.redis.client(attempt).await?;
        let connecting = timeout(self.timeouts.connect, client.get_async_pubsub());
        let (mut sink, mut messages) = connecting.await??.split();
        let mut subscribed = HashSet::new();
        loop {
            tokio::select! {
                altered = self.wakes.altered() => {
                    let adapting = self.adapt(&mut sink, &mut subscribed, altered);
                    timeout(self.timeouts.response, adapting).await??;
                }
                message = messages.next() => match message {
                    Some(message) => self.wakes.wake(message.get_channel_name()),
                    None => return Err(Lost::Closed),
                },
                () = sleep(SILENCE_MAX) => self.ping(&mut sink, &mut messages).await?,
            }
        }
    }

    async fn adapt(
        &self,
        sink: &mut PubSubSink,
        subscribed: &mut HashSet<String>,
        Altered { wanted, unwanted }: Altered,
    ) -> Result<(), RedisError> {
        let new: Vec<_> = wanted.iter().filter(|it| !subscribed.contains(*it)).collect();
        if !new.is_empty() {
            sink.subscribe(&new).await?;
        }
        for channel in &wanted {
            self.wakes.hear(channel);
        }
        subscribed.extend(wanted);
        let old: Vec<_> = unwanted.into_iter().filter(|it| subscribed.remove(it)).collect();
        if !old.is_empty() {
            sink.unsubscribe(&old).await?;
        }
        Ok(())
    }

    async fn ping(&self, sink: &mut PubSubSink, _: &mut PubSubStream) -> Result<(), Lost> {
        Ok(timeout(self.timeouts.response, sink.ping::<redis::Value>()).await?.map(|_| ())?)
    }
}
