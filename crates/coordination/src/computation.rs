//! What a caller computes, as a task of its own: bounded in time, and its panic is an error.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::name::Token;
use super::settings::ComputeSettings;

/// The longest message of an error that is passed on, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A value, or the message of an error.
type Output = Result<Vec<u8>, String>;
/// A computation counts as running until it lets go of its permit.
type Begin = dyn Fn(Token, OwnedSemaphorePermit) -> BoxFuture<'static, Output> + Send + Sync;

/// What is to be computed.
pub(super) struct Work(Box<Begin>);

impl Work {
    pub(super) fn new<C, F, E>(compute: &Arc<C>) -> Self
    where
        C: Fn(Token) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
        E: Display,
    {
        let compute = Arc::clone(compute);
        Self(Box::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            Box::pin(async move {
                let _permit = permit;
                compute(token).await.map_err(|error| error.to_string())
            })
        }))
    }

    /// One that blocks, on a thread for such work. It cannot be stopped, and has its permit until it ends by itself.
    pub(super) fn blocking<C, E>(compute: &Arc<C>) -> Self
    where
        C: Fn(Token) -> Result<Vec<u8>, E> + Send + Sync + 'static,
        E: Display,
    {
        let compute = Arc::clone(compute);
        Self(Box::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            let blocking = spawn_blocking(move || {
                let _permit = permit;
                compute(token).map_err(|error| error.to_string())
            });
            Box::pin(async move { blocking.await.unwrap_or_else(resume) })
        }))
    }

    /// Runs it to its end or to the end of its time. `None` when the runtime ends first. When this is dropped the task ends
    /// where it next waits.
    pub(super) async fn run(
        &self,
        token: Token,
        permit: OwnedSemaphorePermit,
        settings: &ComputeSettings,
    ) -> Option<Output> {
        let &ComputeSettings {
            computation_max,
            value_bytes_max,
            ..
        } = settings;
        let task = AbortOnDropHandle::new(tokio::spawn((self.0)(token, permit)));
        let output = match timeout(computation_max, task).await {
            Ok(Ok(output)) => output,
            Ok(Err(ended)) => Err(panicked(ended)?),
            Err(_) => Err(format!(
                "the computation took longer than {computation_max:?}"
            )),
        };
        let output = output.and_then(|value| match value.len() {
            bytes if bytes > value_bytes_max => Err(format!(
                "a value of {bytes} bytes is over {value_bytes_max}"
            )),
            _ => Ok(value),
        });
        Some(output.map_err(shortened))
    }
}

/// What a panic said; `None` when the task was ended.
fn panicked(ended: JoinError) -> Option<String> {
    let panic = ended.try_into_panic().ok()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    Some(format!(
        "the computation panicked: {}",
        message.unwrap_or("without a message")
    ))
}

/// Passes a panic on.
fn resume(ended: JoinError) -> Output {
    match ended.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(ended) => Err(ended.to_string()),
    }
}

fn shortened(mut message: String) -> String {
    let fits = |end: &usize| message.is_char_boundary(*end);
    let end = (0..=message.len().min(MESSAGE_BYTES_MAX)).rev().find(fits);
    message.truncate(end.unwrap_or_default());
    message
}
