//! An unreachable or replaced store gets the data of the previous one again, and users are queried together.

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

/// Records events of one user at these offsets in nanoseconds; returns the offsets of those in the last store.
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
    assert_eq!(totals.recorded, offsets.len() as u64, "each once");
    let server = store.server().unwrap();
    // All events that this node saw, whether or not the store got them.
    let seen = server.store.coverage(setup::partition(), &[minute]).await;
    let all = Coverage::from([("a".to_owned(), offsets.len() as u64)]);
    assert_eq!(seen.unwrap(), [all]);
    let [OpenSets { series, users, events }] = &server.open_sets(minute)[..] else {
        panic!("not one series");
    };
    assert_eq!((series.as_str(), users), (SERIES, &vec!["user".to_owned()]));
    let offset = |event: &String| {
        let (_, timestamp) = event.split_once('_').unwrap();
        timestamp.parse::<i64>().unwrap() - minute.start_nanos()
    };
    events.iter().map(offset).collect()
}

const WINDOW: Duration = Duration::from_secs(10);

/// The users of a batch are complete in the store that confirmed it, whatever an earlier store had.
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

/// An outage does not count into the window, even if a promotion takes longer.
#[tokio::test]
async fn outage_longer_than_the_window_loses_no_event() {
    let window = Duration::from_millis(100);
    let events = events_in_the_new_store(&[1, 2], &[1], 3 * window, window).await;
    assert_eq!(events, [1, 2]);
}

/// The fifth recording is the last of the replay; the sixth finds another new store.
#[tokio::test]
async fn twice_replaced_store_gets_recent_events_again() {
    let outage = Duration::from_millis(2100);
    let window = Duration::from_secs(2);
    let events = events_in_the_new_store(&[1, 2, 3], &[1, 5], outage, window).await;
    assert_eq!(events, [1, 2, 3]);
}

/// Many new series bring many new users: the store is queried once for all, not per series.
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
    assert_eq!(asked, 2, "for the series and for the overflow series");
}

#[tokio::test]
async fn replay_is_logged_once() {
    let log = Log::default();
    let logging = log.start();
    let events = events_in_the_new_store(&[1, 2, 3], &[2], Duration::ZERO, WINDOW).await;
    drop(logging);
    assert_eq!(events, [1, 2, 3]);
    assert_eq!(log.count("recording the last batches again"), 1);
}

/// During an outage one batch becomes too old to be recorded; the next one does not.
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
        let again = log.count("the store records again");
        assert_eq!(again as u64, recorded);
    }
}
