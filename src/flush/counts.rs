//! [`Counts`]: a batch of sealed counts, and [`CountsTarget`]: the output that accepts them.

use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::agreement::LOOK_WITHIN;
use crate::diagnosis::Diagnosis;
use crate::event::{Minute, tags};
use crate::output::delivery::{Batch, Target};
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::Store;
use crate::telemetry::OutputMetrics;

/// Counts, each with the place of its claim in the round.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) claims: Vec<usize>,
    pub(super) counts: Vec<SealedCounts>,
}

impl Counts {
    pub(super) fn push(&mut self, claim: usize, counts: Vec<SealedCounts>) {
        self.claims.extend(std::iter::repeat_n(claim, counts.len()));
        self.counts.extend(counts);
    }

    /// Keeps the counts of some claims, by the places of these.
    pub(super) fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        let mut claims = self.claims.iter();
        self.counts.retain(|_| claims.next().is_some_and(|claim| is_kept(*claim)));
        self.claims.retain(|claim| is_kept(*claim));
    }

    /// Sorts by minute and series. Refused counts are often similar, and neighbours are found with fewer writes.
    pub(super) fn sorted(self) -> Self {
        let mut pairs: Vec<_> = self.claims.into_iter().zip(self.counts).collect();
        pairs.sort_unstable_by(|(_, a), (_, b)| (a.minute, &a.series).cmp(&(b.minute, &b.series)));
        let (claims, counts) = pairs.into_iter().unzip();
        Self { claims, counts }
    }
}

impl Batch for Counts {
    fn len(&self) -> usize {
        self.counts.len()
    }

    fn split_off(&mut self, at: usize) -> Self {
        Self { claims: self.claims.split_off(at), counts: self.counts.split_off(at) }
    }

    fn append(&mut self, mut other: Self) {
        self.claims.append(&mut other.claims);
        self.counts.append(&mut other.counts);
    }

    fn repeatable(&self) -> Option<Self> {
        let counts = self.counts.last()?.clone();
        Some(Self { claims: vec![0], counts: vec![counts] })
    }

    fn quoted(&self, at: usize, message: &str) -> usize {
        let values = tags(&self.counts[at].series).into_iter().map(|(_, value)| value);
        let quoted = values.filter(|value| message.contains(value.as_str()));
        quoted.map(|value| value.len()).max().unwrap_or(0)
    }
}

/// An output that is written to only while this node has the same settings as all others. They are compared before each
/// write: once an output was changed for all nodes, no write to the old one starts.
#[derive(Debug)]
pub(super) struct CountsTarget {
    pub(super) store: Arc<dyn Store>,
    pub(super) output: Arc<dyn Output>,
    pub(super) metrics: OutputMetrics,
    /// The minute of a probe, within the output's retention.
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
    type Batch = Counts;

    async fn write(&self, batch: &Counts) -> Result<(), WriteError> {
        self.checked(self.output.write(&batch.counts)).await
    }

    async fn probe(&self) -> Option<Result<(), WriteError>> {
        Some(self.checked(self.output.probe(self.newest)).await)
    }
}

/// Returns the error of a round in which the output accepted no count.
pub(super) fn accepts_nothing(error: WriteError) -> WriteError {
    match error {
        WriteError::Rejected(found) => WriteError::Misconfigured(Diagnosis {
            why: format!(
                "every count is rejected, and nothing is quarantined meanwhile; lately with: {}",
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
    use crate::diagnosis::Cause;
    use crate::event::Partition;
    use crate::node::Node;
    use crate::store::StoreError;
    use crate::telemetry::Metrics;

    /// A store with other settings than this node's, and an output that accepts everything.
    #[derive(Debug)]
    struct Other;

    #[async_trait]
    impl Store for Other {
        async fn check(&self) -> Result<(), StoreError> {
            Ok(())
        }

        async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
            Ok(Some(Diagnosis::new(Cause::Settings, "flush.grace is another")))
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
        let target = CountsTarget {
            store: Arc::new(Other),
            output: Arc::new(Other),
            metrics: Metrics::new(Arc::<Node>::default()).of_output("o"),
            newest: Minute::MIN,
        };
        for result in [target.write(&Counts::default()).await, target.probe().await.unwrap()] {
            assert!(matches!(result, Err(WriteError::Unavailable { .. })), "{result:?}");
        }
    }

    fn counts(series: &[&str]) -> Counts {
        let mut counts = Counts::default();
        for (claim, series) in series.iter().enumerate() {
            let minute = Minute::MIN;
            let series = (*series).to_owned();
            counts.push(claim, vec![SealedCounts { minute, series, unique: 1, cumulative: 1 }]);
        }
        counts
    }

    #[test]
    fn values_are_compared_as_they_are_meant() {
        let counts = counts(&["a=x", r"a=database\ is\ required", "a=y"]);
        let message = "limit exceeded value=\"database is required\"";
        assert_eq!([0, 1, 2].map(|at| counts.quoted(at, message)), [1, 20, 0]);
    }

    #[test]
    fn counts_keep_their_claims() {
        let mut counts = counts(&["a=3", "a=1", "a=2"]);
        counts.retain(|claim| claim != 2);
        let counts = counts.sorted();
        assert_eq!((&*counts.claims, &*counts.counts[0].series), (&[1, 0][..], "a=1"));
    }
}
