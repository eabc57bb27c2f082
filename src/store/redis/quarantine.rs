//! The quarantines in Redis, and what is dropped of an output that is gone.

use ::redis::cmd;
use async_trait::async_trait;
use redis_link::Connection;

use super::gateway::DRAINING;
use super::keys::PartitionKeys;
use super::{RedisStore, millis, scripts};
use crate::event::{Minute, Partition};
use crate::store::{Dropped, OutputName, Page, Quarantine, Quarantined, StoreError};

/// The minutes of an output that are dropped at once: Redis serves nobody else meanwhile.
const DROPPED_AT_ONCE: usize = 100;

#[async_trait]
impl Quarantine for RedisStore {
    async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>, StoreError> {
        let key = &*PartitionKeys::of(&self.keys(partition).quarantine, Some(output));
        let keys = [key];
        let page = self.scan::<(String, String)>(partition, DRAINING, "HSCAN", &keys, cursor);
        let Page { items, next } = page.await?;
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
    ) -> Result<u64, StoreError> {
        let keys = self.keys(partition);
        let base = keys.minute(minute);
        let of = |key: &str| PartitionKeys::of(key, Some(output));
        let mut script = scripts::REQUEUE.prepare_invoke();
        script
            .key(&[of(&keys.claims), format!("{base}counts")])
            .key(&[of(&format!("{base}unsent")), of(&keys.quarantine)])
            .key(&keys.outputs)
            .arg(minute.to_string())
            .arg(output.as_str())
            .arg(series);
        self.invoke(keys.slot, script).await
    }

    async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64, StoreError> {
        let quarantine = &self.keys(partition).quarantine;
        let mut script = scripts::DISCARD.prepare_invoke();
        script.key(PartitionKeys::of(quarantine, Some(output)));
        for seen in seen {
            let (entry, content) = written(seen);
            script.arg(entry).arg(content);
        }
        self.invoke(self.keys(partition).slot, script).await
    }

    async fn drop_output(
        &self,
        partition: Partition,
        output: &OutputName,
    ) -> Result<Dropped, StoreError> {
        let keys = self.keys(partition);
        let mut first = cmd("ZRANGE");
        first.arg(PartitionKeys::of(&keys.claims, Some(output))).arg(0).arg(DROPPED_AT_ONCE - 1);
        let mut dropped = Dropped::default();
        loop {
            let ask = async |connection: &mut Connection| {
                first.query_async::<Vec<String>>(connection).await
            };
            let names = self.drain(partition, ask).await?;
            // What is no minute is dropped all the same. They close in their own order, not in that of their leases.
            let mut minutes: Vec<(Minute, String)> =
                names.into_iter().map(|name| (name.parse().unwrap_or(Minute::MIN), name)).collect();
            minutes.sort_unstable();
            let mut script = scripts::DROP_OUTPUT.prepare_invoke();
            script
                .key(&[&keys.claims, &keys.tokens, &keys.quarantine])
                .key(&[&keys.outputs, &keys.witness, &keys.closed])
                .arg(output.as_str())
                .arg(&keys.tag)
                .arg(millis(self.retention))
                .arg(self.counts_max)
                .arg(self.to_seal());
            for (minute, name) in &minutes {
                script.arg(name).arg(minute.epoch_minutes());
            }
            let (counts, quarantined, is_all): (u64, u64, bool) =
                self.invoke(keys.slot, script).await?;
            dropped.minutes += minutes.len() as u64;
            dropped.counts += counts;
            dropped.quarantined += quarantined;
            if is_all {
                return Ok(dropped);
            }
        }
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
    // What does not come out again as it went in could be neither requeued nor discarded.
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
