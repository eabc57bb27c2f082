//! Stamps synthetic events with the moment at which they are sent.

use super::synthetic::{Event, REPEAT_DISTANCE_MAX, Synthetic};

/// One more than the farthest repeat, so that what is repeated is never the slot that is being written.
const KEPT: u64 = REPEAT_DISTANCE_MAX + 1;

/// A synthetic load whose events happen when they are sent.
#[derive(Debug)]
pub(super) struct Realtime {
    load: Synthetic,
    stamps: Stamps,
    index: u64,
}

impl Realtime {
    /// The plan must not be shuffled: a repeat follows what it repeats.
    pub(super) const fn new(load: Synthetic) -> Self {
        Self { load, stamps: Stamps::new(), index: 0 }
    }

    /// How many events are still to come.
    pub(super) const fn left(&self) -> u64 {
        self.load.left()
    }

    /// The next event, as of this moment in nanoseconds since the epoch.
    pub(super) fn next(&mut self, now_nanos: i64) -> Option<Event> {
        let event = self.load.next()?;
        let nanos = self.stamps.next(self.load.repeat_distance(self.index), now_nanos);
        self.index += 1;
        Some(Event { nanos, ..event })
    }
}

/// The stamps given last: a repeat must bear the stamp of the event it repeats.
#[derive(Debug)]
struct Stamps {
    kept: Vec<i64>,
    given: u64,
    newest: i64,
}

impl Stamps {
    const fn new() -> Self {
        Self { kept: Vec::new(), given: 0, newest: i64::MIN }
    }

    /// The stamp of the next event in nanoseconds since the epoch: that of the event `repeat_distance` before
    /// it, or else this moment, moved on where that is needed for no two events to share one.
    fn next(&mut self, repeat_distance: Option<u64>, now_nanos: i64) -> i64 {
        let stamp = repeat_distance
            .and_then(|distance| self.given.checked_sub(distance))
            .and_then(|index| self.kept.get(slot(index)).copied())
            .unwrap_or_else(|| {
                self.newest = now_nanos.max(self.newest.saturating_add(1));
                self.newest
            });
        match self.kept.get_mut(slot(self.given)) {
            Some(kept) => *kept = stamp,
            None => self.kept.push(stamp),
        }
        self.given += 1;
        stamp
    }
}

fn slot(index: u64) -> usize {
    // In range: below a thousand or so.
    usize::try_from(index % KEPT).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_differ_even_when_the_clock_stands_or_goes_back() {
        let mut stamps = Stamps::new();
        let given: Vec<i64> = [100, 100, 90, 200].map(|now| stamps.next(None, now)).into();
        assert_eq!(given, [100, 101, 102, 200]);
    }

    #[test]
    fn a_repeat_bears_the_stamp_of_what_it_repeats() {
        let mut stamps = Stamps::new();
        for now in 0..5_000 {
            assert_eq!(stamps.next(None, now), now);
        }
        assert_eq!(stamps.next(Some(1), 9_999), 4_999);
        assert_eq!(stamps.next(Some(1), 9_999), 4_999, "a repeat of a repeat");
        assert_eq!(stamps.next(Some(REPEAT_DISTANCE_MAX), 9_999), 5_002 - 1_000);
    }
}
