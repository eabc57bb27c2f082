//! What systemd is told: that the node is ready, that it stops, and, while all workers make progress, that it lives.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::http::STALLED_AFTER;
use crate::node::Progress;

/// Tells systemd, if it started us.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

/// Feeds the watchdog while no worker stands still. Comes back at once where there is none.
pub(super) async fn feed_watchdog(progress: Progress) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut ticks = tokio::time::interval(limit / 3);
    let stalled_after = STALLED_AFTER.min(limit.max(Duration::from_secs(1)));
    loop {
        ticks.tick().await;
        let stalled = progress.stalled(stalled_after);
        if stalled.is_empty() {
            notify(&[NotifyState::Watchdog]);
        } else {
            tracing::error!(
                workers = stalled.join(", "),
                "standing still; not feeding the watchdog"
            );
        }
    }
}
