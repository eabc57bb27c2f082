//! Tests what a round learns about items from a server's replies.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::*;
use crate::diagnosis::{Cause, Diagnosis};

/// Items identified by number; odd ones are repeatable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Numbers(Vec<usize>);

impl Batch for Numbers {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn split_off(&mut self, at: usize) -> Self {
        Self(self.0.split_off(at))
    }

    fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    fn repeatable(&self) -> Option<Self> {
        self.0.iter().find(|number| *number % 2 == 1).map(|number| Self(vec![*number]))
    }
}

/// A server whose `answer` computes the reply from the number of the write and the items of the batch.
struct Server<F> {
    answer: F,
    probe: Option<Result<(), WriteError>>,
    writes: AtomicUsize,
}

impl<F: Fn(usize, &[usize]) -> Result<(), WriteError> + Sync> Target for Server<F> {
    type Batch = Numbers;

    async fn write(&self, batch: &Numbers) -> Result<(), WriteError> {
        (self.answer)(self.writes.fetch_add(1, Relaxed), &batch.0)
    }

    async fn probe(&self) -> Option<Result<(), WriteError>> {
        self.writes.fetch_add(1, Relaxed);
        self.probe.clone()
    }
}

fn server<F>(answer: F, probe: Option<Result<(), WriteError>>) -> Server<F>
where
    F: Fn(usize, &[usize]) -> Result<(), WriteError> + Sync,
{
    Server { answer, probe, writes: AtomicUsize::new(0) }
}

fn rejected() -> Result<(), WriteError> {
    Err(WriteError::Rejected(Diagnosis::new(Cause::OutputRejectsAll, "no")))
}

fn fails() -> Result<(), WriteError> {
    Err(WriteError::Failed(Diagnosis::new(Cause::OutputOverloaded, "status 500")))
}

/// Returns an `answer` that replies with `result` to a batch with any of these items, and accepts all others.
fn except(
    numbers: &[usize],
    result: Result<(), WriteError>,
) -> impl Fn(usize, &[usize]) -> Result<(), WriteError> + Sync {
    move |_, batch| {
        let is_bad = batch.iter().any(|number| numbers.contains(number));
        if is_bad { result.clone() } else { Ok(()) }
    }
}

fn batch(numbers: std::ops::Range<usize>) -> Numbers {
    Numbers(numbers.collect())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn numbers(refusals: &[Refusal<Numbers>]) -> Vec<usize> {
    let mut numbers: Vec<_> = refusals.iter().map(|refusal| refusal.item.0[0]).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn items_rejected_alone_are_refused_and_others_written() {
    let server = server(except(&[7], rejected()), Some(Ok(())));
    let mut delivery = Delivery::new(&server, None);
    assert!(delivery.write(batch(0..20)).await.unwrap().is_none());
    assert!(!delivery.is_complete(), "the rejected items have not been searched for");
    delivery.search(soon(), 0.0).await.unwrap();
    assert_eq!(numbers(delivery.refused()), [7]);
    assert_eq!(delivery.refused()[0].message, "no");
    assert_eq!(delivery.written.len(), 19);
    assert!(delivery.is_complete());
    assert_eq!(delivery.into_unsettled().count(), 0);
}

#[tokio::test]
async fn search_writes_nothing_without_doubt_or_time() {
    let server = server(except(&[7], rejected()), Some(Ok(())));
    let mut delivery = Delivery::new(&server, None);
    delivery.search(soon(), 0.0).await.unwrap();
    assert_eq!(server.writes.load(Relaxed), 0);
    delivery.write(batch(10..20)).await.unwrap();
    delivery.write(batch(0..10)).await.unwrap();
    delivery.search(Instant::now(), 0.0).await.unwrap();
    assert_eq!(server.writes.load(Relaxed), 2);
    assert!(!delivery.is_complete());
    let unsettled: usize = delivery.into_unsettled().map(|batch| batch.len()).sum();
    assert_eq!(unsettled, 10);
}

#[tokio::test]
async fn search_ends_when_the_server_fails_at_everything() {
    let answer = |number, batch: &[usize]| match (number, batch.contains(&7)) {
        (0, _) => Ok(()),
        (1, true) => rejected(),
        _ => fails(),
    };
    let server = server(answer, Some(fails()));
    let mut delivery = Delivery::new(&server, None);
    assert!(delivery.write(batch(100..101)).await.unwrap().is_some());
    assert!(delivery.write(batch(0..100)).await.unwrap().is_none());
    let result = delivery.search(soon(), 0.0).await;
    assert!(matches!(result, Err(WriteError::Unavailable { .. })), "{result:?}");
    let writes = server.writes.load(Relaxed) - 2;
    assert!(writes <= CONCURRENT + 1, "{writes} more writes");
    let unsettled: usize = delivery.into_unsettled().map(|batch| batch.len()).sum();
    assert_eq!(unsettled, 100, "no item is lost");
}

#[tokio::test]
async fn batch_is_kept_while_the_server_is_unreachable() {
    let unreachable = Err(WriteError::unavailable("down"));
    let server = server(move |_, _| unreachable.clone(), None);
    let mut delivery = Delivery::new(&server, None);
    delivery.write(batch(0..3)).await.unwrap_err();
    let unsettled: Vec<_> = delivery.into_unsettled().collect();
    assert_eq!(unsettled, [batch(0..3)]);
}

#[tokio::test]
async fn server_that_rejects_everything_proves_nothing() {
    for probe in [Some(rejected()), None] {
        let server = server(|_, _| rejected(), probe);
        let mut delivery = Delivery::new(&server, None);
        delivery.write(batch(0..1000)).await.unwrap();
        let nothing = delivery.search(soon(), 0.5).await;
        assert!(matches!(nothing, Err(WriteError::Rejected(_))), "{nothing:?}");
        assert!(delivery.refused().is_empty(), "no item is proven to be at fault");
        let writes = server.writes.load(Relaxed);
        assert!(writes <= 2 + SAMPLES_MAX, "{writes} writes");
        let unsettled: usize = delivery.into_unsettled().map(|batch| batch.len()).sum();
        assert_eq!(unsettled, 1000);
    }
}

#[tokio::test]
async fn item_that_makes_the_server_fail_is_not_refused() {
    let server = server(except(&[2], fails()), Some(Ok(())));
    let mut delivery = Delivery::new(&server, None);
    delivery.write(batch(0..4)).await.unwrap();
    delivery.search(soon(), 0.0).await.unwrap();
    assert!(delivery.refused().is_empty());
    assert_eq!(numbers(&delivery.failing), [2]);
    assert_eq!(delivery.written.len(), 3);
}

/// The probe is item 1, which was accepted last, but which the server no longer accepts.
#[tokio::test]
async fn sample_proves_a_refusal_when_the_probe_is_rejected() {
    for result in [rejected(), fails()] {
        let server = server(except(&[1, 8], result.clone()), None);
        let mut delivery = Delivery::new(&server, Some(Numbers(vec![1])));
        let is_written = delivery.write(batch(2..10)).await;
        if result == fails() {
            // The server fails for the probe as well, so it may be down.
            assert!(matches!(is_written, Err(WriteError::Unavailable { .. })), "{is_written:?}");
            continue;
        }
        delivery.search(soon(), 0.0).await.unwrap();
        assert_eq!(numbers(delivery.refused()), [8]);
        assert_eq!(delivery.written.len(), 7);
        let last = delivery.last.clone().unwrap();
        assert!(last != Numbers(vec![1]), "the outdated probe was not replaced");
    }
}

#[tokio::test]
async fn unrepeatable_items_prove_a_refusal_in_their_round() {
    let server = server(except(&[4], rejected()), None);
    let mut delivery = Delivery::new(&server, None);
    delivery.write(Numbers(vec![2, 4, 6])).await.unwrap();
    delivery.search(soon(), 0.0).await.unwrap();
    assert_eq!(numbers(delivery.refused()), [4]);
    assert_eq!(delivery.last, None);
    let mut next = Delivery::new(&server, None);
    next.write(Numbers(vec![4])).await.unwrap();
    next.search(soon(), 0.0).await.unwrap_err();
    assert!(next.refused().is_empty());
}

/// Returns how many writes it takes to find the rejected items, not counting the first.
fn writes(items: usize, is_refused: impl Fn(usize) -> bool) -> usize {
    let has_refused = |batch: &Numbers| batch.0.iter().any(|number| is_refused(*number));
    let mut suspects = suspects([batch(0..items)]);
    let (mut writes, mut written, mut found) = (0, 0, 0);
    while let Some(part) = suspects.next() {
        writes += 1;
        match part.batch.len() {
            length if !has_refused(&part.batch) => written += length,
            1 => found += 1,
            _ => suspects.split(part),
        }
    }
    assert_eq!(found, (0..items).filter(|number| is_refused(*number)).count());
    assert_eq!(found + written, items);
    assert_eq!(suspects.items, 0);
    writes
}

#[test]
fn search_takes_a_bounded_number_of_writes() {
    for items in [2, 3, 5, 100, 2500] {
        assert!(writes(items, |_| true) <= 2 * items);
        assert!(writes(items, |n| n > 0) <= 2 * items);
        assert!(writes(items, |n| n < items / 2 || n == 0) <= items + 25);
    }
    assert!(writes(2500, |n| n == 1234) <= 24);
    assert!(writes(2500, |n| n % 2 == 0) <= 2 * 2500);
}

fn suspects(batches: impl IntoIterator<Item = Numbers>) -> Suspects<Numbers> {
    let mut suspects = Suspects::default();
    for batch in batches {
        suspects.split(Part { batch, depth: 0 });
    }
    suspects
}

/// Removes the samples from `suspects`, and returns them in ascending order.
fn take_samples(suspects: &mut Suspects<Numbers>, most: usize, shift: f64) -> Vec<usize> {
    let (mut place, step) = suspects.samples(most, shift);
    let mut samples = Vec::new();
    while let Some(sample) = suspects.take(place) {
        place += step - 1;
        samples.push(sample.0[0]);
    }
    samples.sort_unstable();
    samples
}

#[test]
fn samples_cover_all_parts_and_vary() {
    let sample = |most, shift| {
        let mut suspects = suspects([batch(0..16)]);
        let samples = take_samples(&mut suspects, most, shift);
        assert_eq!(suspects.items, 16 - samples.len());
        samples
    };
    assert_eq!(sample(16, 0.0), (0..16).collect::<Vec<_>>());
    for (shift, first) in [(0.0, 0), (0.5, 2), (0.99, 3), (1.0, 0)] {
        let expected: Vec<_> = (first..16).step_by(4).collect();
        assert_eq!(sample(4, shift), expected);
    }
}

#[test]
fn the_items_of_a_search_are_bounded() {
    let mut suspects = suspects((0..3).map(|_| batch(0..ITEMS_MAX / 2)));
    assert_eq!(suspects.items, ITEMS_MAX);
    assert!(suspects.are_incomplete);
    let samples = take_samples(&mut suspects, 64, 0.99);
    assert!((60..=64).contains(&samples.len()), "{}", samples.len());
}
