//! Quarantines, and the removal of outputs.

use ::redis::cmd;
use async_trait::async_trait;

use super::{Discard, DropOutput, Requeue};
use crate::event::{Minute, Partition};
use crate::store::redis::gateway::DRAINING;
use crate::store::redis::keys::{Place, Scope};
use crate::store::redis::{RedisStore, millis};
use crate::store::{Dropped, OutputName, Page, Quarantine, Quarantined, Result};

/// The most minutes that are dropped by one call, which blocks Redis.
const DROPPED_AT_ONCE: usize = 100;

#[async_trait]
impl Quarantine for RedisStore {
    async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>> {
        let key = &*self.quarantine_of(partition, output);
        let page = self.gateway.page(partition, DRAINING, "HSCAN", (key, None), cursor);
        let Page::<(String, String)> { items, next } = page.await?;
        let known = items.iter().filter_map(|(entry, content)| {
            let parsed = parse(entry, content);
            if parsed.is_none() {
                tracing::error!(key, entry, content, "a foreign entry in the quarantine");
            }
            parsed
        });
        Ok(Page { items: known.collect(), next })
    }

    async fn requeue(
        &self,
        partition: Partition,
        output: &OutputName,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64> {
        let place = self.gateway.keys(partition).minute(minute).of(output);
        let quarantine = self.quarantine_of(partition, output);
        let script = Requeue { quarantine, name: minute.to_string(), output: output.as_str() };
        let mut script = script.at(&place);
        script.arg(series);
        self.gateway.drain(partition, script).await
    }

    async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64> {
        let quarantine = self.quarantine_of(partition, output);
        let mut script = Discard { quarantine }.at(&Place::default());
        for seen in seen {
            let (entry, content) = written(seen);
            script.arg(entry).arg(content);
        }
        self.gateway.drain(partition, script).await
    }

    async fn drop_output(&self, partition: Partition, output: &OutputName) -> Result<Dropped> {
        let keys = self.gateway.keys(partition);
        let claims = keys.place().of(output).key(Scope::Output, "claims");
        let mut first = cmd("ZRANGE");
        first.arg(claims).arg(0).arg(DROPPED_AT_ONCE - 1);
        let mut dropped = Dropped::default();
        loop {
            let names: Vec<String> = self.gateway.drain(partition, first.clone()).await?;
            // Malformed names are dropped, too. Minutes close in their order, not in that of their leases.
            let mut minutes: Vec<(Minute, String)> =
                names.into_iter().map(|name| (name.parse().unwrap_or(Minute::MIN), name)).collect();
            minutes.sort_unstable();
            let mut script = DropOutput {
                output: output.as_str(),
                tag: &keys.tag,
                kept_ms: millis(self.gateway.retention),
                kept_counts: self.gateway.counts_max,
                to_seal: self.layout.to_seal(),
            }
            .at(&keys.place());
            for (minute, name) in &minutes {
                script.arg(name).arg(minute.epoch_minutes());
            }
            let (counts, quarantined, is_all): (u64, u64, bool) =
                self.gateway.drain(partition, script).await?;
            dropped.minutes += minutes.len() as u64;
            dropped.counts += counts;
            dropped.quarantined += quarantined;
            if is_all {
                return Ok(dropped);
            }
        }
    }
}

impl RedisStore {
    /// The key of an output's quarantine of a partition.
    pub(super) fn quarantine_of(&self, partition: Partition, output: &OutputName) -> String {
        self.gateway.keys(partition).place().of(output).key(Scope::Output, "quarantine")
    }
}

/// An entry as `quarantine.lua` writes it: `20161204:1118:<series>` → `unique:cumulative|seconds|server's message`.
fn parse(entry: &str, content: &str) -> Option<Quarantined> {
    let (date, rest) = entry.split_once(':')?;
    let (number, series) = rest.split_once(':')?;
    let mut parts = content.splitn(3, '|');
    let (unique, cumulative) = parts.next()?.split_once(':')?;
    let quarantined = Quarantined {
        minute: format!("{date}:{number}").parse().ok()?,
        series: series.to_owned(),
        unique: unique.parse().ok()?,
        cumulative: cumulative.parse().ok()?,
        since: parts.next()?.parse().ok()?,
        message: parts.next()?.to_owned(),
    };
    // An entry that is written in another form could be neither requeued nor discarded.
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
    fn an_entry_is_read_as_it_is_written() {
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
    fn what_is_foreign_is_left_alone() {
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
