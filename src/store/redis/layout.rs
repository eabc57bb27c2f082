//! The interface of a layout: how users and events of a minute are kept until it is sealed.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ::redis::{Pipeline, ScriptInvocation};
use async_trait::async_trait;

use super::gateway::At;
use super::keys::{Place, Process, Scope};
use super::millis;
use crate::event::Minute;
use crate::store::{
    Claim, Compaction, OutputName, Page, REQUEST_BYTES_MAX, RecordRequest, Records, Result,
    SealRequest, Seen, SeriesCounts, SeriesUsers, StoreError,
};

pub(super) const SEALING: &str = include_str!("sealing.lua");

/// The open minutes in a layout. A method has the contract of the method of this name in a role of the store.
#[async_trait]
pub(super) trait OpenMinutes: Debug + Send + Sync {
    /// The name of a minute's key that has members while there is something to seal.
    fn to_seal(&self) -> &'static str;

    /// The beginning of the names of the minute's sets of users; `None` without such sets.
    fn user_sets(&self) -> Option<&'static str>;

    /// By default nothing: admission has returned the users of each series.
    async fn counts(&self, _at: At<'_>) -> Result<Vec<SeriesCounts>> {
        Ok(Vec::new())
    }

    async fn users(&self, at: At<'_>, series: &str, users: &[&str]) -> Result<SeriesUsers>;

    async fn record(&self, at: At<'_>, records: &Records<'_>) -> Result<u64>;

    /// See [`Draining::compact`](crate::store::Draining::compact); the claim is to seal.
    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction>;

    async fn open_page(&self, at: At<'_>, cursor: u64) -> Result<Page<String>>;

    /// Series without events may be among the counts.
    async fn open_counts(&self, at: At<'_>, series: &[&str]) -> Result<Vec<SeriesCounts>>;
}

pub(super) fn by_minute<'a, 'b>(
    recordings: &'a [RecordRequest<'b>],
) -> BTreeMap<Minute, Vec<&'a RecordRequest<'b>>> {
    let mut minutes: BTreeMap<Minute, Vec<_>> = BTreeMap::new();
    for recording in recordings {
        minutes.entry(recording.minute).or_default().push(recording);
    }
    minutes
}

pub(super) fn events_of<'a>(recordings: impl IntoIterator<Item = &'a RecordRequest<'a>>) -> usize {
    recordings.into_iter().map(|recording| recording.occurrences.len()).sum()
}

/// Adds the commands by which a node that claims finds the minute.
pub(super) fn announce(pipeline: &mut Pipeline, place: &Place<'_>, minute: Minute) {
    let minutes = pipeline.cmd("ZADD").arg(place.key(Scope::Partition, "minutes")).arg("NX");
    minutes.arg(minute.epoch_minutes()).arg(minute.to_string()).ignore();
    pipeline.persist(place.key(Scope::Minute, "counts")).ignore();
}

/// Adds the commands that keep the coverage of minutes.
pub(super) fn cover(pipeline: &mut Pipeline, place: Place<'_>, process: &Process, seen: &[Seen]) {
    for seen in seen {
        let coverage = place.minute(seen.minute).key(Scope::Minute, "coverage");
        pipeline.hset(&coverage, &process.node, seen.events).ignore();
        let expire = pipeline.cmd("PEXPIRE").arg(coverage).arg(millis(process.retention)).ignore();
        if !seen.renew {
            // A Redis that lost the key unnoticed gets it with a time to live.
            expire.arg("NX");
        }
    }
}

pub(super) fn names(outputs: &[OutputName]) -> String {
    outputs.iter().map(OutputName::as_str).collect::<Vec<_>>().join(" ")
}

/// Sealed, late in total, left, the token of the claims to send, their outputs.
type Sealed = (u64, u64, u64, String, Vec<String>);

pub(super) async fn seal(
    at: At<'_>,
    claim: &Claim,
    mut script: ScriptInvocation<'_>,
    outputs: &[OutputName],
) -> Result<Compaction> {
    for output in outputs {
        let of = at.place.of(output);
        script.key(&[of.key(Scope::Output, "claims"), of.key(Scope::Output, "tokens")]);
        script.key(of.key(Scope::OutputOfMinute, "unsent"));
    }
    let answer: Option<Sealed> = at.ask(script).await?;
    let (sealed, late, left, token, granted) = held(answer)?;
    let sending = granted.iter().filter_map(|output| {
        Some(Claim {
            output: Some(output.parse().ok()?),
            token: token.clone(),
            taken_over: false,
            ..claim.clone()
        })
    });
    Ok(Compaction { repeated: 0, sealed, late, left, sending: sending.collect() })
}

/// A script returns nil when the claim is not held.
pub(super) fn held<T>(answer: Option<T>) -> Result<T> {
    answer.ok_or(StoreError::ClaimLost)
}

/// Cuts a list into pieces of bounded bytes. A larger item is a piece alone.
pub(super) fn pieces<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut piece = 0;
    items.chunk_by(move |item, next| {
        piece += bytes(item);
        let fits = piece + bytes(next) <= REQUEST_BYTES_MAX;
        if !fits {
            piece = 0;
        }
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_complete() {
        let half = REQUEST_BYTES_MAX / 2;
        let lists: [&[usize]; 4] =
            [&[], &[1; 2000], &[half, half, 1, half], &[3 * half, 1, 3 * half]];
        for list in lists {
            let pieces: Vec<_> = pieces(list, |bytes| *bytes).collect();
            assert_eq!(pieces.concat(), list);
            for piece in pieces {
                let bytes: usize = piece.iter().sum();
                assert!(bytes <= REQUEST_BYTES_MAX || piece.len() == 1);
            }
        }
    }
}
