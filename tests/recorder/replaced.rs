//! Tests that a replaced store gets recent data again, and that users are queried together.

use event_data_service::event::{Batch, Minute, Rejection};
use event_data_service::ingest::CapSettings;
use event_data_service::node::{Clock, LedgerTotals};
use event_data_service::store::{CountReader, Coverage};
use testing::log::Log;
use testing::prelude::*;

use crate::setup::{self, HOUR, OpenSets, Setup, caps, this_minute};
use crate::store::CountingStore;

const SERIES: &str = "s=1";

async fn record(
    store: &Arc<CountingStore>,
    caps: CapSettings,
    replay_window: Duration,
    all: Vec<Batch>,
) -> LedgerTotals {
    record_by(Clock::default(), store, caps, replay_window, all).await
}

async fn record_by(
    clock: Clock,
    store: &Arc<CountingStore>,
    caps: CapSettings,
    replay_window: Duration,
    all: Vec<Batch>,
) -> LedgerTotals {
    let setup = Setup {
        clock,
        max_age: HOUR,
        store: store.clone(),
        caps,
        replay_window,
        dedup_users: 1000,
    };
    setup::record(setup, all).await
}

/// Records events of one user at these offsets in nanoseconds. Returns the offsets of the events in the last store.
async fn events_in_the_new_store(
    offsets: &[i64],
    at: &'static [u64],
    outage: Duration,
    replay_window: Duration,
) -> Vec<i64> {
    let store = CountingStore::replaced(at, outage);
    let minute = this_minute();
    let batch = |nanos: &i64| {
        let mut batch = Batch::default();
        assert!(batch.push(minute, SERIES, "user", minute.start_nanos() + nanos));
        batch
    };
    let batches = offsets.iter().map(batch).collect();
    let totals = record(&store, caps(10, 0), replay_window, batches).await;
    assert_eq!(totals.recorded, offsets.len() as u64, "each event is recorded once");
    let server = store.server().unwrap();
    // The coverage includes all events that this node has seen, even if they are not in the last store.
    let seen = server.store.coverage(setup::partition(), &[minute]).await;
    let all = Coverage::from([("a".to_owned(), offsets.len() as u64)]);
    assert_eq!(seen.unwrap(), [all]);
    let [OpenSets { series, users, events }] = &server.open_sets(minute)[..] else {
        panic!("expected a single series");
    };
    assert_eq!((series.as_str(), users), (SERIES, &vec!["user".to_owned()]));
    let offset = |event: &String| {
        let (_, timestamp) = event.split_once('_').unwrap();
        timestamp.parse::<i64>().unwrap() - minute.start_nanos()
    };
    events.iter().map(offset).collect()
}

const WINDOW: Duration = Duration::from_secs(10);

/// The store that confirms a batch must have all users of the batch, even if they were known to a previous store.
#[tokio::test]
async fn replaced_store_gets_known_users_again() {
    let events = events_in_the_new_store(&[1, 2], &[1], Duration::ZERO, Duration::ZERO).await;
    assert_eq!(events, [2]);
}

#[tokio::test]
async fn replaced_store_gets_recent_events_again() {
    let events = events_in_the_new_store(&[1, 2], &[1], Duration::ZERO, WINDOW).await;
    assert_eq!(events, [1, 2]);
}

/// The replay window does not include the outage itself, so an outage may be longer than the window.
#[tokio::test]
async fn outage_longer_than_the_window_loses_no_event() {
    let window = Duration::from_millis(100);
    let events = events_in_the_new_store(&[1, 2], &[1], 3 * window, window).await;
    assert_eq!(events, [1, 2]);
}

/// The store is replaced again right after the replay, which ends with the fifth recording.
#[tokio::test]
async fn twice_replaced_store_gets_recent_events_again() {
    let outage = Duration::from_millis(2100);
    let window = Duration::from_secs(2);
    let events = events_in_the_new_store(&[1, 2, 3], &[1, 5], outage, window).await;
    assert_eq!(events, [1, 2, 3]);
}

/// The users of many new series are queried with one request, not with one request per series.
#[tokio::test]
async fn users_of_the_overflow_series_are_queried_together() {
    let store = CountingStore::replaced(&[], Duration::ZERO);
    let minute = this_minute();
    let mut batch = Batch::default();
    for number in 0..40 {
        let (series, user) = (format!("s={number}"), format!("user{number}"));
        assert!(batch.push(minute, &series, &user, minute.start_nanos()));
    }
    let totals = record(&store, caps(1, 2), Duration::ZERO, vec![batch]).await;
    assert_eq!((totals.recorded, totals.overflowed), (3, 2));
    assert_eq!(totals.rejected[Rejection::TooManyUsers.index()], 37);
    let asked = store.asked.load(Ordering::SeqCst);
    assert_eq!(asked, 2, "one query for the series and one for the overflow series");
}

#[tokio::test]
async fn replay_is_logged_once() {
    let log = Log::default();
    let logging = log.start();
    let events = events_in_the_new_store(&[1, 2, 3], &[2], Duration::ZERO, WINDOW).await;
    drop(logging);
    assert_eq!(events, [1, 2, 3]);
    assert_eq!(log.count("re-recording the most recent batches"), 1);
}

/// During an outage, the first batch becomes too old to be recorded, but the second batch does not.
#[tokio::test]
async fn recovery_is_logged_after_a_successful_recording() {
    let minute = this_minute();
    let later = Minute::from_epoch_minutes(minute.epoch_minutes() + 120).unwrap();
    let batch = |minute: Minute| {
        let mut batch = Batch::default();
        assert!(batch.push(minute, SERIES, "user", minute.start_nanos()));
        batch
    };
    for (batches, recorded) in [(vec![minute], 0), (vec![minute, later], 1)] {
        let (log, store) = (Log::default(), CountingStore::failing(&[0]));
        let asked = Arc::clone(&store);
        let clock = Clock::new(move || match asked.recordings.load(Ordering::SeqCst) {
            0 => minute.start_nanos(),
            _ => later.start_nanos(),
        });
        let logging = log.start();
        let batches = batches.into_iter().map(batch).collect();
        let totals = record_by(clock, &store, caps(10, 0), Duration::ZERO, batches).await;
        drop(logging);
        assert_eq!(totals.rejected[Rejection::TooOld.index()], 1);
        assert_eq!(totals.recorded, recorded);
        assert_eq!(log.count("cannot record"), 1);
        let again = log.count("the store is accepting events again");
        assert_eq!(again as u64, recorded);
    }
}
