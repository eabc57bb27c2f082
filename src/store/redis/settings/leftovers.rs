//! Leftovers: open minutes, unsent counts and quarantines in partitions of a former number, where no node looks.
//!
//! Their names follow from no present setting, so all keys are scanned, in small steps.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, cmd};

use super::division::Division;
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::store::Result;
use crate::store::redis::RedisStore;
use crate::store::redis::keys::PartitionKeys;

/// How much longer than a step of the scan a node rests after it: uses a twentieth of a core of Redis.
pub(in crate::store::redis) const RESTS: u32 = 20;
/// The entries of a quarantine that are read in a step.
const PAGE: usize = 500;

/// The leftovers of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    waiting: usize,
    claimed: usize,
    quarantined: usize,
}

impl RedisStore {
    /// Returns the leftovers of minutes before this one in the partitions of a division.
    pub(super) async fn left_before(
        &self,
        division: &Division,
        from: Minute,
    ) -> Result<Option<String>> {
        let mut all = BTreeMap::new();
        for tag in self.tags_of(division) {
            let left = self.left_in(&PartitionKeys::new(tag.clone()), from).await?;
            all.insert(tag, left);
        }
        Ok(described(&all))
    }

    async fn left_in(&self, keys: &PartitionKeys, before: Minute) -> Result<Left> {
        let counts = |names: Vec<String>| {
            let minutes = names.iter().filter_map(|name| name.parse::<Minute>().ok());
            minutes.filter(|minute| *minute < before).count()
        };
        let ask = async |key: &str| {
            self.gateway.operate(keys.slot, Cmd::zrange(keys.key(key), 0, -1)).await
        };
        let mut left = Left {
            waiting: counts(ask("minutes").await?),
            claimed: counts(ask("claims").await?),
            quarantined: 0,
        };
        let outputs = Cmd::smembers(keys.key("outputs"));
        let outputs: Vec<String> = self.gateway.operate(keys.slot, outputs).await?;
        for output in outputs {
            left.claimed += counts(ask(&format!("claims:{output}")).await?);
            let quarantine = keys.key(&format!("quarantine:{output}"));
            let mut cursor = Some(0_u64);
            while let Some(at) = cursor {
                let mut page = cmd("HSCAN");
                page.arg(&quarantine).arg(at).arg("COUNT").arg(PAGE);
                let (next, entries): (u64, Vec<(String, String)>) =
                    self.gateway.operate(keys.slot, page).await?;
                let names = entries.into_iter().map(|(entry, _)| {
                    let end = entry.match_indices(':').nth(1).map_or(entry.len(), |(at, _)| at);
                    entry[..end].to_owned()
                });
                left.quarantined += counts(names.collect());
                cursor = (next != 0).then_some(next);
            }
        }
        Ok(left)
    }

    /// Returns the leftovers in partitions that this store does not have.
    pub async fn leftovers(&self, rests: u32) -> Result<Option<Diagnosis>> {
        let mut tags = BTreeSet::new();
        self.find("[mcq][ilu]*", rests, |tag, name| {
            let kind = name.split(':').next().unwrap_or_default();
            if matches!(kind, "minutes" | "claims" | "quarantine") && !self.gateway.keys.has(tag) {
                tags.insert(tag.to_owned());
            }
        })
        .await?;
        let mut all = BTreeMap::new();
        for tag in tags {
            let left = self.left_in(&PartitionKeys::new(tag.clone()), Minute::MAX).await?;
            all.insert(tag, left);
        }
        Ok(described(&all).map(|left| Diagnosis::new(Cause::Leftovers, left)))
    }

    /// Calls `take` with the tag, in braces, and the further name of each key that matches this pattern.
    pub(super) async fn find(
        &self,
        names: &str,
        rests: u32,
        mut take: impl FnMut(&str, &str),
    ) -> Result<()> {
        let beginning = format!("{{{}:", self.gateway.keys.prefix);
        let take = |key: Vec<u8>| {
            let Ok(key) = String::from_utf8(key) else {
                return;
            };
            // Names of keys contain names of series, which come from outside.
            if let Some((number, name)) =
                key.strip_prefix(&beginning).and_then(|rest| rest.split_once("}:"))
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
            {
                take(&key[..=beginning.len() + number.len()], name);
            }
        };
        self.gateway.scan(&format!("{beginning}*}}:{names}"), rests, take).await
    }
}

fn described(all: &BTreeMap<String, Left>) -> Option<String> {
    let left: Vec<_> = all.iter().filter(|(_, left)| **left != Left::default()).collect();
    let sum = |part: fn(&Left) -> usize| left.iter().map(|(_, left)| part(left)).sum::<usize>();
    let first = left.first()?.0;
    Some(format!(
        "minutes waiting: {}, claimed: {}, counts quarantined: {}, in {} partitions, the first {first}",
        sum(|left| left.waiting),
        sum(|left| left.claimed),
        sum(|left| left.quarantined),
        left.len(),
    ))
}
