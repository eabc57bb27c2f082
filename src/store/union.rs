//! [`Union`]: the distinct users and the number of events of each group in a window. Users are 64-bit fingerprints.
//!
//! A union is stored in frames, each of which can be read without the others. Merging frames in any order gives the same
//! union. Within a frame, fingerprints are sorted, and each is stored as the difference to the previous one:
//!
//! ```text
//! frame = version group…
//! group = length name events users width first difference… / length name events bytes %xff sketch
//! version = %x01; width: 1 byte, the size of a difference (0 to 8); first: 8 bytes; length, events, users, bytes: LEB128
//! ```
//!
//! A group with too many users continues as a `HyperLogLog` sketch, whatever the order in which its users are added.

use std::collections::BTreeMap;

use datasketches::hll::{HllSketch, HllType, HllUnion};
use xxhash_rust::xxh3::xxh3_64;

use super::SeriesCounts;
use super::leb128::{read_number, write_number};
use crate::event::{OVERFLOW_GROUP, Quality, RollupLimits};

/// The size at which a frame ends, in bytes. Redis handles requests and replies of this size in about a tenth of a ms.
const FRAME_BYTES: usize = 256 << 10;
/// The maximum number of users per entry, so that an entry fits in a frame.
const USERS_MAX: usize = 16 << 10;
const VERSION: u8 = 1;
/// The approximate memory of a group, excluding its name and its users, in bytes.
const GROUP_BYTES: usize = 100;

/// The binary logarithm of the number of registers of a sketch, so that [`ESTIMATE_ERROR`](crate::event::ESTIMATE_ERROR) is
/// 1.04 / √2¹⁴.
const SKETCH_REGISTERS_LOG: u8 = 14;
/// The approximate memory of a sketch, in bytes.
const SKETCH_BYTES: usize = 16 << 10;
const SKETCH: u8 = 0xff;

/// The error for a malformed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of a window is malformed")]
pub struct Malformed;

/// The approximate memory of an open window, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowCost {
    /// In the store, including lists that have not been merged yet.
    pub(crate) stored: u64,
    /// On the node that seals or reads the window.
    pub(crate) sealing: u64,
    /// Whether the users of some groups are estimated.
    pub(crate) is_estimated: bool,
}

/// Returns what a window with this many groups, each with this many users, costs according to the formula in `docs/limits.md`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate between 0 and 2^64"
)]
pub(crate) fn window_cost(limits: RollupLimits, groups: u64, users: u64) -> WindowCost {
    const NAME_BYTES: u64 = 40;
    let exact_max = if users > limits.users_max { 0 } else { limits.bytes_max / 8 / users.max(1) };
    let exact = groups.min(exact_max);
    let (all, sketches) = (exact * users, groups - exact);
    // The largest difference in a sorted list of random numbers, of which an entry has at most `USERS_MAX`.
    let random = users.clamp(3, USERS_MAX as u64) as f64;
    let largest = 2_f64.powi(64) / users.max(1) as f64 * random.ln();
    let width = (largest.log2() / 8.0).ceil().min(8.0) as u64;
    let others = sketches * SKETCH_BYTES as u64 + groups * NAME_BYTES;
    let merged = all * width + others;
    WindowCost {
        stored: merged + merged / 8,
        sealing: all * size_of::<u64>() as u64 + others + groups * GROUP_BYTES as u64,
        is_estimated: sketches > 0,
    }
}

/// The users and events of the groups of one window, or of some of its groups.
#[derive(Debug)]
pub struct Union {
    limits: RollupLimits,
    groups: BTreeMap<Box<str>, Group>,
}

#[derive(Debug, Default)]
struct Group {
    events: u64,
    /// The fingerprints of the users, possibly with duplicates; empty if there is a sketch.
    users: Vec<u64>,
    sketch: Option<Box<HllUnion>>,
}

impl Group {
    fn settle(&mut self, users_max: u64) {
        sort_distinct(&mut self.users);
        if self.users.len() as u64 > users_max {
            self.estimate();
        }
    }

    fn add(&mut self, users: Vec<u64>) {
        match &mut self.sketch {
            None if self.users.is_empty() => self.users = users,
            None => self.users.extend(users),
            Some(sketch) => users.into_iter().for_each(|user| sketch.update_value(user)),
        }
    }

    fn merge(&mut self, other: Self) {
        self.events += other.events;
        if let Some(sketch) = other.sketch {
            self.estimate();
            if let Some(own) = &mut self.sketch {
                own.update(&sketch.to_sketch(HllType::Hll6));
            }
        }
        self.add(other.users);
    }

    /// Replaces the users by a sketch of them. Does nothing if a sketch cannot be created, which does not happen.
    fn estimate(&mut self) {
        if self.sketch.is_none() {
            self.sketch = HllUnion::new(SKETCH_REGISTERS_LOG).ok().map(Box::new);
            let users = std::mem::take(&mut self.users);
            self.add(users);
        }
    }

    /// Returns the number of users.
    fn unique(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of users"
        )]
        let estimate = |sketch: &HllUnion| sketch.composite_estimate().round() as u64;
        self.sketch.as_deref().map_or(self.users.len() as u64, estimate)
    }
}

impl Union {
    /// Returns an empty union with these limits.
    #[must_use]
    pub const fn new(limits: RollupLimits) -> Self {
        Self { limits, groups: BTreeMap::new() }
    }

    /// Adds events, and the fingerprints of their users in any order, to a group.
    pub fn add(&mut self, name: &str, events: u64, users: Vec<u64>) {
        if self.groups.len() > self.limits.groups_max.saturating_mul(2) {
            self.limit_groups();
        }
        let group = match self.groups.get_mut(name) {
            Some(group) => group,
            None => self.groups.entry(name.into()).or_default(),
        };
        group.events += events;
        group.add(users);
        if group.users.len() as u64 > self.limits.users_max.saturating_mul(2) {
            group.settle(self.limits.users_max);
        }
    }

    /// Returns the approximate memory that the union takes, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let names: usize = self.groups.keys().map(|name| name.len()).sum();
        let users: usize = self.groups.values().map(|group| group.users.capacity()).sum();
        let sketches = self.groups.values().filter(|group| group.sketch.is_some()).count();
        (GROUP_BYTES * self.groups.len()
            + names
            + size_of::<u64>() * users
            + SKETCH_BYTES * sketches) as u64
    }

    /// Adds the groups of a frame.
    pub fn read(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        let mut rest = frame;
        self.read_groups(&mut rest).filter(|()| rest.is_empty()).ok_or(Malformed)
    }

    fn read_groups(&mut self, rest: &mut &[u8]) -> Option<()> {
        (rest.split_off_first()? == &VERSION).then_some(())?;
        while !rest.is_empty() {
            let length = usize::try_from(read_number(rest)?).ok()?;
            let name = std::str::from_utf8(rest.split_off(..length)?).ok()?;
            let (events, users) = (read_number(rest)?, usize::try_from(read_number(rest)?).ok()?);
            let width = *rest.split_off_first()?;
            if width == SKETCH {
                let sketch = HllSketch::deserialize(rest.split_off(..users)?).ok()?;
                self.add(name, events, Vec::new());
                let group = self.groups.get_mut(name)?;
                group.estimate();
                group.sketch.as_mut()?.update(&sketch);
                continue;
            }
            if users == 0 {
                self.add(name, events, Vec::new());
                continue;
            }
            let mut user = u64::from_le_bytes(*rest.split_off(..size_of::<u64>())?.first_chunk()?);
            let first = user;
            let differences = rest.split_off(..usize::from(width).checked_mul(users - 1)?)?;
            if usize::from(width) > size_of::<u64>() || (width == 0 && users > 1) {
                return None;
            }
            // Reads eight bytes at a time, which is several times as fast as reading `width` bytes.
            let mut padded = differences.to_vec();
            padded.extend_from_slice(&[0; size_of::<u64>()]);
            let mask = u64::MAX.checked_shr(u64::BITS - u8::BITS * u32::from(width)).unwrap_or(0);
            let width = usize::from(width);
            let later = (1..users).map(|place| {
                let bytes = padded[(place - 1) * width..].first_chunk().copied();
                user = user.wrapping_add(u64::from_le_bytes(bytes.unwrap_or_default()) & mask);
                user
            });
            self.add(name, events, std::iter::once(first).chain(later).collect());
        }
        Some(())
    }

    /// Merges the groups beyond the limit into one. The groups whose names have the smallest hashes stay, so that a group is
    /// either counted alone in every list, or the lists that are merged agree to count it in [`OVERFLOW_GROUP`].
    fn limit_groups(&mut self) {
        let hash = |name: &str| if name == OVERFLOW_GROUP { 0 } else { xxh3_64(name.as_bytes()) };
        let most = self.limits.groups_max + usize::from(self.groups.contains_key(OVERFLOW_GROUP));
        if self.groups.len() <= most {
            return;
        }
        let mut hashes: Vec<_> = self.groups.keys().map(|name| hash(name)).collect();
        let (_, &mut limit, _) = hashes.select_nth_unstable(most);
        let all = std::mem::take(&mut self.groups).into_iter();
        let (kept, further): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.partition(|(name, _)| hash(name) < limit);
        self.groups = kept;
        let overflow = self.groups.entry(OVERFLOW_GROUP.into()).or_default();
        for group in further.into_values() {
            overflow.merge(group);
        }
        overflow.settle(self.limits.users_max);
    }

    /// Sorts the users, removes duplicates, and applies the limits.
    pub(crate) fn settle(&mut self) {
        self.limit_groups();
        let users_max = self.limits.users_max;
        self.groups.values_mut().for_each(|group| group.settle(users_max));
        let bytes = |group: &Group| (group.users.len() * size_of::<u64>()) as u64;
        let mut held: u64 = self.groups.values().map(bytes).sum();
        while held > self.limits.bytes_max {
            let Some(largest) = self.groups.values_mut().max_by_key(|group| group.users.len())
            else {
                break;
            };
            held -= bytes(largest);
            largest.estimate();
        }
    }

    /// Returns the frames that contain this union.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        self.settle();
        let (mut frames, mut frame) = (Vec::new(), vec![VERSION]);
        for (name, group) in &self.groups {
            let mut events = group.events;
            if let Some(sketch) = &group.sketch {
                let sketch = sketch.to_sketch(HllType::Hll6).serialize();
                write_head(&mut frame, name, events, sketch.len());
                frame.push(SKETCH);
                frame.extend_from_slice(&sketch);
                events = 0;
            }
            let mut entries = group.users.chunks(USERS_MAX).peekable();
            while events > 0 || entries.peek().is_some() {
                let users = entries.next().unwrap_or_default();
                write_entry(&mut frame, name, std::mem::take(&mut events), users);
                if frame.len() >= FRAME_BYTES {
                    frames.push(std::mem::replace(&mut frame, vec![VERSION]));
                }
            }
        }
        if frame.len() > 1 {
            frames.push(frame);
        }
        frames
    }

    /// Returns the counts of each group, sorted by name. The union must be settled.
    #[must_use]
    pub fn counts(&self) -> impl ExactSizeIterator<Item = SeriesCounts> {
        self.groups.iter().map(|(name, group)| SeriesCounts {
            series: name.to_string(),
            unique: group.unique(),
            cumulative: group.events,
            quality: Quality { is_estimated: group.sketch.is_some(), ..Quality::default() },
        })
    }
}

/// Sorts users and removes duplicates.
pub(crate) fn sort_distinct(users: &mut Vec<u64>) {
    if !users.is_sorted_by(|user, next| user < next) {
        #[expect(clippy::stable_sort_primitive, reason = "merges the sorted runs of the list")]
        users.sort();
        users.dedup();
    }
}

fn write_head(frame: &mut Vec<u8>, name: &str, events: u64, number: usize) {
    write_number(frame, name.len() as u64);
    frame.extend_from_slice(name.as_bytes());
    write_number(frame, events);
    write_number(frame, number as u64);
}

/// Adds an entry with these users, which are sorted and distinct.
fn write_entry(frame: &mut Vec<u8>, name: &str, events: u64, users: &[u64]) {
    write_head(frame, name, events, users.len());
    let differences = users.windows(2).map(|pair| pair[1] - pair[0]);
    let widest = differences.clone().max().unwrap_or_default();
    let width = (u64::BITS - widest.leading_zeros()).div_ceil(u8::BITS);
    frame.push(u8::try_from(width).unwrap_or_default());
    if let Some(first) = users.first() {
        frame.extend_from_slice(&first.to_le_bytes());
    }
    // Writes eight bytes at a time, each over the end of the previous one.
    let (mut end, width) = (frame.len(), width as usize);
    frame.resize(end + width * users.len().saturating_sub(1) + size_of::<u64>(), 0);
    for difference in differences {
        frame[end..end + size_of::<u64>()].copy_from_slice(&difference.to_le_bytes());
        end += width;
    }
    frame.truncate(end);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: RollupLimits =
        RollupLimits { users_max: 1_000_000, groups_max: 1000, bytes_max: 64 << 20 };

    fn counts(mut union: Union) -> Vec<(String, u64, u64)> {
        union.settle();
        let counts =
            union.counts().inspect(|counts| assert_eq!(counts.quality, Quality::default()));
        counts.map(|counts| (counts.series, counts.unique, counts.cumulative)).collect()
    }

    proptest! {
        #[test]
        fn merged_frames_equal_sets(
            parts in prop::collection::vec(prop::collection::vec((0..4_u8, 0..1000_u64, prop::collection::vec(0..400_u64, 0..50)), 0..6), 0..6),
            is_spread in any::<bool>(),
        ) {
            let mut union = Union::new(LIMITS);
            let mut expected: BTreeMap<String, (BTreeSet<u64>, u64)> = BTreeMap::new();
            for part in parts {
                let mut merged = Union::new(LIMITS);
                for (name, events, users) in part {
                    let name = if name == 0 { String::new() } else { format!("a={name}") };
                    let users = users.into_iter().map(|user| if is_spread { user.wrapping_mul(0x2545_f491_4f6c_dd1d) } else { user });
                    merged.add(&name, events, users.clone().collect());
                    let set = expected.entry(name).or_default();
                    set.0.extend(users);
                    set.1 += events;
                }
                for frame in merged.frames() {
                    union.read(&frame).unwrap();
                }
            }
            let expected: Vec<_> = expected.into_iter().map(|(name, (users, events))| (name, users.len() as u64, events)).collect();
            prop_assert_eq!(counts(union), expected);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Union::new(LIMITS).read(&[&[VERSION], &bytes[..]].concat());
        }
    }

    #[test]
    fn large_group_takes_less_than_eight_bytes_per_user_and_several_frames() {
        let mut union = Union::new(LIMITS);
        let users = (1..=200_000_u64).map(|user| user.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        union.add("a=1", 300_000, users.collect());
        let frames = union.frames();
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert!(frames.len() > 1 && frames.iter().all(|frame| frame.len() < 2 * FRAME_BYTES));
        assert!(bytes < 200_000 * 8, "{bytes} bytes");
        let mut read = Union::new(LIMITS);
        for frame in &frames {
            read.read(frame).unwrap();
        }
        assert_eq!(counts(read), [("a=1".to_owned(), 200_000, 300_000)]);
        assert_eq!(Union::new(LIMITS).read(&frames[0][..100]), Err(Malformed));
    }

    #[test]
    fn cost_of_a_window_is_that_of_its_frames() {
        for (groups, users) in [(1, 200_000), (100, 500), (3, 5000), (2, 60_000)] {
            let limits = RollupLimits {
                users_max: if users == 60_000 { 50_000 } else { 1_000_000 },
                ..LIMITS
            };
            let mut union = Union::new(limits);
            for group in 0..groups {
                let users = (1..=users)
                    .map(|user: u64| (user + group * users).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                union.add(
                    &format!("event_type=login,product=product-{group:05}"),
                    1,
                    users.collect(),
                );
            }
            let stored: u64 = union.frames().iter().map(|frame| frame.len() as u64).sum();
            let cost = window_cost(limits, groups, users);
            assert!(
                stored <= cost.stored && cost.stored <= stored * 3 / 2,
                "{stored} bytes, {cost:?}"
            );
            assert_eq!(cost.is_estimated, union.counts().any(|counts| counts.quality.is_estimated));
            assert!(cost.sealing >= cost.stored * 3 / 4, "{cost:?}");
        }
        let half = RollupLimits { bytes_max: 8 * 5000, ..LIMITS };
        assert!(window_cost(half, 10, 1000).is_estimated);
        assert!(!window_cost(half, 5, 1000).is_estimated);
    }

    /// Beyond a limit, the number is an estimate, and is the same in whatever order lists are merged.
    #[test]
    fn large_groups_become_sketches() {
        let users =
            |from: u64| (from..from + 40_000).map(|user| user.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for limits in [
            RollupLimits { users_max: 50_000, ..LIMITS },
            RollupLimits { bytes_max: 400_000, ..LIMITS },
        ] {
            let parts = [1, 20_000, 80_000].map(|from| {
                let mut part = Union::new(limits);
                part.add("a=1", 1, users(from).collect());
                part.add("a=2", 1, vec![7]);
                part.frames()
            });
            let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]].map(|order| {
                let mut union = Union::new(limits);
                for part in order {
                    // A list that is folded in between gives the same result.
                    parts[part].iter().for_each(|frame| union.read(frame).unwrap());
                    let mut folded = Union::new(limits);
                    union.frames().iter().for_each(|frame| folded.read(frame).unwrap());
                    union = folded;
                }
                union.settle();
                union.counts().collect::<Vec<_>>()
            });
            let [large, small] = &orders[0][..] else { panic!("{orders:?}") };
            assert!(large.quality.is_estimated && large.cumulative == 3, "{large:?}");
            assert!(large.unique.abs_diff(99_999) < 3_000, "{large:?}");
            assert_eq!((small.unique, small.quality), (1, Quality::default()));
            assert!(orders.iter().all(|order| *order == orders[0]), "{orders:?}");
        }
    }

    /// Beyond the limit on groups, groups are merged, and the same ones in whatever order lists are merged.
    #[test]
    fn further_groups_become_one() {
        let limits = RollupLimits { groups_max: 10, ..LIMITS };
        let parts: Vec<_> = (0..8_u64)
            .map(|part| {
                let mut union = Union::new(limits);
                for group in (0..40).filter(|group| (group + part) % 3 != 0) {
                    union.add(&format!("a={group}"), 1, vec![group, 100 + part]);
                }
                union.frames()
            })
            .collect();
        let merged = |parts: &mut dyn Iterator<Item = &Vec<Vec<u8>>>| {
            let mut union = Union::new(limits);
            parts.flatten().for_each(|frame| union.read(frame).unwrap());
            counts(union)
        };
        let all = merged(&mut parts.iter());
        assert_eq!(all, merged(&mut parts.iter().rev()));
        let (overflow, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|(name, ..)| name == OVERFLOW_GROUP);
        assert_eq!(others.len(), 10);
        for (name, users, events) in others {
            let group: u64 = name.trim_start_matches("a=").parse().unwrap();
            let times = (0..8).filter(|part| !(group + part).is_multiple_of(3)).count() as u64;
            assert_eq!((*users, *events), (times + 1, times), "{name}");
        }
        let events: u64 = all.iter().map(|(.., events)| events).sum();
        let expected = (0..8).flat_map(|part| (0..40).map(move |group| (group + part) % 3));
        assert_eq!(events, expected.filter(|rest| *rest != 0).count() as u64);
        assert_eq!(overflow[0].1, 30 + 8);
    }
}
