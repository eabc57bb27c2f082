//! [`Coverage`]: how many events of each minute this process has seen, of one partition.
//!
//! It counts what the store has confirmed, and tells it the total with each transaction, never a difference. So an attempt that
//! is made again changes nothing, and a batch that is recorded again brings back what a store forgot. (A transaction that a
//! lost connection carries out late may leave an older total, until the next batch of the minute.)
//!
//! An event that comes twice in one transaction counts once. One that comes again later counts again: to tell it from an event
//! that another node brought first, every event would have to be kept here.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Minute, Occurrence};
use crate::store::{RecordRequest, Seen};

/// The minutes that are counted at a time: a day.
const MINUTES_MAX: usize = 1440;
/// For how long the store need not be told again that it is to keep what it was told: less than half of the shortest time for
/// which it does.
const RENEWED_FOR: Duration = Duration::from_secs(30);

/// See the module. One per recorder.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    minutes: BTreeMap<Minute, Total>,
    /// This minute and those before it are counted no more: they have made room, and what was told of them stays.
    given_up: Option<Minute>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Total {
    events: u64,
    renewed: Option<Instant>,
}

impl Coverage {
    /// A store of another generation may keep nothing of what it was told.
    pub(super) fn follow(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            for total in self.minutes.values_mut() {
                total.renewed = None;
            }
        }
    }

    /// What the store is to be told with these recordings, and how many different events they bring; none where they were
    /// recorded before.
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

    /// The store has confirmed what it was told.
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

/// How many different events these are.
fn different(recording: &RecordRequest<'_>) -> u64 {
    let RecordRequest { occurrences, batch, .. } = recording;
    // As one sender stamps them.
    if occurrences.is_sorted_by(|a, b| a.timestamp < b.timestamp) {
        return occurrences.len() as u64;
    }
    // Most are later than all before them, and so none of those.
    let mut latest = i64::MIN;
    let (in_order, others): (Vec<&Occurrence>, Vec<&Occurrence>) =
        occurrences.iter().partition(|it| {
            let is_later = it.timestamp > latest;
            latest = latest.max(it.timestamp);
            is_later
        });
    let event = |it: &Occurrence| (it.timestamp, batch.user(it));
    let mut others: Vec<_> = others.into_iter().map(event).collect();
    others.sort_unstable();
    others.dedup();
    others.retain(|other| {
        let there = in_order.binary_search_by_key(&other.0, |it| it.timestamp);
        there.is_err() || there.is_ok_and(|at| event(in_order[at]) != *other)
    });
    (in_order.len() + others.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Batch;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    /// What is told with events of one series, by user and timestamp, in this minute.
    fn told(
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
        let requests = batch.groups().iter().map(|group| RecordRequest {
            minute: group.minute,
            series: &group.series,
            overflowed_from: None,
            new_users: None,
            occurrences: &group.occurrences,
            batch: &batch,
        });
        coverage.with(&requests.collect::<Vec<_>>(), before, now)
    }

    fn seen(number: i64, events: u64, renew: bool) -> Seen {
        Seen { minute: minute(number), events, renew }
    }

    #[test]
    fn the_store_is_told_the_total_of_what_it_has_confirmed() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        let first = [("x", 2), ("y", 1), ("x", 1), ("y", 1), ("x", 2)];
        let expected = (vec![seen(5, 3, true)], 3);
        assert_eq!(told(&coverage, 5, &first, false, now), expected);
        // Nobody confirmed it: it is the same again.
        assert_eq!(told(&coverage, 5, &first, false, now), expected);
        coverage.confirmed(&expected.0, now);
        let more = told(&coverage, 5, &[("x", 7), ("y", 8)], false, now);
        assert_eq!(more, (vec![seen(5, 5, false)], 2));
        coverage.confirmed(&more.0, now);
        // What is recorded once more brings nothing.
        assert_eq!(told(&coverage, 5, &first, true, now), (vec![seen(5, 5, false)], 0));
        assert_eq!(told(&coverage, 6, &first, true, now), (Vec::new(), 0));
    }

    #[test]
    fn a_store_is_told_to_keep_it_now_and_then_and_whenever_it_may_have_forgotten() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        coverage.follow(1);
        coverage.confirmed(&[seen(5, 1, true)], now);
        let renews =
            |coverage: &Coverage, now| told(coverage, 5, &[("x", 1)], true, now).0[0].renew;
        assert!(!renews(&coverage, now + Duration::from_secs(29)));
        assert!(renews(&coverage, now + Duration::from_secs(30)));
        coverage.follow(1);
        assert!(!renews(&coverage, now));
        coverage.follow(2);
        assert!(renews(&coverage, now));
    }

    #[test]
    fn the_oldest_minutes_make_room_and_are_counted_no_more() {
        let (mut coverage, now) = (Coverage::default(), Instant::now());
        let most = i64::try_from(MINUTES_MAX).unwrap();
        for number in 0..=most {
            coverage.confirmed(&[seen(number, 9, true)], now);
        }
        let total = |number| {
            let (seen, _) = told(&coverage, number, &[("x", 1)], false, now);
            seen.first().map(|seen| seen.events)
        };
        assert_eq!([0, -1, 1, most].map(total), [None, None, Some(10), Some(10)]);
        assert_eq!(total(most + 1), Some(1));
    }
}
