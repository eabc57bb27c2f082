//! [`Delivery`]: writes batches to a server and finds the items that the server does not accept.
//!
//! Every batch is written once. Batches that are not accepted are split until the offending items are isolated
//! ([`Suspects`]). Replies are interpreted in light of other replies, never by their messages:
//!
//! - An item counts as rejected if it was rejected on its own and the server then accepted a later write: a different item,
//!   or a probe. The probe rewrites the last accepted item, which has no effect, or writes a point without an item
//!   ([`Target::probe`]).
//! - A reply that looks like a misconfiguration or a server fault is believed if the server does not accept the probe
//!   either. Otherwise the cause is in the batch: a firewall may reply with 403 because of the text in a tag, and that text
//!   may also make a server fail. An item for which the server fails even if it is written alone is reported as failing, not
//!   as rejected, because the item may not be to blame.
//! - A server that is down, or asks for a pause, ends the round without another request.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::WriteError;

/// Maximum number of parts that are written concurrently.
const CONCURRENT: usize = 6;
/// Number of consecutive failures that triggers a probe.
const UNPROVEN_MAX: usize = 16;
/// Maximum number of items written individually as samples after the server has rejected the probe.
const SAMPLES_MAX: usize = 64;
/// Number of smaller parts that a part is split into.
const WAYS: usize = 4;
/// Maximum number of items that a round searches through. The others are left for a later round.
const ITEMS_MAX: usize = 100_000;

/// Items written in one request.
pub(crate) trait Batch: Default + Send + Sync {
    fn len(&self) -> usize;

    fn split_off(&mut self, at: usize) -> Self;

    fn append(&mut self, other: Self);

    /// Returns a copy of an item that can safely be written again, or `None` if the batch has no such item.
    fn repeatable(&self) -> Option<Self>;

    /// Removes and returns the item at this index.
    fn take(&mut self, at: usize) -> Self {
        let mut item = self.split_off(at);
        let behind = item.split_off(1);
        self.append(behind);
        item
    }
}

/// A server to which batches are written.
pub(crate) trait Target: Sync {
    type Batch: Batch;

    fn write(&self, batch: &Self::Batch) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Writes a point without an item. Returns `None` if the server has nowhere to put one.
    fn probe(&self) -> impl Future<Output = Option<Result<(), WriteError>>> + Send;
}

/// An item that was not accepted on its own.
#[derive(Debug)]
pub(crate) struct Refusal<B> {
    pub(crate) item: B,
    pub(crate) message: String,
}

#[derive(Debug)]
pub(crate) struct Delivery<'a, T: Target> {
    target: &'a T,
    /// The last accepted item, from this or an earlier round, that can safely be written again.
    pub(crate) last: Option<T::Batch>,
    is_last_refused: bool,
    suspects: Suspects<T::Batch>,
    /// Items written by the search.
    pub(crate) written: T::Batch,
    /// Items that were rejected on their own.
    refused: Vec<Refusal<T::Batch>>,
    /// The number of leading `refused` items that are proven: the server has accepted a write since it rejected them.
    proven: usize,
    /// Items for which the server fails even if they are written alone.
    pub(crate) failing: Vec<Refusal<T::Batch>>,
    pub(crate) has_accepted: bool,
    /// The number of failures since the last accepted write.
    unproven: usize,
    error: Option<WriteError>,
}

impl<'a, T: Target> Delivery<'a, T> {
    pub(crate) fn new(target: &'a T, last: Option<T::Batch>) -> Self {
        Self {
            target,
            last,
            is_last_refused: false,
            suspects: Suspects::default(),
            written: T::Batch::default(),
            refused: Vec::new(),
            proven: 0,
            failing: Vec::new(),
            has_accepted: false,
            unproven: 0,
            error: None,
        }
    }

    /// Writes a batch. Returns it if it was accepted, or `None` if it is left for [`Self::search`]. An error ends the round.
    pub(crate) async fn write(&mut self, batch: T::Batch) -> Result<Option<T::Batch>, WriteError> {
        let Err(error) = self.target.write(&batch).await else {
            self.accepted(&batch, self.refused.len());
            return Ok(Some(batch));
        };
        self.divide(Part { batch, depth: 0 }, &error)?;
        if matches!(error, WriteError::Failed(_) | WriteError::Misconfigured(_)) {
            match self.prove().await {
                // The server is up, so the round continues: if a later batch is accepted, more rejections are proven.
                Ok(()) | Err(WriteError::Rejected(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Searches unaccepted batches for offending items; starts no write after `until`. Returns `Err` if nothing is accepted.
    pub(crate) async fn search(&mut self, until: Instant, shift: f64) -> Result<(), WriteError> {
        if self.unproven > 0 && !self.has_accepted {
            self.prove_by_samples(shift).await?;
        }
        let target = self.target;
        let mut under_way = FuturesUnordered::new();
        let mut failure = None;
        loop {
            while failure.is_none()
                && under_way.len() < CONCURRENT
                && Instant::now() < until
                && let Some(part) = self.suspects.next()
            {
                let refused_before = self.refused.len();
                under_way.push(async move {
                    let result = target.write(&part.batch).await;
                    (part, refused_before, result)
                });
            }
            let Some((part, refused_before, result)) = under_way.next().await else {
                break;
            };
            let Err(error) = result else {
                self.accepted(&part.batch, refused_before);
                self.written.append(part.batch);
                continue;
            };
            let mut result = self.divide(part, &error);
            // The server may have gone down, so that every further write would take as long to fail. A probe finds out.
            let is_doubtful =
                matches!(error, WriteError::Failed(_)) || self.unproven >= UNPROVEN_MAX;
            if failure.is_none() && result.is_ok() && is_doubtful {
                result = self.prove().await;
            }
            failure = failure.or(result.err());
        }
        if failure.is_none() && self.proven < self.refused.len() {
            failure = self.prove().await.err();
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns the items that the server has been proven to reject while accepting others.
    pub(crate) fn refused(&self) -> &[Refusal<T::Batch>] {
        &self.refused[..self.proven]
    }

    /// Returns whether the search has covered every item.
    pub(crate) fn is_complete(&self) -> bool {
        self.suspects.parts.is_empty() && !self.suspects.are_incomplete
    }

    /// Returns the batches whose outcome is unknown, except those for which the server fails.
    pub(crate) fn into_unsettled(mut self) -> impl Iterator<Item = T::Batch> {
        let unproven = self.refused.split_off(self.proven);
        let parts = self.suspects.parts.into_values().map(|part| part.batch);
        parts.chain(unproven.into_iter().map(|refusal| refusal.item))
    }

    /// Writes a probe. Returns an error if the server does not accept one.
    pub(crate) async fn prove(&mut self) -> Result<(), WriteError> {
        let mut result = None;
        if let Some(last) = &self.last {
            let written = self.target.write(last).await;
            self.is_last_refused =
                matches!(written, Err(WriteError::Rejected(_) | WriteError::Misconfigured(_)));
            result = Some(written).filter(|_| !self.is_last_refused);
        }
        if result.is_none() {
            result = self.target.probe().await;
        }
        match (result, &self.error) {
            (Some(Err(WriteError::Failed(found))), _) => {
                Err(WriteError::Unavailable { found, retry_after: None })
            }
            (Some(Err(error)), _) => Err(error),
            (None, Some(error)) if self.last.is_some() || !self.has_accepted => {
                Err(WriteError::Rejected(error.found().clone()))
            }
            (Some(Ok(())) | None, _) => {
                self.accepted(&T::Batch::default(), self.refused.len());
                Ok(())
            }
        }
    }

    /// Writes a probe and, if it is rejected, individual suspects: a full server may accept only series that it already has.
    async fn prove_by_samples(&mut self, shift: f64) -> Result<(), WriteError> {
        let mut proof = self.prove().await;
        let (mut place, step) = self.suspects.samples(SAMPLES_MAX, shift);
        while matches!(proof, Err(WriteError::Rejected(_)))
            && let Some(batch) = self.suspects.take(place)
        {
            // The next sample has moved forward by one, because an item before it has been removed.
            place += step - 1;
            proof = self.target.write(&batch).await;
            match &proof {
                Ok(()) => {
                    self.accepted(&batch, self.refused.len());
                    self.written.append(batch);
                }
                Err(error) => _ = self.divide(Part { batch, depth: 1 }, error),
            }
        }
        proof
    }

    /// Splits a part that was not accepted. Returns `Err` if the error says nothing about its items.
    fn divide(&mut self, part: Part<T::Batch>, error: &WriteError) -> Result<(), WriteError> {
        self.unproven += 1;
        self.error = Some(error.clone());
        let message = error.found().why.clone();
        match error {
            WriteError::Unavailable { .. } => {
                self.suspects.insert(part);
                return Err(error.clone());
            }
            _ if part.batch.len() > 1 => self.suspects.split(part),
            WriteError::Failed(_) => self.failing.push(Refusal { item: part.batch, message }),
            _ => self.refused.push(Refusal { item: part.batch, message }),
        }
        Ok(())
    }

    /// Records an accepted batch. Before its write started, `refused_before` items had been rejected on their own.
    fn accepted(&mut self, batch: &T::Batch, refused_before: usize) {
        self.has_accepted = true;
        self.unproven = 0;
        self.proven = self.proven.max(refused_before);
        let last = self.last.take().filter(|_| !self.is_last_refused);
        self.last = batch.repeatable().or(last);
        self.is_last_refused = false;
    }
}

/// Items, at least one of which the server does not accept.
#[derive(Debug)]
struct Part<B> {
    batch: B,
    depth: u32,
}

/// Parts of batches that the server did not accept, in search order.
///
/// A part is split into [`WAYS`] parts recursively, until single items are left. If `n` consecutive items are rejected, this
/// takes about `4/3·n` writes; finding one rejected item among 2500 takes about twenty.
///
/// The first parts of all batches come first, so that most good items are written soon. After that, the smallest parts come
/// first, because a search that is short of time must finish some items, or the next search would start all over again.
#[derive(Debug)]
struct Suspects<B> {
    parts: BTreeMap<(bool, Reverse<u32>, u64), Part<B>>,
    items: usize,
    added: u64,
    /// Whether items were left for a later round.
    are_incomplete: bool,
}

impl<B> Default for Suspects<B> {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), items: 0, added: 0, are_incomplete: false }
    }
}

impl<B: Batch> Suspects<B> {
    fn insert(&mut self, part: Part<B>) {
        self.items += part.batch.len();
        self.added += 1;
        self.parts.insert((part.depth > 1, Reverse(part.depth), self.added), part);
    }

    /// Splits an unaccepted part, and adds the smaller parts. Leaves out a whole batch if there are too many items already.
    fn split(&mut self, Part { mut batch, depth }: Part<B>) {
        if depth == 0 && self.items > 0 && self.items + batch.len() > ITEMS_MAX {
            self.are_incomplete = true;
            return;
        }
        let size = batch.len().div_ceil(WAYS);
        while batch.len() > 0 {
            let part = batch.split_off((batch.len() - 1) / size * size);
            self.insert(Part { batch: part, depth: depth + 1 });
        }
    }

    fn next(&mut self) -> Option<Part<B>> {
        let (_, part) = self.parts.pop_first()?;
        self.items -= part.batch.len();
        Some(part)
    }

    /// Returns the index of the first of up to `most` samples and the distance between them; `shift` (0 to 1) offsets all.
    fn samples(&self, most: usize, shift: f64) -> (usize, usize) {
        let step = self.items.div_ceil(most).max(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index up to about 100,000"
        )]
        let first = (step as f64 * shift) as usize % step;
        (first, step)
    }

    /// Removes and returns the item at an index among all items, or returns `None` if there are fewer items.
    fn take(&mut self, mut place: usize) -> Option<B> {
        for (&key, part) in &mut self.parts {
            let length = part.batch.len();
            if place < length {
                let item = part.batch.take(place);
                if length == 1 {
                    self.parts.remove(&key);
                }
                self.items -= 1;
                return Some(item);
            }
            place -= length;
        }
        None
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
