//! The contents of the memory store's sets, and the memory they use.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::event::{Batch, Minute, Partitions};
use crate::store::memory::MemoryStore;
use crate::store::{
    ClaimRequest, Draining as _, Known, OutputName, Recording as _, Records, SealRequest,
    Store as _,
};

fn minute() -> Minute {
    Minute::from_epoch_minutes(24_681_278).unwrap()
}

/// Records these events in a series, and returns how many of them were already there.
fn record(sets: &mut Sets, users: &mut Users, from: Option<&str>, events: &[(&str, i64)]) -> u64 {
    let mut batch = Batch::default();
    for (user, nanos) in events {
        assert!(batch.push(minute(), "s=1", user, minute().start_nanos() + nanos));
    }
    assert!(users.has_room(&batch));
    let request =
        RecordRequest { overflowed_from: from, ..RecordRequest::new(&batch, &batch.groups()[0]) };
    sets.record(users, &request)
}

#[test]
fn events_of_one_instant_differ_by_user_and_series() {
    const LAST: i64 = 59_999_999_999;
    let (mut sets, mut users) = (Sets::new("s=1"), Users::default());
    let own = [("a", 0), ("b", 0), ("", LAST), ("a", LAST), ("a", 0)];
    assert_eq!(record(&mut sets, &mut users, None, &own), 1);
    assert_eq!(record(&mut sets, &mut users, Some("s=2"), &own), 1);
    assert_eq!(record(&mut sets, &mut users, Some("s=3"), &own[..1]), 0);
    assert_eq!(record(&mut sets, &mut users, Some("s=3"), &own[..1]), 1);
    assert_eq!(sets.counts(&users), (3, 9));
    assert_eq!(sets.users(&users, &["b", "c"]), (3, vec![true, false]));
}

/// 10,000 users with names of 15 bytes. Each series has as many events as there are users, or six times as many.
#[test]
fn memory_of_users_and_events_is_as_documented() {
    for (series, rounds, most) in [(150, 1, 24), (2, 30, 16)] {
        let mut users = Users::default();
        let names: Vec<String> = (0..10_000).map(|user| format!("testusername{user:03}")).collect();
        let mut all: Vec<Sets> = (0..series).map(|_| Sets::new("s=1")).collect();
        for sets in &mut all {
            for round in 0..rounds {
                let at = |number: usize| i64::try_from(round * 10_000 + number).unwrap();
                let events = names.iter().enumerate();
                let events: Vec<_> = events.map(|(at_, user)| (user.as_str(), at(at_))).collect();
                record(sets, &mut users, None, &events);
            }
        }
        let bytes = users.bytes + all.iter().map(|sets| sets.bytes).sum::<u64>();
        let events: u64 = all.iter().map(|sets| sets.cumulative).sum();
        println!("{series} series, {rounds} rounds: {} bytes an event", bytes / events);
        assert!(bytes <= events * most, "{bytes} bytes for {events} events");
    }
}

#[tokio::test]
async fn memory_of_sets_is_accounted() {
    let (partitions, hour) = (Partitions::new(NonZeroU16::MIN), Duration::from_secs(3600));
    let store = MemoryStore::new("a", &partitions, hour, u64::MAX, u64::MAX);
    for from in 0..100 {
        let mut batch = Batch::default();
        for user in 0..20 {
            let (series, user) = (format!("s={}", user % 3), from * 20 + user);
            assert!(batch.push(minute(), &series, &user.to_string(), user));
        }
        let requests = batch.groups().iter().map(|group| RecordRequest::new(&batch, group));
        let requests: Vec<_> = requests.collect();
        let records = Records { generation: 0, requests: &requests, seen: &[] };
        store.record(partitions.of("", minute()), &records).await.unwrap();
        let state = store.lock();
        let minute = &state.partitions[0].minutes[&minute()];
        let sets: u64 = minute.sets.values().map(|sets| sets.bytes).sum();
        assert_eq!(state.bytes, sets + minute.users.bytes);
    }
}

/// Unsent counts may wait for an output for a long time, and senders determine the number and the names of the series.
#[tokio::test]
async fn unsent_counts_are_accounted_until_sent() {
    let (partitions, hour) = (Partitions::new(NonZeroU16::MIN), Duration::from_secs(3600));
    let partition = partitions.of("", minute());
    let store = MemoryStore::new("a", &partitions, hour, 20_000, u64::MAX);
    let outputs = [OutputName::default()];
    let record = async |name: usize| {
        let mut batch = Batch::default();
        let series = format!("s={name:036}");
        assert!(batch.push(minute(), &series, "user", 0));
        let request = RecordRequest::new(&batch, &batch.groups()[0]);
        store.record(partition, &Records { generation: 0, requests: &[request], seen: &[] }).await
    };
    let request = ClaimRequest {
        generation: 0,
        grace: Duration::ZERO,
        max_hold: Duration::ZERO,
        lease: hour,
        lapsed_max: 0,
        finished_max: 1,
        old_max: 1,
        known: Known::default(),
    };
    let mut sending = Vec::new();
    let mut recorded = 0;
    while record(recorded).await.is_ok() {
        recorded += 1;
        let claims = store.claim(partition, &request, &[]).await.unwrap();
        let request =
            SealRequest { series_max: 1, lease: hour, outputs: &outputs, ..SealRequest::default() };
        let sealed = store.compact(&claims[0], &request).await.unwrap();
        sending.extend(sealed.sending);
    }
    assert!((50..100).contains(&recorded), "{recorded} counts");
    let page = store.unsent(&sending[0], 0).await.unwrap();
    let series: Vec<_> = page.items.iter().map(|counts| counts.series.as_str()).collect();
    assert_eq!(series.len(), recorded);
    let all = store.acknowledge(&sending[0], &series, hour).await.unwrap();
    assert!(all);
    assert_eq!(store.memory().0, 0);
    record(recorded).await.unwrap();
}

proptest! {
    /// Events arrive in any order, or almost in chronological order.
    #[test]
    fn events_equal_a_sorted_set(added in prop::collection::vec(0_u64..6000, 0..6000), late in 1_u64..2000) {
        let (mut events, mut expected) = (Events::default(), BTreeSet::new());
        for (at, event) in (0..).zip(added) {
            let event = if late < 1000 { at + event % late } else { event };
            prop_assert_eq!(events.insert(event), expected.insert(event));
        }
        prop_assert_eq!(events.iter().collect::<BTreeSet<_>>(), expected);
    }
}
