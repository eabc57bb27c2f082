//! [`Agreement`]: whether this node and the others have the same settings.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::diagnosis::{Cause, Diagnosis};
use crate::node::Throttle;
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;

/// The timeout of a comparison of settings. After it a round uses the last answer.
pub(super) const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// The interval of log lines about a difference.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of searches for keys that no node works on. A search reads all keys.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(600);
/// The same after a search that the store did not answer.
const LEFTOVERS_RETRY: Duration = Duration::from_secs(5);

/// The last answers of the store about this node's settings and its own room.
#[derive(Debug)]
pub(super) struct Agreement {
    /// Whether minutes may be closed and counts sent with this node's settings.
    pub(super) agrees: bool,
    /// Whether the store had room for events.
    pub(super) has_room: bool,
    throttle: Throttle,
}

impl Default for Agreement {
    fn default() -> Self {
        Self { agrees: true, has_room: true, throttle: Throttle::new(REPORT_INTERVAL) }
    }
}

impl Agreement {
    /// Compares the settings and checks whether the store accepts events.
    pub(super) async fn look(&mut self, store: &dyn Store, metrics: &Metrics) {
        if let Ok(Ok(difference)) = timeout(LOOK_WITHIN, store.difference()).await {
            self.compared(difference, metrics);
        }
        let checked = timeout(LOOK_WITHIN, store.check()).await;
        self.has_room = !matches!(checked, Ok(Err(StoreError::Full(_))));
    }

    fn compared(&mut self, difference: Option<Diagnosis>, metrics: &Metrics) {
        if difference.is_none() && !self.agrees {
            self.throttle.reset();
            tracing::info!("the settings are those of the other nodes again; going on");
        }
        self.agrees = difference.is_none();
        metrics.settings_differ.set(i64::from(!self.agrees));
        if let Some(found) = difference
            && self.throttle.is_due()
        {
            let error = found.reason();
            tracing::error!(error, "this node {}", Cause::NodeSettings.what());
        }
    }
}

/// Has the store search for keys that no node works on, repeatedly. Never ends.
pub async fn look_for_leftovers(store: Arc<dyn Store>) {
    loop {
        let pause = match store.look_for_leftovers().await {
            Ok(()) => LEFTOVERS_INTERVAL,
            Err(error @ StoreError::Refused(_)) => {
                tracing::warn!(%error, "cannot look for what is left in the store by other settings");
                LEFTOVERS_INTERVAL
            }
            Err(_away) => LEFTOVERS_RETRY,
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;

    #[tokio::test(start_paused = true)]
    async fn a_difference_is_logged_once_in_an_interval_and_anew_when_it_comes_back() {
        let difference = || Diagnosis::new(Cause::Settings, "flush.grace is another");
        let metrics = Metrics::new(Arc::<Node>::default());
        let mut agreement = Agreement::default();
        agreement.compared(Some(difference()), &metrics);
        assert!(!agreement.agrees);
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        agreement.compared(Some(difference()), &metrics);
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        assert!(agreement.throttle.is_due(), "it was logged meanwhile");
        agreement.compared(None, &metrics);
        assert!(agreement.agrees);
        assert!(agreement.throttle.is_due(), "the next is not logged");
    }
}
