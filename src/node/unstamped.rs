//! [`Unstamped`]: a sample of recent lines without a timestamp. Nodes stamp such lines on arrival, so a line that two nodes
//! receive counts as two events. By comparing their samples, nodes detect that they receive the same lines. A sample has the
//! lines with the lowest hashes, so that all nodes choose the same lines. A hash has 24 bits, too few to identify a user.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::lock;

pub(crate) const WINDOW_MS: i64 = 5000;
const LINES_MAX: usize = 32;
/// Minimum number of common lines to report. Fewer may be a coincidence.
const COMMON_MIN: usize = 3;
/// Number of bits by which a 64-bit hash is shortened.
const LEFT_OUT: u32 = 40;

/// The hash of a line and its arrival time in seconds since the epoch.
type Seen = (u32, i64);

#[derive(Debug, Default)]
pub(crate) struct Unstamped {
    /// The current window's number (upper half) and its sample's highest hash, to skip most lines without a lock.
    edge: AtomicU64,
    windows: Mutex<Windows>,
}

#[derive(Debug, Default)]
struct Windows {
    number: i64,
    present: BTreeSet<Seen>,
    last: BTreeSet<Seen>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    /// The number of the window, in units of `WINDOW_MS` since the epoch.
    pub(crate) window: i64,
    lines: Vec<Seen>,
}

impl Unstamped {
    /// Adds a line that arrived at `at_ms` on the store's clock, in ms since the epoch.
    pub(crate) fn add(&self, series: &str, user: &[u8], at_ms: i64) {
        let hash = xxh3_64(user) ^ xxh3_64(series.as_bytes()).rotate_left(32);
        let hash = u32::try_from(hash >> LEFT_OUT).unwrap_or(u32::MAX);
        let number = at_ms.div_euclid(WINDOW_MS);
        let window = number.cast_unsigned() << 32;
        let edge = self.edge.load(Ordering::Relaxed);
        if (window..window | u64::from(hash)).contains(&edge) {
            return;
        }
        let mut windows = lock(&self.windows);
        windows.turn_to(number);
        if windows.number != number {
            return;
        }
        windows.present.insert((hash, at_ms.div_euclid(1000)));
        let mut highest = u32::MAX;
        if windows.present.len() > LINES_MAX {
            windows.present.pop_last();
            highest = windows.present.last().map_or(u32::MAX, |seen| seen.0);
        }
        let edge = window | u64::from(highest);
        self.edge.store(edge, Ordering::Relaxed);
    }

    /// Returns the sample of the last complete window, or `None` if it is empty.
    pub(crate) fn sample(&self, now_ms: i64) -> Option<Sample> {
        let mut windows = lock(&self.windows);
        windows.turn_to(now_ms.div_euclid(WINDOW_MS));
        (!windows.last.is_empty()).then(|| Sample {
            window: windows.number - 1,
            lines: windows.last.iter().copied().collect(),
        })
    }
}

impl Windows {
    /// Starts the window with this number, unless it is the current one or, due to a slower thread, a past one.
    fn turn_to(&mut self, number: i64) {
        // A larger difference means that the clock was set back.
        let is_past = number < self.number && self.number - number < 12;
        if number == self.number || is_past {
            return;
        }
        let present = std::mem::take(&mut self.present);
        self.last = if number == self.number + 1 { present } else { BTreeSet::new() };
        self.number = number;
    }
}

impl Sample {
    pub(crate) fn fit(mut self) -> Self {
        self.lines.truncate(LINES_MAX);
        self
    }

    /// Returns the number of lines that both nodes received within about a second, or `None` if they may be a coincidence.
    pub(crate) fn common(&self, other: &Self) -> Option<usize> {
        let other_lines: BTreeSet<Seen> = other.lines.iter().copied().collect();
        let is_common = |&&(hash, second): &&Seen| {
            let near = (hash, second.saturating_sub(1))..=(hash, second.saturating_add(1));
            other_lines.range(near).next().is_some()
        };
        let common = self.lines.iter().filter(is_common).count();
        let least = self.lines.len().min(other.lines.len());
        let is_enough = common >= COMMON_MIN && 2 * common >= least;
        (self.window == other.window && is_enough).then_some(common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a window.
    const AT: i64 = 1_480_876_705_000;

    fn sample(lines: impl Iterator<Item = (u64, i64)>) -> Option<Sample> {
        let unstamped = Unstamped::default();
        for (user, after_ms) in lines {
            unstamped.add("a=1", format!("user{user}").as_bytes(), AT + after_ms);
        }
        unstamped.sample(AT + WINDOW_MS)
    }

    #[test]
    fn nodes_with_copies_share_most_samples() {
        let lines = || (0..10_000_u32).map(|user| (u64::from(user), i64::from(user % 4000)));
        let (first, second) =
            (sample(lines()).unwrap(), sample(lines().map(|(user, at)| (user, at + 900))));
        let second = second.unwrap();
        assert_eq!((first.lines.len(), second.lines.len()), (LINES_MAX, LINES_MAX));
        assert!(first.common(&second) >= Some(LINES_MAX - 2), "{:?}", first.common(&second));
        let few = sample((0..3).map(|user| (user, 100))).unwrap();
        assert_eq!(few.common(&few), Some(3));
    }

    #[test]
    fn nodes_without_copies_share_few_samples() {
        let part = |part| (0..10_000).filter(move |user| user % 2 == part).map(|user| (user, 100));
        let (first, second) = (sample(part(0)).unwrap(), sample(part(1)).unwrap());
        assert_eq!(first.common(&second), None);
        let two_lines = sample((0..2).map(|user| (user, 100))).unwrap();
        assert_eq!(two_lines.common(&two_lines), None, "two equal lines may be a coincidence");
    }

    #[test]
    fn a_sample_is_of_one_window_and_the_same_line_counts_once_a_second() {
        let often = sample((0..5000).map(|at| (1, at))).unwrap();
        assert_eq!(often.lines.len(), 5);
        let unstamped = Unstamped::default();
        unstamped.add("a=1", b"u", AT);
        assert_eq!(unstamped.sample(AT), None, "the window has not ended");
        assert!(unstamped.sample(AT + WINDOW_MS).is_some());
        assert_eq!(unstamped.sample(AT + 2 * WINDOW_MS), None);
        unstamped.add("a=1", b"u", AT + 3 * WINDOW_MS);
        let (first, mut second) =
            (sample((0..9).map(|user| (user, 1))).unwrap(), Sample::default());
        second.lines.clone_from(&first.lines);
        assert_eq!(first.common(&second), None, "the samples are from different windows");
    }
}
