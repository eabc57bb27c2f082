//! Time that stands still for the tasks of a test while connections go on: what happens was woken, and not asked for again.

use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::site::PATIENCE;

/// Runs a test in which no timer ends. If it is not done within [`PATIENCE`] time goes on, and the test fails.
pub(crate) fn frozen(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    // Paused time advances by itself when there is nothing to do, but not while a blocking task runs.
    let (done, wait) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv_timeout(PATIENCE));
    runtime.block_on(async {
        let began = Instant::now();
        test.await;
        assert_eq!(began.elapsed(), Duration::ZERO, "waited for a timer");
    });
    drop(done);
}
