//! The names of the keys.
//!
//! All keys of a partition carry one hash tag, so that they lie in one slot of a Redis Cluster and a script may
//! use them together. The tag is `{<prefix>:<number>}`. The numbers are not simply 0, 1, 2…: their slots would
//! lie as the hash throws them. Partition `i` of `P` takes the smallest number whose slot is in the `i`-th of
//! `P` equal stretches of the 16384 slots, so masters with equal shares of the slots get equal shares of the
//! partitions.

use crate::event::{Minute, Partition, Partitions};

/// How many slots a Redis Cluster has.
const SLOTS: u32 = 16384;

/// How many numbers are tried for the tag of a partition. One in as many as there are partitions fits, so that
/// with 1024 of them all of these fail once in e^976 prefixes.
const TAGS_TRIED: u32 = 1_000_000;

/// The names of all keys under a prefix.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    partitions: Vec<PartitionKeys>,
}

/// The names of the keys of a partition that are not of one minute.
#[derive(Debug)]
pub(super) struct PartitionKeys {
    tag: String,
    pub(super) slot: u16,
    pub(super) minutes: String,
    pub(super) claims: String,
    pub(super) tokens: String,
    pub(super) arrivals: String,
    pub(super) quiet: String,
    pub(super) behind: String,
    pub(super) quarantine: String,
    pub(super) witness: String,
    pub(super) closed: String,
    pub(super) stamps: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, partitions: Partitions) -> Self {
        let count = u32::from(partitions.count());
        let partitions = (0..count)
            .map(|index| PartitionKeys::new(prefix, index, count))
            .collect();
        Self {
            prefix: prefix.to_owned(),
            partitions,
        }
    }

    pub(super) fn partition(&self, partition: Partition) -> &PartitionKeys {
        &self.partitions[partition.index()]
    }

    /// What all nodes must agree on.
    pub(super) fn settings(&self) -> String {
        format!("{}:settings", self.prefix)
    }

    /// Which process is the node of this name. All such keys lie in one slot.
    pub(super) fn node(&self, name: &str) -> String {
        format!("{{{}:nodes}}:{name}", self.prefix)
    }

    /// Which node probes an output that is down.
    pub(super) fn probe(&self) -> String {
        format!("{}:probe", self.prefix)
    }
}

impl PartitionKeys {
    fn new(prefix: &str, index: u32, count: u32) -> Self {
        let stretch = |slot: u32| slot * count / SLOTS;
        let tag = (0..TAGS_TRIED)
            .map(|number| format!("{prefix}:{number}"))
            .find(|tag| stretch(u32::from(slot(tag.as_bytes()))) == index)
            .unwrap_or_default();
        let slot = slot(tag.as_bytes());
        let tag = format!("{{{tag}}}");
        let key = |name: &str| format!("{tag}:{name}");
        Self {
            minutes: key("minutes"),
            claims: key("claims"),
            tokens: key("tokens"),
            arrivals: key("arrivals"),
            quiet: key("quiet"),
            behind: key("behind"),
            quarantine: key("quarantine"),
            witness: key("witness"),
            closed: key("closed"),
            stamps: key("stamps"),
            slot,
            tag,
        }
    }

    /// What the names of a minute's keys begin with, colon included.
    pub(super) fn minute(&self, minute: Minute) -> String {
        format!("{}:{minute}:", self.tag)
    }
}

/// The slot of a key without a hash tag: CRC16 (XMODEM) modulo 16384, as the Redis Cluster specification has it.
pub(super) fn slot(key: &[u8]) -> u16 {
    let crc = key.iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16384
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    fn keys(count: u16) -> Keys {
        Keys::new("eds", Partitions::new(NonZeroU16::new(count).unwrap()))
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
    }

    #[test]
    fn names_are_those_of_the_design() {
        let keys = keys(1);
        let partition = &keys.partitions[0];
        assert_eq!(partition.minutes, "{eds:0}:minutes");
        assert_eq!(
            partition.minute("20161204:1118".parse().unwrap()),
            "{eds:0}:20161204:1118:"
        );
        assert_eq!(keys.settings(), "eds:settings");
    }

    /// With equal stretches of slots to each master, no master has two partitions more than another.
    #[test]
    fn masters_get_equal_shares() {
        let shares = |partitions, masters| {
            let mut shares = vec![0_u32; masters];
            for partition in &keys(partitions).partitions {
                shares[usize::from(partition.slot) * masters / SLOTS as usize] += 1;
            }
            shares
        };
        assert_eq!(shares(32, 3), [11, 10, 11]);
        assert_eq!(shares(32, 5), [6, 7, 6, 7, 6]);
        for (partitions, masters) in [(128, 3), (128, 5), (128, 7), (1024, 11)] {
            let shares = shares(partitions, masters);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 2, "{partitions} on {masters}: {shares:?}");
        }
    }
}
