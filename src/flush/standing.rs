//! [`Standing`]: how this node stands to the others and to the store, and [`Agreed`]: an output for as long as it agrees with them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::node::Throttle;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;

/// How long a round waits for the settings of the others; then it goes on as before.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// How often what is wrong is logged again.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is looked for what no node works on: all keys are looked through for it.
const LEFTOVERS_INTERVAL: Duration = Duration::from_secs(600);
/// The same where the store did not answer.
const LEFTOVERS_RETRY: Duration = Duration::from_secs(5);

/// How this node stands to the others, as far as it knows.
#[derive(Debug)]
pub(super) struct Standing {
    differs: bool,
    /// Whether the store has no room for events.
    full: bool,
    differs_throttle: Throttle,
}

impl Default for Standing {
    fn default() -> Self {
        Self { differs: false, full: false, differs_throttle: Throttle::new(REPORT_INTERVAL) }
    }
}

impl Standing {
    /// Compares the settings, and looks whether the store takes events.
    pub(super) async fn look(&mut self, store: &dyn Store, metrics: &Metrics) {
        if let Ok(Ok(difference)) = timeout(LOOK_WITHIN, store.difference()).await {
            self.compared(difference, metrics);
        }
        let checked = timeout(LOOK_WITHIN, store.check()).await;
        self.full = matches!(checked, Ok(Err(StoreError::Full(_))));
    }

    fn compared(&mut self, difference: Option<Diagnosis>, metrics: &Metrics) {
        if difference.is_none() && self.differs {
            self.differs_throttle.reset();
            tracing::info!("the settings are those of the other nodes again; going on");
        }
        self.differs = difference.is_some();
        metrics.settings_differ.set(i64::from(self.differs));
        if let Some(found) = difference
            && self.differs_throttle.is_due()
        {
            let error = found.reason();
            tracing::error!(error, "this node {}", Cause::NodeSettings.what());
        }
    }

    /// Whether the store had room for events when it was last looked at.
    pub(super) const fn has_room(&self) -> bool {
        !self.full
    }

    /// Whether minutes may be closed and counts sent with this node's settings.
    pub(super) const fn agrees(&self) -> bool {
        !self.differs
    }
}

/// Has the store look for what no node works on, again and again. Never ends.
pub async fn look_for_leftovers(store: Arc<dyn Store>) {
    loop {
        let rest = match store.look_for_leftovers().await {
            Ok(()) => LEFTOVERS_INTERVAL,
            Err(error @ StoreError::Refused(_)) => {
                tracing::warn!(%error, "cannot look for what is left in the store by other settings");
                LEFTOVERS_INTERVAL
            }
            Err(_away) => LEFTOVERS_RETRY,
        };
        tokio::time::sleep(rest).await;
    }
}

/// An output that takes nothing while this node's settings differ from those of all nodes. Looked at before each write:
/// once an output was changed for all nodes, no write to the old one begins.
#[derive(Debug, Clone)]
pub(super) struct Agreed {
    /// Knows the settings.
    pub(super) store: Arc<dyn Store>,
    /// Where the counts go.
    pub(super) output: Arc<dyn Output>,
}

#[async_trait]
impl Output for Agreed {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.check_settings().await?;
        self.output.write(counts).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        self.check_settings().await?;
        self.output.probe(minute).await
    }

    fn describe(&self) -> String {
        self.output.describe()
    }

    fn has_server(&self) -> bool {
        self.output.has_server()
    }
}

impl Agreed {
    async fn check_settings(&self) -> Result<(), WriteError> {
        if let Ok(Ok(Some(difference))) = timeout(LOOK_WITHIN, self.store.difference()).await {
            let found = difference.what("this node may not send");
            return Err(WriteError::Unavailable { found, retry_after: None });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Partition;
    use crate::node::Node;

    /// A store of other settings than this node's, and an output that takes everything.
    #[derive(Debug)]
    struct Other;

    fn difference() -> Diagnosis {
        Diagnosis::new(Cause::Settings, "flush.grace is another")
    }

    #[async_trait]
    impl Store for Other {
        async fn check(&self) -> Result<(), StoreError> {
            Ok(())
        }

        async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
            Ok(Some(difference()))
        }

        fn generation(&self, _: Partition) -> u64 {
            0
        }

        fn describe(&self) -> String {
            "other".to_owned()
        }
    }

    #[async_trait]
    impl Output for Other {
        async fn write(&self, _: &[SealedCounts]) -> Result<(), WriteError> {
            Ok(())
        }

        fn describe(&self) -> String {
            "other".to_owned()
        }
    }

    #[tokio::test]
    async fn an_output_takes_nothing_while_the_settings_differ() {
        let agreed = Agreed { store: Arc::new(Other), output: Arc::new(Other) };
        for result in [agreed.write(&[]).await, agreed.probe(Minute::MIN).await] {
            assert!(matches!(result, Err(WriteError::Unavailable { .. })), "{result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_is_logged_once_in_an_interval_and_anew_when_it_comes_back() {
        let metrics = Metrics::new(Arc::<Node>::default());
        let mut standing = Standing::default();
        standing.compared(Some(difference()), &metrics);
        assert!(!standing.agrees());
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        standing.compared(Some(difference()), &metrics);
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        assert!(standing.differs_throttle.is_due(), "it was logged meanwhile");
        standing.compared(None, &metrics);
        assert!(standing.agrees());
        assert!(standing.differs_throttle.is_due(), "the next is not logged");
    }
}
