//! One round of writing: which counts the output takes, and which it refuses.
//!
//! Every body is written once, and what is accepted is done with. Bodies that are not accepted are split until the
//! counts at fault stand alone ([`Suspects`]). What an answer means is decided by other answers, never by its message:
//!
//! - A count is refused when it was rejected alone and the output accepted something that was written after that:
//!   another count, or a probe. The probe is the count that was last accepted, which changes nothing, or a point of no count
//!   ([`Output::probe`]).
//! - An answer that looks like a misconfiguration or a fault of the server is believed when the output does not take
//!   the probe either. Otherwise it is about the body: a firewall may answer 403 to the text of a tag, and a server
//!   may fail at it. A count at which the output fails alone stays unsent, for it may not be the count's fault.
//! - An output that is away, or asks to be left alone, ends the round without a further request.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::suspects::{Body, Part, Suspects};
use crate::diagnosis::Diagnosis;
use crate::event::Minute;
use crate::output::{Output, SealedCounts, WriteError};
use crate::telemetry::OutputMetrics;

/// How many parts are written at the same time.
const CONCURRENT: usize = 6;
/// How many answers in a row that are no acceptance are followed by a probe.
const UNPROVEN_MAX: usize = 16;
/// How many single counts are tried where not even the probe is accepted.
const SAMPLES_MAX: usize = 64;

/// Counts that were not accepted alone.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) body: Body,
    /// What the server answered.
    pub(super) message: String,
}

/// A round of writing.
#[derive(Debug)]
pub(super) struct Delivery<'a> {
    output: &'a dyn Output,
    metrics: &'a OutputMetrics,
    /// The count that was accepted last, in this round or an earlier one.
    pub(super) last: Option<SealedCounts>,
    /// The minute of a probe: one that no retention has forgotten.
    newest: Minute,
    suspects: Suspects,
    /// Written by the search.
    pub(super) written: Body,
    /// Rejected alone.
    refused: Vec<Refusal>,
    /// How many of them, from the first, were rejected before something was written that was accepted.
    proven: usize,
    /// The output fails at each of them alone.
    pub(super) failing: Vec<Refusal>,
    pub(super) has_accepted: bool,
    /// The answers since something was accepted.
    unproven: usize,
}

/// Writes once, and takes the time.
async fn post(
    output: &dyn Output,
    metrics: &OutputMetrics,
    counts: &[SealedCounts],
) -> Result<(), WriteError> {
    timed(metrics, output.write(counts)).await
}

async fn timed(
    metrics: &OutputMetrics,
    write: impl Future<Output = Result<(), WriteError>>,
) -> Result<(), WriteError> {
    let began = Instant::now();
    let result = write.await;
    let seconds = began.elapsed().as_secs_f64();
    metrics.write_seconds.observe(seconds);
    result
}

/// What it means that nothing is accepted.
fn takes_nothing(error: WriteError) -> WriteError {
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

impl<'a> Delivery<'a> {
    pub(super) fn new(
        output: &'a dyn Output,
        metrics: &'a OutputMetrics,
        last: Option<SealedCounts>,
        now: Minute,
    ) -> Self {
        Self {
            output,
            metrics,
            last,
            newest: now,
            suspects: Suspects::default(),
            written: Body::default(),
            refused: Vec::new(),
            proven: 0,
            failing: Vec::new(),
            has_accepted: false,
            unproven: 0,
        }
    }

    /// Writes a body once. Gives it back when it was accepted; otherwise it is searched later. `Err` ends the round.
    pub(super) async fn write(&mut self, body: Body) -> Result<Option<Body>, WriteError> {
        let body = body.sorted();
        let newest = body.counts.last().map(|counts| counts.minute);
        self.newest = self.newest.max(newest.unwrap_or(self.newest));
        let error = match post(self.output, self.metrics, &body.counts).await {
            Ok(()) => {
                self.accepted(&body.counts, self.refused.len());
                return Ok(Some(body));
            }
            Err(error) => error,
        };
        if matches!(error, WriteError::Failed(_) | WriteError::Misconfigured(_)) {
            match self.prove().await {
                // The server is there. Bodies that follow may be accepted, and prove more.
                Ok(()) | Err(WriteError::Rejected(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let message = self.doubt(&error)?;
        if body.len() == 1 {
            self.found(body, message, &error);
        } else {
            self.suspects.add(body, &message);
        }
        Ok(None)
    }

    /// Searches the bodies that were not accepted, until this instant. `Err` when the output takes nothing.
    pub(super) async fn search(&mut self, until: Instant, shift: f64) -> Result<(), WriteError> {
        let result = self.search_until(until, shift).await;
        result.map_err(takes_nothing)
    }

    /// Looks whether the output takes points, without any to send.
    pub(super) async fn probe(&mut self) -> Result<(), WriteError> {
        self.prove().await.map_err(takes_nothing)
    }

    /// The counts of which it is proven that the output refuses them and takes others.
    pub(super) fn refused(&self) -> &[Refusal] {
        &self.refused[..self.proven]
    }

    /// Whether no count is left that was not looked at.
    pub(super) fn is_complete(&self) -> bool {
        self.suspects.is_empty() && !self.suspects.are_incomplete
    }

    async fn search_until(&mut self, until: Instant, shift: f64) -> Result<(), WriteError> {
        if self.unproven > 0 && !self.has_accepted {
            self.prove_by_any(shift).await?;
        }
        let (output, metrics) = (self.output, self.metrics);
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < CONCURRENT
                && Instant::now() < until
                && let Some(part) = self.suspects.next()
            {
                let before = self.refused.len();
                under_way.push(async move {
                    let result = post(output, metrics, &part.body.counts).await;
                    (part, before, result)
                });
            }
            let Some((part, before, result)) = under_way.next().await else {
                break;
            };
            let error = match result {
                Ok(()) => {
                    self.accepted(&part.body.counts, before);
                    self.written.append(part.body);
                    continue;
                }
                Err(error) => error,
            };
            self.divide(part, &error)?;
            // A server that fails may have gone: each further write would wait as long.
            if matches!(error, WriteError::Failed(_)) || self.unproven >= UNPROVEN_MAX {
                self.prove().await?;
            }
        }
        if self.proven < self.refused.len() {
            self.prove().await?;
        }
        Ok(())
    }

    fn divide(&mut self, part: Part, error: &WriteError) -> Result<(), WriteError> {
        let message = self.doubt(error)?;
        if part.body.len() == 1 {
            self.found(part.body, message, error);
        } else {
            self.suspects.split(part, &message);
        }
        Ok(())
    }

    /// The message of an answer that may be about the counts.
    fn doubt(&mut self, error: &WriteError) -> Result<String, WriteError> {
        self.unproven += 1;
        match error {
            WriteError::Unavailable { .. } => Err(error.clone()),
            error => Ok(error.found().why.clone()),
        }
    }

    fn found(&mut self, body: Body, message: String, error: &WriteError) {
        let refusal = Refusal { body, message };
        if matches!(error, WriteError::Failed(_)) {
            self.failing.push(refusal);
        } else {
            self.refused.push(refusal);
        }
    }

    /// Counts were accepted before whose write so many had been rejected alone.
    fn accepted(&mut self, counts: &[SealedCounts], before: usize) {
        self.has_accepted = true;
        self.unproven = 0;
        self.proven = self.proven.max(before);
        self.last = counts.last().cloned();
    }

    /// Writes a probe. `Err` says why the output takes none.
    async fn prove(&mut self) -> Result<(), WriteError> {
        let mut error = None;
        // The count that was accepted last, then a point of no count.
        for last in self.last.clone().map(Some).into_iter().chain([None]) {
            let counts = last.as_slice();
            let write = async {
                if counts.is_empty() {
                    self.output.probe(self.newest).await
                } else {
                    self.output.write(counts).await
                }
            };
            match timed(self.metrics, write).await {
                Ok(()) => {
                    self.accepted(counts, self.refused.len());
                    return Ok(());
                }
                Err(WriteError::Failed(found)) => {
                    return Err(WriteError::Unavailable { found, retry_after: None });
                }
                Err(away @ WriteError::Unavailable { .. }) => return Err(away),
                Err(refused) => error = Some(refused),
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Writes a probe; where the server rejects it, single counts of those in doubt. A server that is full may take
    /// series that it knows and no other, not even ours.
    async fn prove_by_any(&mut self, shift: f64) -> Result<(), WriteError> {
        let error = match self.prove().await {
            Err(error @ WriteError::Rejected(_)) => error,
            decided => return decided,
        };
        for sample in self.suspects.spread(SAMPLES_MAX, shift) {
            match post(self.output, self.metrics, std::slice::from_ref(&sample)).await {
                Ok(()) => {
                    self.accepted(&[sample], self.refused.len());
                    return Ok(());
                }
                Err(away @ WriteError::Unavailable { .. }) => return Err(away),
                Err(WriteError::Failed(_)) => break,
                Err(_) => {}
            }
        }
        Err(error)
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
