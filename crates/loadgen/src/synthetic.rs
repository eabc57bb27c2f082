//! The synthetic load: a pure function from a plan and an index to an event, walked by an iterator.
//!
//! A repeat is the same event once more, byte for byte: an index that is drawn to be one takes its event from
//! an index shortly before it. The receiver must count the two once.

use std::io::Write;
use std::num::{NonZeroU32, NonZeroUsize};

use super::draw::{Draw, Purpose, Share};
use super::shuffle::Shuffle;

/// The farthest that a repeat lies behind the event it repeats, in events.
pub(super) const REPEAT_DISTANCE_MAX: u64 = 1_000;

/// A repeat of a repeat is followed back to its origin; at this share that takes ten steps on average.
pub(super) const REPEAT_SHARE_MAX: f64 = 0.9;

/// About a thousand bytes in the short form: one piece on any network.
pub(super) const LINES_PER_DATAGRAM: NonZeroUsize = match NonZeroUsize::new(15) {
    Some(lines) => lines,
    None => NonZeroUsize::MIN,
};

/// All that decides the bytes of a synthetic load.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The same seed gives the same load.
    pub seed: u64,
    /// How many, repeats included.
    pub events: u64,
    /// The most different series.
    pub series: NonZeroU32,
    /// The most different users of a series.
    pub users: NonZeroU32,
    /// The earliest timestamp, in nanoseconds since the epoch. `start_nanos + span_nanos` must fit an `i64`.
    pub start_nanos: i64,
    /// How long the events take, evenly.
    pub span_nanos: i64,
    /// How many of the events are one that was sent shortly before.
    pub repeat: Share,
    /// Whether they come in another order than that of their timestamps.
    pub shuffle: bool,
}

impl Plan {
    /// The load as datagrams, of as many lines as `eds send` packs by default.
    pub fn datagrams(self) -> impl Iterator<Item = Vec<u8>> {
        let mut events = Synthetic::new(self);
        std::iter::from_fn(move || {
            let mut datagram = Vec::new();
            for event in events.by_ref().take(LINES_PER_DATAGRAM.get()) {
                if !datagram.is_empty() {
                    datagram.push(b'\n');
                }
                event.write_line(&mut datagram);
            }
            (!datagram.is_empty()).then_some(datagram)
        })
    }
}

/// One event of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The number in the tag `event_type`.
    pub kind: u32,
    /// The number in the tag `product`.
    pub product: u32,
    /// The number of the user.
    pub user: u32,
    /// Since the epoch.
    pub nanos: i64,
}

impl Event {
    /// Appends the event in the input line's form, without a line end.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        let Self { kind, product, user, nanos } = self;
        // Writing to a vector cannot fail.
        let _ = write!(
            line,
            "event_type=type-{kind},product=product-{product} value=user-{user} {nanos}"
        );
    }
}

/// The events of a plan, in the order in which they are sent.
#[derive(Debug, Clone)]
pub struct Synthetic {
    plan: Plan,
    /// Events share out the span, a slot each, so that no two have one timestamp.
    slot_nanos: u64,
    kinds: u32,
    order: Option<Shuffle>,
    sent: u64,
}

impl Synthetic {
    /// Those of this plan.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let series = plan.series.get();
        let root = series.isqrt();
        Self {
            plan: Plan { repeat: plan.repeat.at_most(REPEAT_SHARE_MAX), ..plan },
            slot_nanos: plan.span_nanos.unsigned_abs() / plan.events.max(1),
            kinds: if root * root < series { root + 1 } else { root },
            order: plan.shuffle.then(|| Shuffle::new(plan.seed, plan.events)),
            sent: 0,
        }
    }

    /// How far before this index the event lies that it repeats; `None` when it repeats none.
    pub(super) fn repeat_distance(&self, index: u64) -> Option<u64> {
        let reach = index.min(REPEAT_DISTANCE_MAX);
        (reach > 0 && self.draw(Purpose::Repeat).falls_into(index, self.plan.repeat))
            .then(|| 1 + self.draw(Purpose::Distance).below(index, reach))
    }

    /// How many events are still to come.
    pub(super) const fn left(&self) -> u64 {
        self.plan.events - self.sent
    }

    fn event(&self, mut index: u64) -> Event {
        while let Some(distance) = self.repeat_distance(index) {
            index -= distance;
        }
        let series = self.draw(Purpose::Series).below_u32(index, self.plan.series.get());
        let within_slot = self.draw(Purpose::Instant).below(index, self.slot_nanos);
        Event {
            kind: series % self.kinds,
            product: series / self.kinds,
            user: self.draw(Purpose::User).below_u32(index, self.plan.users.get()),
            nanos: self
                .plan
                .start_nanos
                .saturating_add_unsigned(index * self.slot_nanos + within_slot),
        }
    }

    const fn draw(&self, purpose: Purpose) -> Draw {
        Draw::new(self.plan.seed, purpose)
    }
}

impl Iterator for Synthetic {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.sent == self.plan.events {
            return None;
        }
        let place = self.sent;
        self.sent += 1;
        Some(self.event(self.order.map_or(place, |order| order.index_at(place))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left()).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const START_NANOS: i64 = 1_480_876_680_000_000_000;
    const MINUTE_NANOS: i64 = 60_000_000_000;

    fn plan() -> Plan {
        Plan {
            seed: 42,
            events: 10_000,
            series: NonZeroU32::new(50).unwrap(),
            users: NonZeroU32::new(100).unwrap(),
            start_nanos: START_NANOS,
            span_nanos: 3 * MINUTE_NANOS,
            repeat: Share::new(0.01).unwrap(),
            shuffle: false,
        }
    }

    fn bytes(plan: Plan) -> Vec<u8> {
        let mut bytes = Vec::new();
        for event in Synthetic::new(plan) {
            event.write_line(&mut bytes);
            bytes.push(b'\n');
        }
        bytes
    }

    #[test]
    fn a_seed_gives_these_bytes_for_ever() {
        let first = String::from_utf8(bytes(Plan { events: 3, ..plan() })).unwrap();
        let expected = "\
event_type=type-0,product=product-1 value=user-90 1480876722191110858
event_type=type-1,product=product-3 value=user-40 1480876791498221708
event_type=type-4,product=product-4 value=user-37 1480876819028182009
";
        assert_eq!(first, expected);
    }

    #[test]
    fn the_same_plan_gives_the_same_bytes_and_another_seed_gives_others() {
        for shuffle in [false, true] {
            let plan = Plan { shuffle, ..plan() };
            assert_eq!(bytes(plan), bytes(plan));
            assert_ne!(bytes(plan), bytes(Plan { seed: 43, ..plan }));
        }
    }

    #[test]
    fn shuffling_changes_the_order_alone() {
        let ordered: Vec<Event> = Synthetic::new(plan()).collect();
        let mut shuffled: Vec<Event> = Synthetic::new(Plan { shuffle: true, ..plan() }).collect();
        assert_ne!(shuffled, ordered);
        let by_time = |event: &Event| (event.nanos, event.user);
        let mut sorted = ordered;
        sorted.sort_unstable_by_key(by_time);
        shuffled.sort_unstable_by_key(by_time);
        assert_eq!(shuffled, sorted);
    }

    #[test]
    fn about_the_repeated_share_repeats_and_nothing_else_does() {
        let distinct = |repeat| {
            let plan = Plan { repeat: Share::new(repeat).unwrap(), ..plan() };
            Synthetic::new(plan).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(distinct(0.0), 10_000);
        assert!((9_850..9_950).contains(&distinct(0.01)), "{}", distinct(0.01));
        assert!(distinct(1.0) < 2_000);
    }

    proptest! {
        #[test]
        fn events_keep_to_their_plan(
            seed: u64, events in 1..2_000_u64, series in 1..200_u32, users in 1..50_u32, minutes in 1..5_i64,
            shuffle: bool,
        ) {
            let plan = Plan {
                seed, events, shuffle,
                series: NonZeroU32::new(series).unwrap(),
                users: NonZeroU32::new(users).unwrap(),
                span_nanos: minutes * MINUTE_NANOS,
                ..plan()
            };
            let all: Vec<Event> = Synthetic::new(plan).collect();
            prop_assert_eq!(all.len() as u64, events);
            let names: BTreeSet<_> = all.iter().map(|event| (event.kind, event.product)).collect();
            prop_assert!(names.len() <= series as usize);
            for event in &all {
                prop_assert!(event.user < users);
                prop_assert!((START_NANOS..START_NANOS + plan.span_nanos).contains(&event.nanos));
            }
        }
    }
}
