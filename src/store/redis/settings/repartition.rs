//! Changes of the cluster-wide settings, and of the partition count of a running cluster.
//!
//! The count changes at a minute. Before the settings change, every partition of both counts gets a *fence*, which
//! `admit.lua` checks whenever a node starts to record in a minute. A node that was paused or cut off during the change
//! therefore cannot record events of later minutes in partitions that no node drains. Once all fences exist and no later
//! minute has events, all settings are changed at once. A change that is interrupted leaves `dividing` in the settings.
//! Running the command again continues the change; running it with the nodes' configuration reverts it.
//!
//! Leftovers are open minutes, unsent counts and quarantines in partitions of a former division, which no node checks. The
//! names of these partitions cannot be derived from the current settings, so all keys are scanned, in small steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, cmd, pipe};
use tokio::time::Instant;

use super::{
    DIVISION, Division, FORMAT, FORMAT_BY, FORMATS, LAYOUT, ROLLUPS, field, now, rollups_from,
    unreadable, written,
};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::store::redis::RedisStore;
use crate::store::redis::keys::{PartitionKeys, tags};
use crate::store::{REPORT_KEPT, Registry as _, Result, StoreError};

/// The settings field that exists during a change, with the fence that applies after the change.
const DIVIDING: &str = "dividing";
/// The minimum time from the command to the change, in addition to how far ahead events may be.
const LEAD: Duration = Duration::from_secs(10);

/// A node pauses after each scan step for this many times the step's duration, so a scan uses a twentieth of a Redis core.
pub(in crate::store::redis) const RESTS: u32 = 20;
/// The number of keys per scan step, so that a step blocks Redis for only a fraction of a ms.
const SCANNED_AT_ONCE: usize = 1000;
/// The number of quarantine entries read in one step.
const PAGE: usize = 500;

/// The text in place of a number in the hash tag of the partition for a rollup's windows.
const ROLLUP: &str = "rollup:";

/// The leftovers of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    waiting: usize,
    claimed: usize,
    quarantined: usize,
}

/// The reason why settings were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The change is not possible, or not at this time.
    #[error("{0}. Nothing was changed")]
    Refused(String),
    /// A call to the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RedisStore {
    /// Returns the format in Redis and the version that wrote it, or `None` if no node has used this Redis.
    pub async fn format(&self) -> Result<Option<(String, String)>> {
        let mut shared = self.gateway.shared().await?;
        let by = shared.remove(FORMAT_BY).unwrap_or_default();
        Ok(shared.remove(FORMAT).map(|format| (format, by)))
    }

    /// Changes the values of these configuration keys in Redis, all at once. If the division in Redis is not this store's,
    /// prepares the change of the division first. Nodes must not accept events that are more than `max_future` ahead.
    pub async fn share(
        &self,
        settings: &[(&str, &str)],
        max_future: Duration,
    ) -> Result<(), ChangeError> {
        let shared = self.gateway.shared().await?;
        if let Some(reason) = unreadable(&shared) {
            return Err(ChangeError::Refused(reason));
        }
        let wanted = self.gateway.agreement.division;
        let current = Division::read(&shared);
        if let Some(current) = current
            && (current != wanted || shared.contains_key(DIVIDING))
        {
            let is_alone = settings.iter().all(|(key, _)| DIVISION.contains(key));
            self.divide(&current, &wanted, max_future, is_alone).await?;
        }
        if let Some(current) = current
            && let Some((_, wanted)) = settings.iter().find(|(key, _)| *key == LAYOUT)
            && let Some(before) = shared.get(field(LAYOUT))
            && before != wanted
        {
            self.may_change_layout(&current, before, wanted).await?;
        }
        let key = &self.gateway.agreement.key;
        let mut fields: Vec<_> = settings.iter().map(|(key, value)| (field(key), *value)).collect();
        if current.is_none() {
            let format = FORMATS.end().to_string();
            fields.extend([(FORMAT, &*format), (FORMAT_BY, crate::BUILD)]);
            return Ok(self.gateway.operate(key, set(key, &fields)).await?);
        }
        let rollups = settings.iter().find(|(key, _)| *key == ROLLUPS);
        let from = rollups.map_or_else(Vec::new, |(_, wanted)| rollups_from(&shared, wanted));
        fields.extend(from.iter().map(|(field, minute)| (&**field, &**minute)));
        if !fields.is_empty() {
            self.gateway.operate::<()>(key, set(key, &fields)).await?;
        }
        self.gateway.operate::<()>(key, Cmd::hdel(key, DIVIDING)).await?;
        Ok(())
    }

    /// Sets the fences for the division `wanted`, or rejects the change and leaves everything as it was.
    async fn divide(
        &self,
        current: &Division,
        wanted: &Division,
        max_future: Duration,
        is_alone: bool,
    ) -> Result<(), ChangeError> {
        let shown = |division: &Division| match division.before {
            None => format!("store.partitions = {}", division.count),
            Some((before, from)) => format!(
                "store.partitions = {} from {} on, {before} before",
                division.count,
                written(from)
            ),
        };
        let refused = |why: String| {
            let (current, wanted) = (shown(current), shown(wanted));
            Err(ChangeError::Refused(format!(
                "the nodes on this Redis use {current}, but this configuration has {wanted}: {why}"
            )))
        };
        // The minute from which the divisions differ; `None` if they are the same for all minutes that can get events.
        let from = match (current.before, wanted.before) {
            _ if current == wanted => None,
            (None, Some((before, from))) if before == current.count => Some(from),
            (Some((before, from)), None) if before == wanted.count => Some(from),
            (Some((_, from)), None) if wanted.count == current.count => {
                let retention = self.gateway.process.retention.as_secs() / 60 + 1;
                let until = from.epoch_minutes().saturating_add_unsigned(retention);
                if until > now().epoch_minutes() {
                    let until = Minute::from_epoch_minutes(until).unwrap_or(Minute::MAX);
                    return refused(format!(
                        "events for earlier minutes are accepted until {}; keep store.partitions_before and store.partitions_from until then",
                        written(until)
                    ));
                }
                if let Some(left) = self.left_of(self.tags_of(current), from).await? {
                    return refused(format!(
                        "earlier minutes are not finished ({left}); wait until they have been sent, or drop them"
                    ));
                }
                None
            }
            (None, _) => {
                return refused(format!(
                    "the partition count can change only at a minute for which no events can have arrived yet. Set \
                     store.partitions_before = {} and store.partitions_from to a whole minute that leaves time to restart every node",
                    current.count
                ));
            }
            (Some(_), _) => {
                return refused("the last change is not finished; to finish it, remove store.partitions_before and \
                     store.partitions_from once all earlier minutes have been sent".to_owned());
            }
        };
        if let Some(from) = from {
            let nodes = self.register.reports().await?;
            if let Some(old) = nodes.iter().find(|node| node.version.is_empty()) {
                return refused(format!(
                    "node {} runs a version that does not support this change; upgrade it first",
                    old.name
                ));
            }
            let soonest = chrono::Utc::now() + max_future + LEAD;
            if !nodes.is_empty() && soonest.timestamp() > from.epoch_minutes() * 60 {
                return refused(format!(
                    "{} nodes are running and may already have events up to input.max_future ahead, so the minute of the change must be after {}",
                    nodes.len(),
                    soonest.format("%FT%TZ")
                ));
            }
        }
        // Other settings, such as the maximum age of events, keep their old values until all nodes have been restarted.
        if current != wanted && !is_alone {
            return refused(
                "other settings cannot change in the same step; apply them before or afterwards"
                    .to_owned(),
            );
        }
        let key = &self.gateway.agreement.key;
        self.gateway.operate::<()>(key, Cmd::hset(key, DIVIDING, wanted.fence())).await?;
        self.fence(&[current, wanted], wanted).await?;
        if let Some(from) = from
            && let Some(found) = self.admitted(from).await?
        {
            self.fence(&[current, wanted], current).await?;
            self.gateway.operate::<()>(key, Cmd::hdel(key, DIVIDING)).await?;
            return refused(format!("minute {found} already has events; choose a later minute"));
        }
        Ok(())
    }

    /// Rejects a different layout while minutes are or may be open, since nodes with the other layout would not seal them.
    async fn may_change_layout(
        &self,
        division: &Division,
        before: &str,
        wanted: &str,
    ) -> Result<(), ChangeError> {
        let refused = |why: String| {
            Err(ChangeError::Refused(format!(
                "the nodes on this Redis use store.layout = \"{before}\", but this configuration has \"{wanted}\": {why}"
            )))
        };
        let nodes = self.register.reports().await?;
        if let Some(first) = nodes.first() {
            return refused(format!(
                "{} nodes are running, the first is {}; stop sending events to them, wait until `eds status` shows no open minutes, stop \
                 all nodes, and run this command again (the report of a killed node expires after {} s)",
                nodes.len(),
                first.name,
                REPORT_KEPT.as_secs()
            ));
        }
        let mut unsealed = 0;
        for tag in self.tags_of(division) {
            let keys = PartitionKeys::new(tag);
            for key in ["minutes", "claims"] {
                let count = Cmd::zcard(keys.key(key));
                unsealed += self.gateway.operate::<usize>(&keys.tag, count).await?;
            }
        }
        if unsealed > 0 {
            return refused(format!(
                "{unsealed} minutes, counted per partition, are not sealed; start a node with the old settings, do not send \
                 events to it, and stop it once `eds status` shows no open minutes"
            ));
        }
        Ok(())
    }

    /// Sets the fence of `as_of` in every partition of these divisions, and in every other partition that has a fence.
    async fn fence(&self, divisions: &[&Division], as_of: &Division) -> Result<()> {
        let mut all: BTreeSet<String> =
            divisions.iter().flat_map(|division| self.tags_of(division)).collect();
        self.find("division", 0, |tag, _| {
            all.insert(tag.to_owned());
        })
        .await?;
        for tag in all {
            let keys = PartitionKeys::new(tag);
            let put = Cmd::set(keys.key("division"), as_of.fence());
            self.gateway.operate::<()>(&keys.tag, put).await?;
        }
        Ok(())
    }

    fn tags_of(&self, division: &Division) -> Vec<String> {
        let counts = [Some(division.count), division.before.map(|(count, _)| count)];
        let counts = counts.into_iter().flatten();
        counts.flat_map(|count| tags(&self.gateway.keys.prefix, count)).collect()
    }

    /// Returns the latest minute from this one on in which a node has started to record, or None if there is none.
    async fn admitted(&self, from: Minute) -> Result<Option<Minute>> {
        let mut found = None;
        self.find("*:counts", 0, |tag, name| {
            if tag.contains(ROLLUP) {
                return;
            }
            let minute = name.strip_suffix(":counts").and_then(|minute| minute.parse().ok());
            found = found.max(minute.filter(|minute| *minute >= from));
        })
        .await?;
        Ok(found)
    }

    /// Describes the leftovers of minutes earlier than `before` in the partitions with these tags, if there are any.
    async fn left_of(
        &self,
        tags: impl IntoIterator<Item = String>,
        before: Minute,
    ) -> Result<Option<String>> {
        let mut all = BTreeMap::new();
        for tag in tags {
            let left = self.left_in(&PartitionKeys::new(tag.clone()), before).await?;
            all.insert(tag, left);
        }
        Ok(described(&all))
    }

    async fn left_in(&self, keys: &PartitionKeys, before: Minute) -> Result<Left> {
        let counts = |names: &[String]| {
            // In quarantine entries, the minute is followed by a series.
            let minutes = names.iter().filter_map(|name| {
                let end = name.match_indices(':').nth(1).map_or(name.len(), |(at, _)| at);
                name[..end].parse::<Minute>().ok()
            });
            minutes.filter(|minute| *minute < before).count()
        };
        let mut ask = pipe();
        ask.zrange(keys.key("minutes"), 0, -1).zrange(keys.key("claims"), 0, -1);
        ask.smembers(keys.key("outputs"));
        let (waiting, claimed, outputs): (Vec<String>, Vec<String>, Vec<String>) =
            self.gateway.operate(&keys.tag, ask).await?;
        let mut left =
            Left { waiting: counts(&waiting), claimed: counts(&claimed), quarantined: 0 };
        for output in outputs {
            let claims = Cmd::zrange(keys.key(&format!("claims:{output}")), 0, -1);
            let claims: Vec<String> = self.gateway.operate(&keys.tag, claims).await?;
            left.claimed += counts(&claims);
            let quarantine = keys.key(&format!("quarantine:{output}"));
            let mut cursor = Some(0_u64);
            while let Some(at) = cursor {
                let mut page = cmd("HSCAN");
                page.arg(&quarantine).arg(at).arg("COUNT").arg(PAGE);
                let (next, entries): (u64, Vec<(String, String)>) =
                    self.gateway.operate(&keys.tag, page).await?;
                let names: Vec<_> = entries.into_iter().map(|(entry, _)| entry).collect();
                left.quarantined += counts(&names);
                cursor = (next != 0).then_some(next);
            }
        }
        Ok(left)
    }

    /// Returns any leftovers outside this store's partitions. Pauses for `rests` times the duration of each scan step.
    pub async fn leftovers(&self, rests: u32) -> Result<Option<Diagnosis>> {
        let mut tags = BTreeSet::new();
        self.find("[mcq][ilu]*", rests, |tag, name| {
            let kind = name.split(':').next().unwrap_or_default();
            if matches!(kind, "minutes" | "claims" | "quarantine") && !self.gateway.keys.has(tag) {
                tags.insert(tag.to_owned());
            }
        })
        .await?;
        let left = self.left_of(tags, Minute::MAX).await?;
        Ok(left.map(|left| Diagnosis::new(Cause::Leftovers, left)))
    }

    /// Calls `take` with the tag (in braces) and the remaining name of each key that matches this pattern, in no particular
    /// order, possibly more than once. Pauses after each step for `rests` times its duration.
    async fn find(&self, names: &str, rests: u32, mut take: impl FnMut(&str, &str)) -> Result<()> {
        let gateway = &self.gateway;
        let beginning = format!("{{{}:", gateway.keys.prefix);
        let pattern = format!("{beginning}*}}:{names}");
        gateway.redis.server(0).await?;
        for server in gateway.redis.servers() {
            let mut cursor = 0;
            loop {
                let began = Instant::now();
                let mut step = cmd("SCAN");
                step.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED_AT_ONCE);
                let (next, keys): (u64, Vec<Vec<u8>>) = gateway.read(&server, step).await?;
                // Key names contain sender-controlled series names, so the beginning of each key is checked.
                for key in keys.iter().filter_map(|key| str::from_utf8(key).ok()) {
                    if let Some((number, name)) =
                        key.strip_prefix(&beginning).and_then(|rest| rest.split_once("}:"))
                        && !number.is_empty()
                        && (number.bytes().all(|byte| byte.is_ascii_digit())
                            || number.starts_with(ROLLUP))
                    {
                        take(&key[..=beginning.len() + number.len()], name);
                    }
                }
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

/// Returns a command that sets these fields. [`Cmd::hset_multiple`] would send HMSET, which needs a further permission.
fn set(key: &str, fields: &[(&str, &str)]) -> Cmd {
    cmd("HSET").arg(key).arg(fields).take()
}

fn described(all: &BTreeMap<String, Left>) -> Option<String> {
    let left: Vec<_> = all.iter().filter(|(_, left)| **left != Left::default()).collect();
    let sum = |part: fn(&Left) -> usize| left.iter().map(|(_, left)| part(left)).sum::<usize>();
    let first = left.first()?.0;
    Some(format!(
        "minutes waiting: {}, claimed: {}, counts quarantined: {}, in {} partitions, the first is {first}",
        sum(|left| left.waiting),
        sum(|left| left.claimed),
        sum(|left| left.quarantined),
        left.len(),
    ))
}
