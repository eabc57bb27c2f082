//! Quarantines and the removal of outputs: operators read rejected counts, and requeue or drop them.

use ::redis::cmd;

use super::{Discard, DropOutput, Requeue};
use crate::event::{Minute, Partition, Quality};
use crate::store::redis::RedisStore;
use crate::store::redis::gateway::DRAINING;
use crate::store::redis::keys::Scope;
use crate::store::{Bucket, OutputName, Page, Result};

/// The maximum number of minutes dropped by one call, so that it does not block Redis for long.
const DROPPED_AT_ONCE: usize = 100;

/// The counts of one series in one minute, which an output has rejected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "`SeriesCounts` describes the counts")]
pub struct Quarantined {
    pub minute: Minute,
    pub series: String,
    pub unique: u64,
    pub cumulative: u64,
    /// The time of the last rejection on the store's clock, in seconds since the epoch.
    pub since: i64,
    /// The message with which the output's server rejected the counts.
    pub message: String,
}

/// The items dropped together with an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The number of minutes with unsent counts.
    pub minutes: u64,
    /// The number of unsent counts.
    pub counts: u64,
    /// The number of quarantined counts.
    pub quarantined: u64,
}

impl RedisStore {
    /// Reads a page of an output's quarantine in a partition. The first cursor is 0.
    pub async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>> {
        let at = self.gateway.at(partition, DRAINING).of(output);
        let key = &*at.place.key(Scope::Output, "quarantine");
        let Page::<(String, String)> { items, next } =
            at.page("HSCAN", (key, None), cursor).await?;
        let known = items.iter().filter_map(|(entry, content)| {
            let parsed = parse(entry, content);
            if parsed.is_none() {
                tracing::error!(
                    key,
                    entry,
                    content,
                    "ignoring an unrecognized entry in the quarantine"
                );
            }
            parsed
        });
        Ok(Page { items: known.collect(), next })
    }

    /// Moves the quarantined counts of these series back to the unsent counts, and restores any that the store has lost.
    /// Returns how many were moved.
    pub async fn requeue(
        &self,
        bucket: Bucket,
        output: &OutputName,
        series: &[&str],
    ) -> Result<u64> {
        let at = self.bucket(bucket, DRAINING).of(output);
        let mut script = Requeue {}.at(&at.place);
        script.arg(series);
        at.ask(script).await
    }

    /// Drops these counts unless they have changed since the caller saw them. Returns the number of counts dropped.
    pub async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64> {
        let at = self.gateway.at(partition, DRAINING).of(output);
        let mut script = Discard {}.at(&at.place);
        for seen in seen {
            let (entry, content) = written(seen);
            script.arg(entry).arg(content);
        }
        at.ask(script).await
    }

    /// Drops the counts and the name of an output that no node has. Closes a minute if no other output needs its counts.
    pub async fn drop_output(&self, partition: Partition, output: &OutputName) -> Result<Dropped> {
        let at = self.gateway.at(partition, DRAINING).of(output);
        let mut first = cmd("ZRANGE");
        first.arg(at.place.key(Scope::Output, "claims")).arg(0).arg(DROPPED_AT_ONCE - 1);
        let mut dropped = Dropped::default();
        loop {
            let names: Vec<String> = at.ask(first.clone()).await?;
            // Malformed names are dropped as well. Minutes are closed in chronological order, not in order of leases.
            let mut minutes: Vec<(Minute, String)> =
                names.into_iter().map(|name| (name.parse().unwrap_or(Minute::MIN), name)).collect();
            minutes.sort_unstable();
            let mut script =
                DropOutput { to_seal: self.layout_of(partition).to_seal() }.at(&at.place);
            for (minute, name) in &minutes {
                script.arg(name).arg(minute.epoch_minutes());
            }
            let (counts, quarantined, is_all): (u64, u64, bool) = at.ask(script).await?;
            dropped.minutes += minutes.len() as u64;
            dropped.counts += counts;
            dropped.quarantined += quarantined;
            if is_all {
                return Ok(dropped);
            }
        }
    }
}

/// Parses a `quarantine.lua` entry: `20161204:1118:<series>` → `unique:cumulative|seconds|message`; None if it is malformed.
fn parse(entry: &str, content: &str) -> Option<Quarantined> {
    let (date, rest) = entry.split_once(':')?;
    let (number, series) = rest.split_once(':')?;
    let mut parts = content.splitn(3, '|');
    let (_, counts) = Quality::split(parts.next()?);
    let (unique, cumulative) = counts.split_once(':')?;
    let quarantined = Quarantined {
        minute: format!("{date}:{number}").parse().ok()?,
        series: series.to_owned(),
        unique: unique.parse().ok()?,
        cumulative: cumulative.parse().ok()?,
        since: parts.next()?.parse().ok()?,
        message: parts.next()?.to_owned(),
    };
    // Even a small deviation is rejected, because such an entry could be neither requeued nor discarded.
    (written(&quarantined) == (entry.to_owned(), content.to_owned())).then_some(quarantined)
}

fn written(quarantined: &Quarantined) -> (String, String) {
    let Quarantined { minute, series, unique, cumulative, since, message } = quarantined;
    (format!("{minute}:{series}"), format!("{unique}:{cumulative}|{since}|{message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_round_trips() {
        let entry = "20161204:1118:a=b:c|d,e=f";
        let content = "7:12|1480876800|partial write: a | b";
        let read = parse(entry, content).unwrap();
        assert_eq!(read.series, "a=b:c|d,e=f");
        assert_eq!((read.unique, read.cumulative), (7, 12));
        assert_eq!(read.since, 1_480_876_800);
        assert_eq!(read.message, "partial write: a | b");
        assert_eq!(written(&read), (entry.to_owned(), content.to_owned()));
    }

    #[test]
    fn foreign_entries_are_ignored() {
        for (entry, content) in [
            ("20161204:1118", "1:2|3|x"),
            ("tomorrow:1:a=b", "1:2|3|x"),
            ("20161204:01118:a=b", "1:2|3|x"),
            ("20161204:1118:a=b", "1:2|3"),
            ("20161204:1118:a=b", "1|3|x"),
            ("20161204:1118:a=b", "01:2|3|x"),
            ("20161204:1118:a=b", ""),
        ] {
            assert_eq!(parse(entry, content), None, "{entry} {content}");
        }
    }
}
