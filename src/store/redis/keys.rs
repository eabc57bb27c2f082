//! Key names. All keys of a partition carry the same hash tag, `{<prefix>:<number>}`, so that a script can use them together
//! in a Redis Cluster. Partition `i` of `P` uses the smallest number whose slot is in the `i`-th of `P` equal ranges of
//! slots, so that masters with equal shares of the slots get equal shares of the partitions.

use std::fmt::Write as _;
use std::num::NonZeroU16;
use std::time::Duration;

use redis_link::slot;

use super::millis;
use crate::event::{Every, Minute, Partition, Partitions};
use crate::store::{CLOCK_TOLERANCE_MS, LOOKED_AT_MAX, OutputName, kept_counts, retention_of};

const SLOTS: u32 = 16384;

/// The maximum number of candidates for tags. Even with 1024 partitions, only one in e^976 prefixes would need more.
const TAGS_TRIED: u32 = 1_000_000;

#[derive(Debug)]
pub(super) struct Keys {
    pub(super) prefix: String,
    partitions: Vec<PartitionKeys>,
}

#[derive(Debug)]
pub(super) struct PartitionKeys {
    /// The hash tag, including the braces.
    pub(super) tag: String,
    pub(super) slot: u16,
    /// The length of a window; one minute in a partition of series.
    every: Every,
}

/// The kind of place that a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The caller passes the key.
    Given,
    Partition,
    Minute,
    /// An output of the partition. The Lua variable starts with `own_`.
    Output,
    OutputOfMinute,
}

#[derive(Debug)]
pub(super) struct Process {
    /// The node's name, a `#` and a number.
    pub(super) node: String,
    pub(super) retention: Duration,
    /// For how many recent minutes each partition lists whether they are closed; all earlier minutes count as closed.
    pub(super) listed_minutes: i64,
    /// The maximum number of counts that a partition keeps after they have been sent.
    pub(super) counts_max: u64,
}

/// The owner of a key: a partition, or a minute or an output in it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place<'a> {
    tag: &'a str,
    pub(super) minute: Option<Minute>,
    output: Option<&'a OutputName>,
    process: Option<(&'a Process, Every)>,
}

/// Returns the partitions of a store, whose count may change at a minute. Partitions with equal hash tags are the same.
#[must_use]
pub fn partitions(prefix: &str, count: NonZeroU16, before: Option<(u16, Minute)>) -> Partitions {
    let partitions = Partitions::new(count);
    let Some((count_before, from)) = before else {
        return partitions;
    };
    let now = tags(prefix, count.get());
    let mut further = count.get()..;
    let place = |tag: &String| {
        let shared = (0..).zip(&now).find(|(_, other)| *other == tag);
        shared.map(|(place, _)| place).or_else(|| further.next())
    };
    let places: Vec<u16> = tags(prefix, count_before).iter().filter_map(place).collect();
    partitions.with_before(from, &places)
}

fn tags_of_all(prefix: &str, partitions: &Partitions) -> Vec<String> {
    let later = partitions.count_in(Minute::MAX);
    let mut all = tags(prefix, later);
    let before = partitions.before().map(|(count, _)| tags(prefix, count));
    for tag in before.into_iter().flatten() {
        if !all.contains(&tag) {
            all.push(tag);
        }
    }
    all
}

/// Returns the hash tags of `count` partitions, in braces. A tag is empty if no candidate was suitable.
pub(super) fn tags(prefix: &str, count: u16) -> Vec<String> {
    let mut tags = vec![String::new(); usize::from(count)];
    let mut left = tags.len();
    for number in 0..TAGS_TRIED {
        if left == 0 {
            break;
        }
        let tag = format!("{prefix}:{number}");
        let stretch = u32::from(slot(tag.as_bytes())) * u32::from(count) / SLOTS;
        let Some(place) = tags.get_mut(stretch as usize) else {
            continue;
        };
        if place.is_empty() {
            *place = format!("{{{tag}}}");
            left -= 1;
        }
    }
    tags
}

impl Keys {
    pub(super) fn new(prefix: &str, partitions: &Partitions) -> Self {
        let windows = partitions.rollups().map(|(_, rollup)| {
            let tag = of_all(prefix, &format!("rollup:{}", rollup.name));
            PartitionKeys { every: rollup.every, ..PartitionKeys::new(tag) }
        });
        let tags = tags_of_all(prefix, partitions).into_iter();
        let partitions = tags.map(PartitionKeys::new).chain(windows).collect();
        Self { prefix: prefix.to_owned(), partitions }
    }

    pub(super) fn partition(&self, partition: Partition) -> &PartitionKeys {
        &self.partitions[partition.index()]
    }

    pub(super) fn settings(&self) -> String {
        format!("{}:settings", self.prefix)
    }

    pub(super) fn has(&self, tag: &str) -> bool {
        self.partitions.iter().any(|keys| keys.tag == tag)
    }
}

/// Returns a key outside the partitions: `nodes`, `relays` or `losses`. A report's key adds a colon and the process's name.
/// Also returns the hash tag of a rollup's windows: `rollup:` and its name.
pub(super) fn of_all(prefix: &str, name: &str) -> String {
    format!("{{{prefix}:{name}}}")
}

impl PartitionKeys {
    pub(super) fn new(tag: String) -> Self {
        let slot = slot(tag.trim_matches(['{', '}']).as_bytes());
        Self { tag, slot, every: Every::MINUTE }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    pub(super) fn place<'a>(&'a self, process: &'a Process) -> Place<'a> {
        Place { tag: &self.tag, process: Some((process, self.every)), ..Place::default() }
    }
}

impl<'a> Place<'a> {
    pub(super) fn minute(self, minute: Minute) -> Self {
        Self { minute: Some(minute), ..self }
    }

    pub(super) fn of(self, output: impl Into<Option<&'a OutputName>>) -> Self {
        Self { output: output.into(), ..self }
    }

    /// Returns the prefix of the minute's keys, including the colon.
    pub(super) fn base(&self) -> String {
        self.key(Scope::Minute, "")
    }

    pub(super) fn key(&self, scope: Scope, name: &str) -> String {
        let mut key = self.tag.to_owned();
        if matches!(scope, Scope::Minute | Scope::OutputOfMinute)
            && let Some(minute) = self.minute
        {
            // Writing to a string cannot fail.
            let _ = write!(key, ":{minute}");
        }
        key.push(':');
        key.push_str(name);
        if matches!(scope, Scope::Output | Scope::OutputOfMinute)
            && let Some(output) = self.output
        {
            key.push(':');
            key.push_str(output.as_str());
        }
        key
    }

    /// Returns the value of a script argument that depends only on the place.
    pub(super) fn argument(&self, name: &str) -> String {
        let minute = self.minute.unwrap_or(Minute::MIN);
        let Some((Process { node, retention, listed_minutes, counts_max }, every)) = self.process
        else {
            return String::new();
        };
        match name {
            "name" => minute.to_string(),
            "minute" => minute.epoch_minutes().to_string(),
            "minute_end_ms" => minute.end_millis().to_string(),
            "base" => self.base(),
            "tag" => self.tag.to_owned(),
            "output" => self.output.map_or_else(String::new, OutputName::to_string),
            "node" => node.clone(),
            "kept_ms" => millis(retention_of(*retention, every)).to_string(),
            "kept_counts" => kept_counts(*counts_max, every).to_string(),
            "listed_minutes" => listed_minutes.to_string(),
            "tolerance_ms" => CLOCK_TOLERANCE_MS.to_string(),
            "looked_max" => LOOKED_AT_MAX.to_string(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn keys(count: u16) -> Keys {
        Keys::new("eds", &Partitions::new(NonZeroU16::new(count).unwrap()))
    }

    #[test]
    fn partitions_with_one_hash_tag_share_their_keys() {
        let from = Minute::of_nanos(0);
        let count = |count| NonZeroU16::new(count).unwrap();
        for (now, before) in [(64, 32), (32, 64), (33, 32), (1, 1024), (1024, 1)] {
            let both = partitions("eds", count(now), Some((before, from)));
            let all = Keys::new("eds", &both).partitions;
            let tags: BTreeSet<_> = all.iter().map(|keys| keys.tag.as_str()).collect();
            assert_eq!(tags.len(), usize::from(both.count()), "every partition has a distinct tag");
            for (minute, count) in [(from, now), (Minute::of_nanos(-1), before)] {
                let alone = keys(count);
                let parts = alone.partitions.len();
                let found = both.iter().filter_map(|partition| {
                    let [earlier, later] = both.parts(partition);
                    let part = if minute < from { earlier } else { later }?;
                    Some((part.index(), &all[partition.index()].tag))
                });
                let found: BTreeMap<_, _> = found.collect();
                assert_eq!(found.len(), parts);
                for (part, tag) in found {
                    assert_eq!(*tag, alone.partitions[part].tag);
                }
            }
        }
        assert_eq!(partitions("eds", count(64), Some((32, from))).count(), 64);
    }

    #[test]
    fn key_names_are_as_documented() {
        let keys = keys(1);
        let partition = &keys.partitions[0];
        let output: OutputName = "backup".parse().unwrap();
        let process = Process {
            node: "n#1".to_owned(),
            retention: Duration::ZERO,
            listed_minutes: 1,
            counts_max: 1,
        };
        let place = partition.place(&process).minute("20161204:1118".parse().unwrap()).of(&output);
        assert_eq!(place.base(), "{eds:0}:20161204:1118:");
        for (scope, name) in [
            (Scope::Partition, "{eds:0}:x"),
            (Scope::Output, "{eds:0}:x:backup"),
            (Scope::Minute, "{eds:0}:20161204:1118:x"),
            (Scope::OutputOfMinute, "{eds:0}:20161204:1118:x:backup"),
        ] {
            assert_eq!(place.key(scope, "x"), name);
        }
        assert_eq!(keys.settings(), "eds:settings");
    }

    /// If each master has an equal range of slots, the masters' numbers of partitions differ by at most two.
    #[test]
    fn masters_get_equal_shares() {
        let shares = |partitions, masters| {
            let mut shares = vec![0_u32; masters];
            for partition in &keys(partitions).partitions {
                shares[usize::from(partition.slot) * masters / SLOTS as usize] += 1;
            }
            shares
        };
        assert_eq!(shares(16, 3), [6, 5, 5]);
        assert_eq!(shares(16, 4), [4; 4]);
        assert_eq!(shares(32, 3), [11, 10, 11]);
        assert_eq!(shares(32, 5), [6, 7, 6, 7, 6]);
        for (partitions, masters) in [(128, 3), (128, 5), (128, 7), (1024, 11)] {
            let shares = shares(partitions, masters);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 2, "{partitions} on {masters}: {shares:?}");
        }
    }
}
