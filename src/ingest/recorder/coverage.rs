//! [`Coverage`]: how many events per minute this process has seen in one partition.
//!
//! Only acknowledged events are counted. Each transaction sends the new total to the store, never a difference. A repeated
//! attempt therefore changes nothing, and re-recording a batch restores a total that the store has lost. (A transaction that
//! is executed late, after its connection was lost, may leave an older total in place until the next batch for the minute.)
//!
//! A duplicate in the same transaction is not counted, but a duplicate in a later transaction is: distinguishing it from an
//! event that another node had recorded first would require keeping every event in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Minute, Occurrence};
use crate::store::{RecordRequest, Seen};

/// Maximum number of minutes for which totals are kept: one day.
const MINUTES_MAX: usize = 1440;
/// Interval at which a total in the store is renewed: less than half the shortest time for which a store keeps a total.
const RENEWED_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Coverage {
    minutes: BTreeMap<Minute, Total>,
    /// The latest minute whose total was dropped to limit memory. Minutes up to this one are no longer counted.
    given_up: Option<Minute>,
}

#[derive(Debug, Default)]
struct Total {
    events: u64,
    renewed: Option<Instant>,
}

impl Coverage {
    /// Marks all totals for renewal, because a replaced store may have none of them.
    pub(super) fn renew_all(&mut self) {
        for total in self.minutes.values_mut() {
            total.renewed = None;
        }
    }

    /// Returns the totals to send with these requests, and how many distinct events they contain (0 if recorded `before`).
    pub(super) fn with(
        &self,
        recordings: &[RecordRequest<'_>],
        before: bool,
        now: Instant,
    ) -> (Vec<Seen>, u64) {
        let mut brought: BTreeMap<Minute, u64> = BTreeMap::new();
        for recording in recordings {
            let events = if before { 0 } else { different(recording) };
            *brought.entry(recording.minute).or_default() += events;
        }
        let all = brought.values().sum();
        let seen = brought.into_iter().filter_map(|(minute, events)| {
            let known = self.minutes.get(&minute);
            if known.is_none() && (before || Some(minute) <= self.given_up) {
                return None;
            }
            let renewed = known.and_then(|total| total.renewed);
            Some(Seen {
                minute,
                events: known.map_or(0, |total| total.events) + events,
                renew: renewed.is_none_or(|at| now.duration_since(at) >= RENEWED_FOR),
            })
        });
        (seen.collect(), all)
    }

    pub(super) fn confirmed(&mut self, seen: &[Seen], now: Instant) {
        for seen in seen {
            let total = self.minutes.entry(seen.minute).or_default();
            total.events = seen.events;
            if seen.renew {
                total.renewed = Some(now);
            }
        }
        while self.minutes.len() > MINUTES_MAX
            && let Some((minute, _)) = self.minutes.pop_first()
        {
            self.given_up = self.given_up.max(Some(minute));
        }
    }
}

/// Returns the number of distinct events in a request.
fn different(recording: &RecordRequest<'_>) -> u64 {
    let RecordRequest { occurrences, batch, .. } = recording;
    let event = |event: &Occurrence| (event.timestamp, batch.user(event));
    // Most events are later than all events before them, so they are distinct, and only the others need to be compared.
    let select = |in_order: bool| {
        let mut latest = i64::MIN;
        occurrences.iter().filter(move |event| {
            let is_later = event.timestamp > latest;
            latest = latest.max(event.timestamp);
            is_later == in_order
        })
    };
    let mut others: Vec<_> = select(false).map(event).collect();
    let ordered = occurrences.len() - others.len();
    others.sort_unstable();
    others.dedup();
    let mut in_order = select(true).peekable();
    others.retain(|other| {
        while in_order.next_if(|event| event.timestamp < other.0).is_some() {}
        in_order.peek().is_none_or(|found| event(found) != *other)
    });
    (ordered + others.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::event::Batch;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    /// Returns the totals with these events for one series, given by user and timestamp.
    fn totals(
        coverage: &Coverage,
        number: i64,
        events: &[(&str, i64)],
        before: bool,
        now: Instant,
    ) -> (Vec<Seen>, u64) {
        let mut batch = Batch::default();
        for &(user, timestamp) in events {
            assert!(batch.push(minute(number), "a=1", user, timestamp));
        }
        let requests = batch.groups().iter().map(|group| RecordRequest::new(&batch, group));
        coverage.with(&requests.collect::<Vec<_>>(), before, now)
    }

    fn seen(number: i64, events: u64, renew: bool) -> Seen {
        Seen { minute: minute(number), events, renew }
    }

    #[test]
    fn the_store_gets_the_total_of_confirmed_events() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        let first = [("x", 2), ("y", 1), ("x", 1), ("y", 1), ("x", 2)];
        let expected = (vec![seen(5, 3, true)], 3);
        assert_eq!(totals(&coverage, 5, &first, false, now), expected);
        // The previous total has not been acknowledged.
        assert_eq!(totals(&coverage, 5, &first, false, now), expected);
        coverage.confirmed(&expected.0, now);
        let more = totals(&coverage, 5, &[("x", 7), ("y", 8)], false, now);
        assert_eq!(more, (vec![seen(5, 5, false)], 2));
        coverage.confirmed(&more.0, now);
        // A batch that is re-recorded has no new events.
        assert_eq!(totals(&coverage, 5, &first, true, now), (vec![seen(5, 5, false)], 0));
        assert_eq!(totals(&coverage, 6, &first, true, now), (Vec::new(), 0));
    }

    proptest! {
        #[test]
        fn distinct_events_are_counted_in_any_order(
            events in prop::collection::vec(("[x-z]", 0_i64..8), 1..20),
        ) {
            let events: Vec<_> = events.iter().map(|(user, at)| (user.as_str(), *at)).collect();
            let distinct = events.iter().collect::<HashSet<_>>().len() as u64;
            let now = Instant::now();
            prop_assert_eq!(totals(&Coverage::default(), 5, &events, false, now).1, distinct);
        }
    }

    #[test]
    fn a_total_is_renewed_periodically_and_after_a_change_of_generation() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        coverage.confirmed(&[seen(5, 1, true)], now);
        let renews =
            |coverage: &Coverage, now| totals(coverage, 5, &[("x", 1)], true, now).0[0].renew;
        assert!(!renews(&coverage, now + Duration::from_secs(29)));
        assert!(renews(&coverage, now + Duration::from_secs(30)));
        assert!(!renews(&coverage, now));
        coverage.renew_all();
        assert!(renews(&coverage, now));
    }

    #[test]
    fn the_oldest_minutes_make_room_and_are_not_counted() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        let most = i64::try_from(MINUTES_MAX).unwrap();
        for number in 0..=most {
            coverage.confirmed(&[seen(number, 9, true)], now);
        }
        let total = |number| {
            let (seen, _) = totals(&coverage, number, &[("x", 1)], false, now);
            seen.first().map(|seen| seen.events)
        };
        assert_eq!([0, -1, 1, most].map(total), [None, None, Some(10), Some(10)]);
        assert_eq!(total(most + 1), Some(1));
    }
}
