//! What a caller computes, as a task of its own: bounded in time, and its panic is an error.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::computed::{Failure, Fresh};
use super::name::Token;
use super::settings::ComputeSettings;

/// The longest message of an error that is passed on, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

pub(super) type Output = Result<Fresh, Failure>;
/// A computation counts as running until it lets go of its permit.
type Begin = dyn Fn(Token, OwnedSemaphorePermit) -> BoxFuture<'static, Output> + Send + Sync;

/// What is to be computed.
pub(super) struct Work(Box<Begin>);

impl Work {
    pub(super) fn new<C, F, V, E>(compute: &Arc<C>) -> Self
    where
        C: Fn(Token) -> F + Send + Sync + 'static,
        F: Future<Output = Result<V, E>> + Send + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::clone(compute);
        Self(Box::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            Box::pin(async move {
                let _permit = permit;
                output(compute(token).await)
            })
        }))
    }

    /// One that blocks, on a thread for such work. It cannot be stopped, and has its permit until it ends by itself.
    pub(super) fn blocking<C, V, E>(compute: &Arc<C>) -> Self
    where
        C: Fn(Token) -> Result<V, E> + Send + Sync + 'static,
        V: Into<Fresh>,
        E: Into<Failure>,
    {
        let compute = Arc::clone(compute);
        Self(Box::new(move |token, permit| {
            let compute = Arc::clone(&compute);
            let blocking = spawn_blocking(move || {
                let _permit = permit;
                output(compute(token))
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
        let &ComputeSettings { computation_max, value_bytes_max, .. } = settings;
        let task = AbortOnDropHandle::new(tokio::spawn((self.0)(token, permit)));
        let output = match timeout(computation_max, task).await {
            Ok(Ok(output)) => output,
            Ok(Err(ended)) => Err(panicked(ended)?.into()),
            Err(_) => {
                let message = format!("the computation took longer than {computation_max:?}");
                Err(message.into())
            }
        };
        let output = output.and_then(|fresh| match fresh.value.len() {
            bytes if bytes > value_bytes_max => {
                let message = format!("a value of {bytes} bytes is over {value_bytes_max}");
                Err(message.into())
            }
            _ => Ok(fresh),
        });
        Some(output.map_err(shortened))
    }
}

/// What a panic said; `None` when the task was ended.
fn panicked(ended: JoinError) -> Option<String> {
    let panic = ended.try_into_panic().ok()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    Some(format!("the computation panicked: {}", message.unwrap_or("without a message")))
}

/// Passes a panic on.
fn resume(ended: JoinError) -> Output {
    match ended.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(ended) => Err(ended.into()),
    }
}

fn output<V: Into<Fresh>, E: Into<Failure>>(output: Result<V, E>) -> Output {
    output.map(Into::into).map_err(Into::into)
}

fn shortened(mut failure: Failure) -> Failure {
    let message = &mut failure.message;
    let fits = |end: &usize| message.is_char_boundary(*end);
    let end = (0..=message.len().min(MESSAGE_BYTES_MAX)).rev().find(fits);
    message.truncate(end.unwrap_or_default());
    failure
}
