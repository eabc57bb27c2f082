//! Tests recorders with series and user caps and a shared store.

use event_data_service::event::{Batch, Minute, Rejection, overflow_series, series_fingerprint};
use event_data_service::ingest::CapSettings;
use event_data_service::node::{Clock, LedgerTotals};
use testing::prelude::*;

use crate::setup::{HOUR, Server, Setup, caps, partition, record, this_minute};

type Event = (&'static str, &'static str, i64);

async fn node(
    server: &Server,
    caps: CapSettings,
    minute: Minute,
    all: &[&[Event]],
) -> LedgerTotals {
    let batch = |events: &&[Event]| {
        let mut batch = Batch::default();
        for (series, user, nanos) in *events {
            assert!(batch.push(minute, series, user, minute.start_nanos() + nanos));
        }
        batch
    };
    let setup = Setup {
        clock: Clock::default(),
        max_age: HOUR,
        store: server.store.clone(),
        caps,
        replay_window: Duration::ZERO,
        // Without dedup, the recorder must ask the store for known users.
        dedup_users: 0,
    };
    record(setup, all.iter().map(batch).collect()).await
}

fn sets(store: &Server, minute: Minute) -> BTreeMap<String, (BTreeSet<String>, usize)> {
    let sets = store.open_sets(minute).into_iter();
    sets.map(|open| (open.series, (open.users.into_iter().collect(), open.events.len()))).collect()
}

fn names(users: &[&str]) -> BTreeSet<String> {
    users.iter().map(ToString::to_string).collect()
}

/// Two nodes record an event and its copy under the same series, even if they receive events in a different order.
#[tokio::test]
async fn two_nodes_count_the_same_overflow_events() {
    let (store, minute) = (Server::new(), this_minute());
    let events: [Event; 6] = [
        ("s=1", "x", 1),
        ("s=2", "x", 1),
        ("s=3", "x", 1),
        ("s=4", "x", 1),
        ("s=4", "y", 1),
        ("s=4", "x", 2),
    ];
    let mut reversed = events;
    reversed.reverse();
    let first = node(&store, caps(2, 0), minute, &[&events[..3], &events]).await;
    let second = node(&store, caps(2, 0), minute, &[&reversed[..2], &reversed]).await;
    assert_eq!((first.recorded, first.overflowed), (9, 5));
    assert_eq!((second.recorded, second.overflowed), (8, 6));
    let overflow = overflow_series(partition());
    let expected = BTreeMap::from([
        ("s=1".to_owned(), (names(&["x"]), 1)),
        ("s=2".to_owned(), (names(&["x"]), 1)),
        (overflow.clone(), (names(&["x", "y"]), 4)),
    ]);
    assert_eq!(sets(&store, minute), expected);
    let gathered = store.open_sets(minute).into_iter();
    let gathered = gathered.filter(|open| open.series == overflow);
    let gathered: Vec<String> = gathered.flat_map(|open| open.events).collect();
    let member = |(series, user, nanos): &Event| {
        let (at, series) = (minute.start_nanos() + nanos, series_fingerprint(series));
        format!("{user}_{at}_{series:032x}")
    };
    assert!(events[2..].iter().all(|event| gathered.contains(&member(event))));
}

/// Every node accepts events of known users and rejects events of other users, and no event is counted twice.
#[tokio::test]
async fn users_beyond_the_limit_are_rejected_by_every_recorder() {
    let (store, minute) = (Server::new(), this_minute());
    let batch: [Event; 5] =
        [("s=1", "a", 1), ("s=1", "b", 1), ("s=1", "c", 1), ("s=1", "a", 2), ("s=2", "c", 1)];
    let rejected = |totals: LedgerTotals| totals.rejected[Rejection::TooManyUsers.index()];
    let first = node(&store, caps(9, 2), minute, &[&batch, &batch]).await;
    assert_eq!((first.recorded, rejected(first)), (8, 2));
    let second: [Event; 3] = [("s=1", "d", 1), ("s=1", "c", 3), ("s=1", "b", 3)];
    let second = node(&store, caps(9, 2), minute, &[&second]).await;
    assert_eq!((second.recorded, rejected(second)), (1, 2));
    let expected = BTreeMap::from([
        ("s=1".to_owned(), (names(&["a", "b"]), 4)),
        ("s=2".to_owned(), (names(&["c"]), 1)),
    ]);
    assert_eq!(sets(&store, minute), expected);
}

/// The user cap also applies to the overflow series.
#[tokio::test]
async fn overflow_series_has_the_same_user_limit() {
    let (store, minute) = (Server::new(), this_minute());
    let batch: [Event; 5] =
        [("s=1", "a", 1), ("s=2", "a", 1), ("s=3", "b", 1), ("s=4", "c", 1), ("s=5", "a", 1)];
    let totals = node(&store, caps(1, 2), minute, &[&batch, &batch]).await;
    assert_eq!(totals.rejected[Rejection::TooManyUsers.index()], 2);
    assert_eq!((totals.recorded, totals.overflowed), (8, 6));
    let overflow = overflow_series(partition());
    let expected = BTreeMap::from([
        ("s=1".to_owned(), (names(&["a"]), 1)),
        (overflow, (names(&["a", "b"]), 3)),
    ]);
    assert_eq!(sets(&store, minute), expected);
}

/// While a series has far fewer users than the cap, the recorder does not query the store, but the cap still holds.
#[tokio::test]
async fn large_user_limit_holds() {
    const USERS_MAX: u64 = 100;
    let (store, minute) = (Server::new(), this_minute());
    let users: Vec<String> = (0..150).map(|number| format!("user{number}")).collect();
    let users: Vec<&'static str> = users.into_iter().map(|user| &*user.leak()).collect();
    let batches: Vec<Vec<Event>> = users
        .chunks(10)
        .map(|users| users.iter().map(|&user| ("s=1", user, 1)).collect())
        .collect();
    let batches: Vec<&[Event]> = batches.iter().map(Vec::as_slice).collect();
    let totals = node(&store, caps(9, USERS_MAX), minute, &batches).await;
    assert_eq!(totals.recorded, USERS_MAX);
    assert_eq!(sets(&store, minute)["s=1"].0.len() as u64, USERS_MAX);
}
