//! What waits in Redis, also where no node looks: partitions of another number than there is now.
//!
//! Their names follow from no setting that still stands, so all keys are looked through, in small steps.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, cmd};
use redis_link::{Attempts, Connection};
use tokio::time::Instant;

use super::division::Division;
use super::gateway::{Gateway, READING};
use super::keys::PartitionKeys;
use super::{RedisStore, StoreError};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;

/// The keys that are looked at in a step of looking through all of them. Redis serves nobody else meanwhile, a fraction of a ms.
const SCANNED_AT_ONCE: usize = 1000;
/// How much longer than a step of it took a node that looks for leftovers rests: a twentieth of a core of Redis.
pub(super) const RESTS: u32 = 20;
/// The entries of a quarantine that are looked at in a step.
const PAGE: usize = 500;

/// What waits in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    waiting: usize,
    claimed: usize,
    quarantined: usize,
}

impl Gateway {
    /// Hands the names of all keys that match to `take`, in some order, some of them twice. Rests after each step for as
    /// many times as long as it took as `rests` says.
    pub(super) async fn scan(
        &self,
        pattern: &str,
        rests: u32,
        mut take: impl FnMut(Vec<u8>),
    ) -> Result<(), StoreError> {
        self.redis.server(0).await?;
        for server in self.redis.servers() {
            let mut cursor = 0;
            loop {
                let began = Instant::now();
                let mut step = redis::cmd("SCAN");
                step.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCANNED_AT_ONCE);
                let scan = async |connection: &mut Connection| step.query_async(connection).await;
                let (next, names): (u64, Vec<Vec<u8>>) =
                    self.run_on(&server, READING, 0, Attempts::Two, scan).await?;
                names.into_iter().for_each(&mut take);
                cursor = next;
                if cursor == 0 {
                    break;
                }
                tokio::time::sleep(began.elapsed() * rests).await;
            }
        }
        Ok(())
    }
}

impl RedisStore {
    /// What waits of the minutes before this one in the partitions that they had, in words.
    pub(super) async fn left_before(
        &self,
        division: &Division,
        from: Minute,
    ) -> Result<Option<String>, StoreError> {
        let mut all = BTreeMap::new();
        for tag in self.tags_of(division) {
            let left = self.left_in(&PartitionKeys::new(tag.clone()), from).await?;
            all.insert(tag, left);
        }
        Ok(described(&all))
    }

    async fn left_in(&self, keys: &PartitionKeys, before: Minute) -> Result<Left, StoreError> {
        let counts = |names: Vec<String>| {
            let minutes = names.iter().filter_map(|name| name.parse::<Minute>().ok());
            minutes.filter(|minute| *minute < before).count()
        };
        let ask =
            async |key: &String| self.gateway.operate(keys.slot, Cmd::zrange(key, 0, -1)).await;
        let mut left = Left {
            waiting: counts(ask(&keys.minutes).await?),
            claimed: counts(ask(&keys.claims).await?),
            quarantined: 0,
        };
        let outputs: Vec<String> = {
            let outputs = Cmd::smembers(&keys.outputs);
            self.gateway.operate(keys.slot, outputs).await?
        };
        for output in outputs {
            left.claimed += counts(ask(&format!("{}:{output}", keys.claims)).await?);
            let quarantine = format!("{}:{output}", keys.quarantine);
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

    /// What waits in partitions that this store does not have.
    pub async fn leftovers(&self, rests: u32) -> Result<Option<Diagnosis>, StoreError> {
        let mut tags = BTreeSet::new();
        self.find("[mcq][ilu]*", rests, |tag, name| {
            let kind = name.split(':').next().unwrap_or_default();
            if matches!(kind, "minutes" | "claims" | "quarantine") && !self.keys.has(tag) {
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

    /// Hands the tag of each partition's keys of this pattern to `take`, in braces, and what follows it in the name.
    pub(super) async fn find(
        &self,
        names: &str,
        rests: u32,
        mut take: impl FnMut(&str, &str),
    ) -> Result<(), StoreError> {
        let beginning = format!("{{{}:", self.keys.prefix());
        let take = |key: Vec<u8>| {
            let Ok(key) = String::from_utf8(key) else {
                return;
            };
            // Names of series are in keys, too, and come from strangers.
            if let Some((number, name)) =
                key.strip_prefix(&beginning).and_then(|it| it.split_once("}:"))
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
