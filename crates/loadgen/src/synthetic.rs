//! The synthetic load: a pure function from a plan and an index to an event. A repeat duplicates a slightly earlier event.

use std::collections::VecDeque;
use std::io::Write;
use std::num::NonZeroU32;

use super::draw::{Draw, Purpose};

const REPEAT_DISTANCE_MAX: usize = 1_000;
/// Maximum share of repeats. At this share, finding the original of a repeat of a repeat takes ten steps on average.
pub(super) const REPEAT_SHARE_MAX: f64 = 0.9;
/// The default of `--lines-per-datagram`: about a thousand bytes in the short form, which fits in one packet on any network.
const LINES_PER_DATAGRAM: usize = 15;

/// The parameters of a synthetic load. Equal plans produce identical bytes.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The seed for all random choices.
    pub seed: u64,
    /// The number of events, including repeats.
    pub events: u64,
    /// Maximum number of series.
    pub series: NonZeroU32,
    /// Maximum number of users per series.
    pub users: NonZeroU32,
    /// The earliest timestamp, in nanoseconds since the epoch. `start_nanos + span_nanos` must fit in an `i64`.
    pub start_nanos: i64,
    /// The time over which the events are spread evenly, in nanoseconds.
    pub span_nanos: i64,
    /// The share of events that repeat an event sent shortly before, from 0 to 1.
    pub repeat: f64,
    /// Whether events are sent in random order instead of chronological order.
    pub shuffle: bool,
}

impl Plan {
    /// Returns the load as datagrams, each with as many lines as `eds send` packs by default.
    pub fn datagrams(self) -> impl Iterator<Item = Vec<u8>> {
        let mut events = Synthetic::new(self);
        std::iter::from_fn(move || {
            let mut datagram = Vec::new();
            for event in events.by_ref().take(LINES_PER_DATAGRAM) {
                if !datagram.is_empty() {
                    datagram.push(b'\n');
                }
                event.write_line(&mut datagram);
            }
            (!datagram.is_empty()).then_some(datagram)
        })
    }
}

/// An event of a synthetic load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The number in the `event_type` tag.
    pub kind: u32,
    /// The number in the `product` tag.
    pub product: u32,
    /// The number in the user's name.
    pub user: u32,
    /// The timestamp, in nanoseconds since the epoch.
    pub nanos: i64,
}

impl Event {
    /// Appends the event as an input line, without a newline.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        let Self { kind, product, user, nanos } = self;
        let _ = write!(
            line,
            "event_type=type-{kind},product=product-{product} value=user-{user} {nanos}"
        );
    }
}

/// An iterator over the events of a plan, in sending order.
#[derive(Debug, Clone)]
pub struct Synthetic {
    plan: Plan,
    /// Each event has its own slot within the span, so that no two events have the same timestamp.
    slot_nanos: u64,
    kinds: u32,
    order: Option<std::vec::IntoIter<u64>>,
    sent: u64,
    /// The last timestamps from [`next_at`](Self::next_at), newest first. A repeat reuses one of them.
    recent: VecDeque<i64>,
    newest: i64,
}

impl Synthetic {
    /// Returns the events for this plan.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let series = plan.series.get();
        let root = series.isqrt();
        let order = plan.shuffle.then(|| {
            let draw = Draw::new(plan.seed, Purpose::Order);
            let mut order: Vec<u64> = (0..plan.events).collect();
            order.sort_unstable_by_key(|&index| draw.at(index));
            order.into_iter()
        });
        Self {
            plan: Plan { repeat: plan.repeat.min(REPEAT_SHARE_MAX), ..plan },
            slot_nanos: plan.span_nanos.unsigned_abs() / plan.events.max(1),
            kinds: if root * root < series { root + 1 } else { root },
            order,
            sent: 0,
            recent: VecDeque::new(),
            newest: 0,
        }
    }

    /// Returns the next event. Its timestamp is `now_nanos` or, if a previous event is not earlier, the newest timestamp so
    /// far plus 1. A repeat has the timestamp of the event that it repeats. The plan must not be shuffled.
    pub(super) fn next_at(&mut self, now_nanos: i64) -> Option<Event> {
        let distance = self.repeat_distance(self.sent);
        let event = self.next()?;
        let place = distance.and_then(|distance| usize::try_from(distance - 1).ok());
        let repeated = place.and_then(|place| self.recent.get(place).copied());
        let nanos = repeated.unwrap_or_else(|| now_nanos.max(self.newest.saturating_add(1)));
        self.newest = self.newest.max(nanos);
        self.recent.truncate(REPEAT_DISTANCE_MAX - 1);
        self.recent.push_front(nanos);
        Some(Event { nanos, ..event })
    }

    fn repeat_distance(&self, index: u64) -> Option<u64> {
        let reach = index.min(REPEAT_DISTANCE_MAX as u64);
        (reach > 0 && self.draw(Purpose::Repeat).falls_into(index, self.plan.repeat))
            .then(|| 1 + self.draw(Purpose::Distance).below(index, reach))
    }

    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    fn event(&self, mut index: u64) -> Event {
        while let Some(distance) = self.repeat_distance(index) {
            index -= distance;
        }
        let series = self.draw(Purpose::Series).below(index, self.plan.series.get());
        let offset =
            index * self.slot_nanos + self.draw(Purpose::Instant).below(index, self.slot_nanos);
        Event {
            kind: series % self.kinds,
            product: series / self.kinds,
            user: self.draw(Purpose::User).below(index, self.plan.users.get()),
            nanos: self.plan.start_nanos.saturating_add_unsigned(offset),
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
        let index = match &mut self.order {
            Some(order) => order.next()?,
            None => self.sent,
        };
        self.sent += 1;
        Some(self.event(index))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::MINUTE_NANOS;
    use super::*;

    const START_NANOS: i64 = 1_480_876_680_000_000_000;

    fn plan() -> Plan {
        Plan {
            seed: 42,
            events: 10_000,
            series: NonZeroU32::new(50).unwrap(),
            users: NonZeroU32::new(100).unwrap(),
            start_nanos: START_NANOS,
            span_nanos: 3 * MINUTE_NANOS,
            repeat: 0.01,
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
    fn a_seed_always_gives_these_bytes() {
        let first = String::from_utf8(bytes(Plan { events: 3, ..plan() })).unwrap();
        let expected = "\
event_type=type-0,product=product-1 value=user-90 1480876722191110858
event_type=type-1,product=product-3 value=user-40 1480876791498221708
event_type=type-4,product=product-4 value=user-37 1480876819028182009
";
        assert_eq!(first, expected);
    }

    #[test]
    fn equal_plans_give_equal_bytes_and_other_seeds_differ() {
        for shuffle in [false, true] {
            let plan = Plan { shuffle, ..plan() };
            assert_eq!(bytes(plan), bytes(plan));
            assert_ne!(bytes(plan), bytes(Plan { seed: 43, ..plan }));
        }
    }

    #[test]
    fn shuffling_changes_only_the_order() {
        let ordered: Vec<Event> = Synthetic::new(plan()).collect();
        let mut shuffled: Vec<Event> = Synthetic::new(Plan { shuffle: true, ..plan() }).collect();
        assert_ne!(shuffled, ordered);
        let by_time = |event: &Event| (event.nanos, event.user);
        let mut sorted = ordered;
        sorted.sort_unstable_by_key(by_time);
        let near = shuffled.windows(2).filter(|pair| {
            pair[0].nanos.abs_diff(pair[1].nanos) < plan().span_nanos.unsigned_abs() / 100
        });
        // By chance, 2% of neighbours are this close.
        let near = near.count();
        assert!(near < 400, "{near}");
        shuffled.sort_unstable_by_key(by_time);
        assert_eq!(shuffled, sorted);
    }

    #[test]
    fn repeats_match_the_requested_share() {
        let distinct = |repeat| {
            let plan = Plan { repeat, ..plan() };
            Synthetic::new(plan).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(distinct(0.0), 10_000);
        assert!((9_850..9_950).contains(&distinct(0.01)), "{}", distinct(0.01));
        assert!(distinct(1.0) < 2_000);
    }

    #[test]
    fn timestamps_differ_even_if_the_clock_stops_or_is_set_back() {
        let mut load = Synthetic::new(Plan { repeat: 0.0, ..plan() });
        let given = [100, 100, 90, 200].map(|now| load.next_at(now).unwrap().nanos);
        assert_eq!(given, [100, 101, 102, 200]);
    }

    #[test]
    fn a_repeat_has_the_timestamp_of_the_repeated_event() {
        let mut load = Synthetic::new(Plan { repeat: 0.5, ..plan() });
        let mut given: Vec<Event> = Vec::new();
        for index in 0..5_000 {
            let distance = load.repeat_distance(index);
            let event = load.next_at(1_000_000 + i64::try_from(index).unwrap()).unwrap();
            if let Some(distance) = distance {
                assert_eq!(event, given[usize::try_from(index - distance).unwrap()]);
            }
            given.push(event);
        }
    }

    proptest! {
        #[test]
        fn events_match_the_plan(
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
