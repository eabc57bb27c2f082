//! The thread that renews the leases of this process.
//!
//! A lease must be renewed whatever its holder does. A task of the holder's runtime is not enough: a computation that blocks the
//! only thread of a runtime stops every other task, and on several threads it may stop the timers and the connections of
//! all tasks when its thread drove them. So one thread with a small runtime renews all leases, and an arbiter over a network
//! does so over a connection that belongs to that runtime, see [`is_here`].

use std::sync::OnceLock;
use std::thread::{self, ThreadId};

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

/// The thread that renews leases, and its runtime. It lives as long as the process.
static KEEPER: OnceLock<Option<(ThreadId, Handle)>> = OnceLock::new();

fn start() -> Option<(ThreadId, Handle)> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let started = runtime.and_then(|runtime| {
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new()
            .name("lease-keeper".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok((thread.thread().id(), handle))
    });
    let report = |error: &std::io::Error| {
        tracing::warn!(%error, "no thread to renew leases; the runtimes of their holders renew them");
    };
    started.inspect_err(report).ok()
}

/// Runs a task on the thread that renews leases, or on the runtime of the caller where there is no such thread. It ends when
/// the handle is dropped.
pub(super) fn spawn(task: BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(match KEEPER.get_or_init(start) {
        Some((_, runtime)) => runtime.spawn(task),
        None => tokio::spawn(task),
    })
}

/// Whether this is the thread that renews leases.
#[cfg(feature = "redis")]
pub(super) fn is_here() -> bool {
    let keeper = KEEPER.get().and_then(Option::as_ref);
    keeper.is_some_and(|(id, _)| *id == thread::current().id())
}
