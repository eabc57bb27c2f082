//! How counts are handed over: in bodies, and by halving where a body is rejected.
//!
//! Owns no connection and no clock; it is given a [`Post`] and asks it again and again. A rejected body is
//! halved until the counts at fault stand alone. A count that is rejected alone is refused; all the others end
//! up in a body that was accepted. With `b` bad counts in bodies of `n` this takes at most
//! `2·b·⌈log₂ n⌉` requests more than there are bodies.
//!
//! # When everything is rejected
//! A 400 that has nothing to do with the lines (a limit of the server, a field that has another type in the whole
//! measurement, a proxy with opinions) would make halving set aside every good count, one by one, at two
//! requests each. No single count is known to be good, so none can be sent ahead as a test. What is known is
//! that the service writes lines of one simple form: that many of them in a row are at fault, and not a single
//! one is right, is far less likely than a fault of the server or of the configuration. Hence
//!
//! - counts are refused without further thought while the server accepts others in the same write, or while
//!   no more than [`UNPROVEN_MAX`] were refused since it last accepted anything, in this write or earlier ones;
//! - beyond that, up to [`PROBES_MAX`] counts of those yet undecided are tried alone, the last (the newest
//!   minute) first and then evenly spread. One success proves that the server does accept counts, and the
//!   search goes on; without one the write fails as [`WriteError::Misconfigured`], and nothing is set aside.
//!
//! So at most [`UNPROVEN_MAX`] good counts are ever set aside by mistake, and a write to a server that rejects
//! everything costs a bounded number of requests. Likeness of the server's words is deliberately not asked for:
//! many servers quote the line, or a request number, so that the same fault never has the same words twice.
//! The price is that counts which are really bad wait, loudly, until a good one is written along with them.

use std::fmt::Write as _;
use std::future::Future;
use std::ops::Range;

use super::answer::Answer;
use crate::output::line_protocol::Points;
use crate::output::{Refused, WriteError};

/// How many counts in a row may be refused before a success is asked for. Large enough for a handful of odd
/// series on a quiet system; small enough to be looked through by hand.
pub(super) const UNPROVEN_MAX: usize = 16;
/// How many counts are tried alone in search of a success.
pub(super) const PROBES_MAX: usize = 16;

/// Something that takes a body of lines and says what came of it.
pub(super) trait Post: Sync {
    /// Posts the lines, once.
    fn post(&self, body: String) -> impl Future<Output = Answer> + Send;
}

/// What came of a delivery that was decided for every count.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// The counts that the server does not take, by rising index.
    pub(super) refused: Vec<Refused>,
    /// Whether the server took anything at all.
    pub(super) accepted: bool,
}

/// Delivers the counts, each given with its index for [`Refused`], in bodies of at most `counts_per_body`.
/// `unproven` is how many counts were refused by earlier deliveries since the server last accepted one.
pub(super) async fn deliver<P: Post>(
    post: &P,
    counts: &[(usize, Points<'_>)],
    counts_per_body: usize,
    unproven: usize,
) -> Result<Delivered, WriteError> {
    let mut delivered = Delivered::default();
    // What is yet undecided, next at the end: always all that follows the range in hand, in order.
    let mut undecided = bodies(counts.len(), counts_per_body);
    while let Some(range) = undecided.pop() {
        match post.post(body(&counts[range.clone()])).await {
            Answer::Done => delivered.accepted = true,
            Answer::Failed(error) => return Err(error),
            Answer::Rejected { .. } if range.len() > 1 => {
                let middle = range.start + range.len() / 2;
                undecided.push(middle..range.end);
                undecided.push(range.start..middle);
            }
            Answer::Rejected { words } => {
                let (index, _) = counts[range.start];
                delivered.refused.push(Refused {
                    index,
                    words: words.clone(),
                });
                if !delivered.accepted && unproven + delivered.refused.len() > UNPROVEN_MAX {
                    prove(post, &counts[range.end..], words).await?;
                    delivered.accepted = true;
                }
            }
        }
    }
    Ok(delivered)
}

/// Looks for one count that the server accepts; `Err` when it accepts none of those tried.
async fn prove<P: Post>(
    post: &P,
    undecided: &[(usize, Points<'_>)],
    mut words: String,
) -> Result<(), WriteError> {
    let probes = undecided.len().min(PROBES_MAX);
    for probe in (1..=probes).rev() {
        let chosen = undecided.len() * probe / probes - 1;
        match post.post(body(&undecided[chosen..=chosen])).await {
            Answer::Done => return Ok(()),
            Answer::Failed(error) => return Err(error),
            Answer::Rejected { words: latest } => words = latest,
        }
    }
    Err(WriteError::Misconfigured {
        reason: format!("every count is rejected, lately with: {words}"),
        mend:
            "look at the server's limits and at the type of its field `value`, at output.url and \
               at what stands between; nothing is set aside meanwhile"
                .to_owned(),
    })
}

/// The ranges of all bodies, the first one last.
fn bodies(counts: usize, counts_per_body: usize) -> Vec<Range<usize>> {
    let step = counts_per_body.max(1);
    (0..counts)
        .step_by(step)
        .map(|start| start..counts.min(start + step))
        .rev()
        .collect()
}

fn body(counts: &[(usize, Points<'_>)]) -> String {
    let mut body = String::new();
    for (_, points) in counts {
        // Writing to a string cannot fail.
        let _ = write!(body, "{points}");
    }
    body
}

#[cfg(test)]
mod tests;
