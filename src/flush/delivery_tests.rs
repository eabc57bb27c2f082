//! What a round finds out about counts by the answers of an output.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::diagnosis::Cause;
use crate::node::Node;
use crate::telemetry::Metrics;

/// An output that answers as it is told to the counts of a write, by the number of the write.
struct Told<F> {
    answer: F,
    probe: Result<(), WriteError>,
    writes: AtomicUsize,
}

impl<F> std::fmt::Debug for Told<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").finish_non_exhaustive()
    }
}

#[async_trait]
impl<F> Output for Told<F>
where
    F: Fn(usize, &[SealedCounts]) -> Result<(), WriteError> + Send + Sync,
{
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        (self.answer)(self.writes.fetch_add(1, Relaxed), counts)
    }

    async fn probe(&self, _: Minute) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Relaxed);
        self.probe.clone()
    }

    fn describe(&self) -> String {
        "told".to_owned()
    }
}

fn told<F>(answer: F, probe: Result<(), WriteError>) -> Told<F>
where
    F: Fn(usize, &[SealedCounts]) -> Result<(), WriteError>,
{
    let writes = AtomicUsize::new(0);
    Told { answer, probe, writes }
}

fn rejected() -> Result<(), WriteError> {
    let found = Diagnosis::new(Cause::OutputRejectsAll, "no");
    Err(WriteError::Rejected(found))
}

fn fails() -> Result<(), WriteError> {
    let found = Diagnosis::new(Cause::OutputOverloaded, "status 500");
    Err(WriteError::Failed(found))
}

fn metrics() -> OutputMetrics {
    Metrics::new(Arc::<Node>::default()).of_output("o")
}

fn body(numbers: std::ops::Range<usize>) -> Body {
    let counts = numbers.map(|number| SealedCounts {
        minute: Minute::of_nanos(0),
        series: format!("n={number:04}"),
        unique: 1,
        cumulative: 1,
    });
    let mut body = Body::default();
    body.push(0, counts.collect());
    body
}

fn has(counts: &[SealedCounts], series: &str) -> bool {
    counts.iter().any(|counts| counts.series == series)
}

/// Takes all but one count.
fn except(
    series: &'static str,
    result: Result<(), WriteError>,
) -> impl Fn(usize, &[SealedCounts]) -> Result<(), WriteError> {
    move |_, counts| {
        if has(counts, series) { result.clone() } else { Ok(()) }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn counts_that_are_rejected_alone_are_refused_and_the_others_of_their_body_written() {
    let answer = except("n=0007", rejected());
    let (output, metrics) = (told(answer, Ok(())), metrics());
    let mut delivery = Delivery::new(&output, &metrics, None, Minute::of_nanos(0));
    assert!(delivery.write(body(0..20)).await.unwrap().is_none());
    assert!(!delivery.is_complete(), "nobody has searched");
    delivery.search(soon(), 0.0).await.unwrap();
    let refused = delivery.refused();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].body.counts[0].series, "n=0007");
    assert_eq!(refused[0].message, "no");
    assert_eq!(delivery.written.len(), 19);
    assert!(delivery.is_complete());
}

#[tokio::test]
async fn a_search_writes_nothing_where_nothing_is_in_doubt_or_no_time_is_left() {
    let answer = except("n=0007", rejected());
    let (output, metrics) = (told(answer, Ok(())), metrics());
    let mut delivery = Delivery::new(&output, &metrics, None, Minute::of_nanos(0));
    delivery.search(soon(), 0.0).await.unwrap();
    assert_eq!(output.writes.load(Relaxed), 0);
    delivery.write(body(10..20)).await.unwrap();
    delivery.write(body(0..10)).await.unwrap();
    delivery.search(Instant::now(), 0.0).await.unwrap();
    assert_eq!(output.writes.load(Relaxed), 2);
    assert!(!delivery.is_complete());
}

#[tokio::test]
async fn a_search_ends_when_the_server_fails_at_all_that_it_took() {
    let answer = |number, counts: &[SealedCounts]| match (number, has(counts, "n=0007")) {
        (0, _) => Ok(()),
        (1, true) => rejected(),
        _ => fails(),
    };
    let (output, metrics) = (told(answer, fails()), metrics());
    let mut delivery = Delivery::new(&output, &metrics, None, Minute::of_nanos(0));
    assert!(delivery.write(body(100..101)).await.unwrap().is_some());
    assert!(delivery.write(body(0..100)).await.unwrap().is_none());
    let gone = delivery.search(soon(), 0.0).await;
    assert!(matches!(gone, Err(WriteError::Unavailable { .. })), "{gone:?}");
    let writes = output.writes.load(Relaxed) - 2;
    assert!(writes <= CONCURRENT + 1, "{writes} more writes");
}

#[tokio::test]
async fn an_output_that_rejects_everything_is_misconfigured_and_learns_of_few_counts() {
    let (output, metrics) = (told(|_, _| rejected(), rejected()), metrics());
    let mut delivery = Delivery::new(&output, &metrics, None, Minute::of_nanos(0));
    delivery.write(body(0..1000)).await.unwrap();
    let nothing = delivery.search(soon(), 0.5).await;
    assert!(matches!(nothing, Err(WriteError::Misconfigured(_))), "{nothing:?}");
    assert!(delivery.refused().is_empty(), "none is proven");
    let writes = output.writes.load(Relaxed);
    assert!(writes <= 2 + SAMPLES_MAX, "{writes} writes");
}

#[tokio::test]
async fn a_count_at_which_the_output_fails_alone_is_failing_and_not_refused() {
    let answer = except("n=0002", fails());
    let (output, metrics) = (told(answer, Ok(())), metrics());
    let mut delivery = Delivery::new(&output, &metrics, None, Minute::of_nanos(0));
    delivery.write(body(0..4)).await.unwrap();
    delivery.search(soon(), 0.0).await.unwrap();
    assert!(delivery.refused().is_empty());
    assert_eq!(delivery.failing.len(), 1);
    assert_eq!(delivery.failing[0].body.counts[0].series, "n=0002");
    assert_eq!(delivery.written.len(), 3);
}
