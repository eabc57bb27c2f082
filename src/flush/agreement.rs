//! [`Agreement`] tells whether this node's settings match the cluster's; [`CountsTarget`] writes only if they do.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::{Instant, timeout};

use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::node::{Node, Throttle, lock, number};
use crate::output::delivery::{Batch, Target};
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{OutputName, Store, StoreError};
use crate::telemetry::{Metrics, OutputMetrics};

/// Timeout for comparing settings, and for a check in a round. After a timeout, the node continues as if nothing had changed.
pub(super) const LOOK_WITHIN: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Agreement {
    /// Whether this node's settings allow it to close minutes and send counts.
    pub(super) agrees: bool,
    pub(super) has_room: bool,
    throttle: Throttle,
}

impl Default for Agreement {
    fn default() -> Self {
        Self { agrees: true, has_room: true, throttle: Throttle::new(REPORT_INTERVAL) }
    }
}

impl Agreement {
    /// Compares the settings, and checks the store within this time. A check that ends earlier does not detect a server that
    /// hangs, which is detected only when a response times out.
    pub(super) async fn look(
        &mut self,
        (store, node, metrics): (&dyn Store, &Node, &Metrics),
        within: Duration,
    ) {
        // At the same time, so that the node waits for the store only once. A server that hangs must not hide a difference.
        let difference = timeout(LOOK_WITHIN, store.difference());
        let (difference, checked) = join(difference, timeout(within, store.check())).await;
        let mut errors = lock(&node.store_errors);
        if let Ok(checked) = checked {
            self.has_room = !matches!(checked, Err(StoreError::Full(_)));
            errors.store = checked.err().map(|error| error.to_string());
        }
        match difference {
            Ok(Ok(difference)) => {
                errors.settings = difference.as_ref().map(Diagnosis::reason);
                self.compared(difference, metrics);
            }
            Ok(Err(error)) => {
                errors.settings = None;
                errors.store.get_or_insert_with(|| error.to_string());
            }
            Err(_takes_longer) => {}
        }
    }

    fn compared(&mut self, difference: Option<Diagnosis>, metrics: &Metrics) {
        if difference.is_none() && !self.agrees {
            self.throttle.reset();
            tracing::info!(
                "this node's settings match the cluster-wide settings again; the node resumes closing minutes and sending counts"
            );
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

impl Batch for Vec<SealedCounts> {
    fn len(&self) -> usize {
        self.len()
    }

    fn split_off(&mut self, at: usize) -> Self {
        self.split_off(at)
    }

    fn append(&mut self, mut other: Self) {
        self.append(&mut other);
    }

    fn repeatable(&self) -> Option<Self> {
        Some(vec![self.last()?.clone()])
    }
}

/// An output that is written to only while this node's settings match the cluster-wide settings. Each write checks this.
#[derive(Debug)]
pub(super) struct CountsTarget {
    pub(super) store: Arc<dyn Store>,
    pub(super) output: Arc<dyn Output>,
    pub(super) metrics: OutputMetrics,
    pub(super) node: Arc<Node>,
    pub(super) name: OutputName,
    /// The minute used for probes. It is recent, so it is within the output's retention period.
    pub(super) newest: Minute,
}

impl CountsTarget {
    async fn checked(
        &self,
        write: impl Future<Output = Result<(), WriteError>> + Send,
    ) -> Result<(), WriteError> {
        let began = Instant::now();
        let result = match timeout(LOOK_WITHIN, self.store.difference()).await {
            Ok(Ok(Some(difference))) => {
                Err(WriteError::Unavailable { found: difference, retry_after: None })
            }
            _ => write.await,
        };
        self.metrics.write_seconds.observe(began.elapsed().as_secs_f64());
        result
    }
}

impl Target for CountsTarget {
    type Batch = Vec<SealedCounts>;

    async fn write(&self, batch: &Vec<SealedCounts>) -> Result<(), WriteError> {
        let Node { spans, clock, .. } = &*self.node;
        let start = clock.now_nanos();
        let result = self.checked(self.output.write(batch)).await;
        if spans.is_enabled() {
            let times = [start, clock.now_nanos()];
            for counts in batch.chunk_by(|a, b| a.minute == b.minute) {
                let attributes = || {
                    vec![
                        ("eds.output", self.name.as_str().into()),
                        ("eds.series", number(counts.len())),
                    ]
                };
                let error = result.as_ref().err().map(ToString::to_string);
                spans.add_step("write", counts[0].minute, times, attributes, error);
            }
        }
        result
    }

    async fn probe(&self) -> Option<Result<(), WriteError>> {
        Some(self.checked(self.output.probe(self.newest)).await)
    }
}

pub(super) fn accepts_nothing(error: WriteError) -> WriteError {
    match error {
        WriteError::Rejected(found) => WriteError::Misconfigured(Diagnosis {
            why: format!(
                "every count is rejected, so none is quarantined; last message: {}",
                found.why
            ),
            ..found
        }),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::event::Partition;
    use crate::node::Node;

    /// A store with these results, of which None hangs, and an output that accepts everything.
    #[derive(Debug, Clone)]
    struct Other {
        checked: Option<Result<(), StoreError>>,
        difference: Option<Result<Option<Diagnosis>, StoreError>>,
    }

    impl Other {
        /// A store whose settings differ from this node's, and with a server that hangs.
        fn new() -> Self {
            let difference = Diagnosis::new(Cause::Settings, "flush.grace differs");
            Self { checked: None, difference: Some(Ok(Some(difference))) }
        }
    }

    async fn or_hang<T>(result: Option<T>) -> T {
        match result {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }

    #[async_trait]
    impl Store for Other {
        async fn check(&self) -> Result<(), StoreError> {
            or_hang(self.checked.clone()).await
        }

        async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
            or_hang(self.difference.clone()).await
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
    async fn output_takes_nothing_while_settings_differ() {
        let target = CountsTarget {
            store: Arc::new(Other::new()),
            output: Arc::new(Other::new()),
            metrics: Metrics::new(Arc::<Node>::default()).of_output("o"),
            node: Arc::default(),
            name: OutputName::default(),
            newest: Minute::MIN,
        };
        for result in [target.write(&Vec::new()).await, target.probe().await.unwrap()] {
            assert!(matches!(result, Err(WriteError::Unavailable { .. })), "{result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn difference_is_found_although_a_server_hangs() {
        let mut agreement = Agreement::default();
        let (node, metrics) = (Node::default(), Metrics::new(Arc::default()));
        agreement.look((&Other::new(), &node, &metrics), LOOK_WITHIN).await;
        assert!(!agreement.agrees);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_of_the_last_look_are_kept_for_the_report() {
        let (node, metrics) = (Node::default(), Metrics::new(Arc::default()));
        let mut agreement = Agreement::default();
        let differs = Other::new();
        let away = || StoreError::unavailable("refused");
        let well = Other { checked: Some(Ok(())), difference: Some(Ok(None)) };
        for (store, expected) in [
            (well.clone(), [false, false]),
            (differs.clone(), [false, true]),
            // While the settings cannot be read, it is unknown whether they differ.
            (Other { difference: Some(Err(away())), ..differs.clone() }, [true, false]),
            // A server that hangs says nothing about the error.
            (Other { checked: None, ..well.clone() }, [true, false]),
            (Other { checked: Some(Err(away())), ..differs }, [true, true]),
            (well, [false, false]),
        ] {
            agreement.look((&store, &node, &metrics), LOOK_WITHIN).await;
            let errors = lock(&node.store_errors).clone();
            let found = [errors.store, errors.settings].map(|error| error.is_some());
            assert_eq!(found, expected, "{store:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn difference_is_logged_once_per_interval_and_when_it_returns() {
        let difference = || Diagnosis::new(Cause::Settings, "flush.grace differs");
        let metrics = Metrics::new(Arc::<Node>::default());
        let mut agreement = Agreement::default();
        agreement.compared(Some(difference()), &metrics);
        assert!(!agreement.agrees);
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        agreement.compared(Some(difference()), &metrics);
        tokio::time::sleep(REPORT_INTERVAL / 2).await;
        assert!(agreement.throttle.is_due(), "the difference has been logged in the meantime");
        agreement.compared(None, &metrics);
        assert!(agreement.agrees);
        assert!(agreement.throttle.is_due(), "the next difference would not be logged");
    }
}
