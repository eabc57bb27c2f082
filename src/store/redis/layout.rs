//! The interface of a layout, which defines how users and events of a minute are stored until the minute is sealed.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ::redis::{Pipeline, ScriptInvocation};
use async_trait::async_trait;

use super::gateway::At;
use super::keys::{Place, Process, Scope};
use super::millis;
use crate::event::{Minute, OverflowSeries};
use crate::store::{
    ACTIVE_MAX, Bucket, Claim, Compaction, OutputName, Page, REQUEST_BYTES_MAX, RecordRequest,
    Records, Result, SealRequest, Seen, SeriesCounts, SeriesUsers, StoreError,
};

pub(super) const SEALING: &str = include_str!("sealing.lua");

/// How open minutes or windows are sealed and read. Unless noted, each method has the contract of the store's method with the
/// same name.
#[async_trait]
pub(super) trait OpenMinutes: Debug + Send + Sync {
    /// Returns the name of a key of the minute that has members as long as there is something to seal.
    fn to_seal(&self) -> &'static str;

    /// Implements [`Draining::compact`](crate::store::Draining::compact). The claim is always one to seal.
    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction>;

    async fn open_page(&self, at: At<'_>, cursor: u64) -> Result<Page<String>>;

    /// The result may include series without events.
    async fn open_counts(&self, at: At<'_>, series: &[&str]) -> Result<Vec<SeriesCounts>>;
}

/// How a layout records events in open minutes.
#[async_trait]
pub(super) trait RecordedMinutes: OpenMinutes {
    /// Returns the key prefix of the minute's sets of users, or None if there are no such sets.
    fn user_sets(&self) -> Option<&'static str>;

    /// Returns an empty list by default, because admission has already returned the number of users of each series.
    async fn counts(&self, _at: At<'_>) -> Result<Vec<SeriesCounts>> {
        Ok(Vec::new())
    }

    async fn users(&self, at: At<'_>, series: &str, users: &[&str]) -> Result<SeriesUsers>;

    async fn record(&self, at: At<'_>, records: &Records<'_>) -> Result<u64>;

    /// Implements [`Draining::sealed_users`](crate::store::Draining::sealed_users).
    async fn sealed_users(
        &self,
        at: At<'_>,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()>;
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

/// Adds the commands that let nodes find the minute when they request claims, and that keep its counts from expiring.
pub(super) fn announce(pipeline: &mut Pipeline, place: &Place<'_>, minute: Minute) {
    let minutes = pipeline.cmd("ZADD").arg(place.key(Scope::Partition, "minutes")).arg("NX");
    minutes.arg(minute.epoch_minutes()).arg(minute.to_string()).ignore();
    pipeline.persist(place.key(Scope::Minute, "counts")).ignore();
}

/// Adds the commands that store the coverage of minutes.
pub(super) fn cover(pipeline: &mut Pipeline, place: Place<'_>, process: &Process, seen: &[Seen]) {
    for seen in seen {
        let coverage = place.minute(seen.minute).key(Scope::Minute, "coverage");
        pipeline.hset(&coverage, &process.node, seen.events).ignore();
        let expire = pipeline.cmd("PEXPIRE").arg(coverage).arg(millis(process.retention)).ignore();
        if !seen.renew {
            // Sets the TTL only if the key has none: Redis may have lost the previous key unnoticed.
            expire.arg("NX");
        }
    }
}

pub(super) fn names(outputs: &[OutputName]) -> String {
    outputs.iter().map(OutputName::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the argument from which `sealing.lua` learns which series get zeros: empty if none do.
pub(super) fn zeros_for(at: At<'_>, zeros: u32) -> String {
    let Bucket { partition, minute } = at.bucket();
    let partitions = &at.gateway.partitions;
    let count = partitions.count_in(minute);
    let next = minute.after(1);
    if zeros == 0 {
        return String::new();
    }
    let next = if partitions.count_in(next) == count { next.to_string() } else { String::new() };
    let overflow = OverflowSeries::new(partitions, partition);
    format!("{zeros} {ACTIVE_MAX} {count} {next} {}", overflow.of(minute))
}

/// The reply of `end_step`: series sealed, total of late events, series left, token of the claims to send, their outputs.
type Sealed = (u64, u64, u64, String, Vec<String>);

pub(super) async fn seal(
    at: At<'_>,
    claim: &Claim,
    mut script: ScriptInvocation<'_>,
    outputs: &[OutputName],
) -> Result<Compaction> {
    for output in outputs {
        let place = at.place.of(output);
        script.key(&[place.key(Scope::Output, "claims"), place.key(Scope::Output, "tokens")]);
        script.key(place.key(Scope::OutputOfMinute, "unsent"));
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
    Ok(Compaction { sealed, late, left, sending: sending.collect(), ..Compaction::default() })
}

/// Returns a script's reply, or [`StoreError::ClaimLost`] if it is nil, which scripts return if the claim is not held.
pub(super) fn held<T>(answer: Option<T>) -> Result<T> {
    answer.ok_or(StoreError::ClaimLost)
}

/// Splits a list into pieces of at most [`REQUEST_BYTES_MAX`]. An item that is larger than this forms a separate piece.
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
