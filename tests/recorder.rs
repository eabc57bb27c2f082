//! The recorder, with a store that is replaced under it, and that counts its questions.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

use std::io;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use event_data_service::event::{
    Batch, Minute, OverflowSeries, Partition, Partitions, Rejection, Window,
};
use event_data_service::ingest::{
    CapSettings, DedupBudget, Recorder, RecorderSettings, ReplayWindow,
};
use event_data_service::node::{Clock, Intake, LedgerTotals, Node};
use event_data_service::store::memory::{MemoryStore, OpenSets, system_clock};
use event_data_service::store::{
    AdmitRequest, Admitted, RecordRequest, Recording, SeriesUsers, Store, StoreError,
};
use event_data_service::telemetry::Metrics;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const SERIES: &str = "s=1";

/// A store some of whose recordings find an empty server in the place of the last: as when another task's call
/// has found the old one gone, and has connected again, after this one's recording was put together.
#[derive(Debug)]
struct Replaced {
    /// The recordings that find an empty server, counted from 0.
    at: &'static [u64],
    /// How long these take.
    outage: Duration,
    /// The recordings that fail, the first of all.
    failing: u64,
    store: Mutex<Arc<MemoryStore>>,
    generation: AtomicU64,
    recordings: AtomicU64,
    /// How often it was asked for users.
    asked: AtomicU64,
}

fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::MIN)
}

fn empty() -> Arc<MemoryStore> {
    let hour = Duration::from_secs(3600);
    let store = MemoryStore::new("node", &partitions(), hour, u64::MAX, system_clock());
    Arc::new(store)
}

impl Replaced {
    fn new(at: &'static [u64], outage: Duration) -> Arc<Self> {
        Self::failing(0, at, outage)
    }

    fn failing(failing: u64, at: &'static [u64], outage: Duration) -> Arc<Self> {
        Arc::new(Self {
            at,
            outage,
            failing,
            store: Mutex::new(empty()),
            generation: AtomicU64::new(0),
            recordings: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        })
    }

    fn current(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store.lock().unwrap())
    }
}

#[async_trait]
impl Store for Replaced {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, _: Partition) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn describe(&self) -> String {
        "a store that is replaced".to_owned()
    }
}

#[async_trait]
impl Recording for Replaced {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        self.current().admit(partition, request).await
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.current().users(partition, minute, series, users).await
    }

    async fn record(
        &self,
        partition: Partition,
        _: u64,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError> {
        let number = self.recordings.fetch_add(1, Ordering::SeqCst);
        if number < self.failing {
            return Err(StoreError::Unavailable("away".to_owned()));
        }
        if self.at.contains(&number) {
            tokio::time::sleep(self.outage).await;
            self.generation.fetch_add(1, Ordering::SeqCst);
            *self.store.lock().unwrap() = empty();
        }
        self.current().record(partition, 0, recordings).await
    }
}

fn this_minute() -> Minute {
    Minute::of_nanos(chrono::Utc::now().timestamp_nanos_opt().unwrap())
}

/// A recorder from its start to its end.
async fn record(
    store: &Arc<Replaced>,
    caps: CapSettings,
    replay_window: Duration,
    all: Vec<Batch>,
) -> LedgerTotals {
    record_by(Clock::default(), store, caps, replay_window, all).await
}

async fn record_by(
    clock: Clock,
    store: &Arc<Replaced>,
    caps: CapSettings,
    replay_window: Duration,
    all: Vec<Batch>,
) -> LedgerTotals {
    let node = Arc::new(Node {
        clock,
        ..Node::default()
    });
    let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
    let hour = Duration::from_secs(3600);
    let settings = RecorderSettings {
        window: Window::new(hour, hour),
        caps,
        lagging_after: hour,
    };
    let (batches, queue) = mpsc::channel(all.len());
    for batch in all {
        node.ledger.take_in(&Intake {
            queued: batch.events() as u64,
            queued_bytes: batch.bytes() as u64,
            ..Intake::default()
        });
        batches.send(batch.into()).await.unwrap();
    }
    drop(batches);
    let partition = partitions().of(SERIES, Minute::MIN);
    let recorder = Recorder {
        partition,
        settings,
        batches: queue,
        store: Arc::clone(store) as Arc<dyn Recording>,
        overflow: OverflowSeries::always(partition),
        spool: None,
        dedup: Arc::new(DedupBudget::new(1000)),
        replay: Arc::new(ReplayWindow::new(replay_window, 1 << 20)),
        node: Arc::clone(&node),
        metrics,
        heartbeat: node.progress.watch("recorder"),
        abort: CancellationToken::new(),
    };
    recorder.run().await;
    node.ledger.totals()
}

/// Records events of the same user at these offsets in nanoseconds, one after the other, and looks at what is in
/// the last store. Answers the offsets of the events that are.
async fn events_in_the_new_store(
    offsets: &[i64],
    at: &'static [u64],
    outage: Duration,
    replay_window: Duration,
) -> Vec<i64> {
    let store = Replaced::new(at, outage);
    let caps = CapSettings {
        series_max: 10,
        users_max: 0,
    };
    let minute = this_minute();
    let batch = |nanos: &i64| {
        let mut batch = Batch::default();
        assert!(batch.push(minute, SERIES, "user", minute.start_nanos() + nanos));
        batch
    };
    let batches = offsets.iter().map(batch).collect();
    let totals = record(&store, caps, replay_window, batches).await;
    assert_eq!(totals.recorded, offsets.len() as u64, "each once");
    let [
        OpenSets {
            series,
            users,
            events,
        },
    ] = &store.current().open_sets(minute)[..]
    else {
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

/// The users of a batch are complete in the store that took the batch, whatever an earlier store had.
#[tokio::test]
async fn a_store_that_is_replaced_gets_the_users_that_the_last_one_had() {
    let events = events_in_the_new_store(&[1, 2], &[1], Duration::ZERO, Duration::ZERO).await;
    assert_eq!(events, [2]);
}

#[tokio::test]
async fn a_store_that_is_replaced_gets_what_was_recorded_lately_again() {
    let events = events_in_the_new_store(&[1, 2], &[1], Duration::ZERO, WINDOW).await;
    assert_eq!(events, [1, 2]);
}

/// The time of an outage is no part of the window, although a promotion takes longer than what is kept.
#[tokio::test]
async fn an_outage_longer_than_the_window_costs_nothing() {
    let window = Duration::from_millis(100);
    let events = events_in_the_new_store(&[1, 2], &[1], 3 * window, window).await;
    assert_eq!(events, [1, 2]);
}

/// The fifth recording is the last of the replay; the sixth one finds that the store is replaced again.
#[tokio::test]
async fn a_store_that_is_replaced_again_gets_what_the_last_one_got_again() {
    let outage = Duration::from_millis(2100);
    let window = Duration::from_secs(2);
    let events = events_in_the_new_store(&[1, 2, 3], &[1, 5], outage, window).await;
    assert_eq!(events, [1, 2, 3]);
}

/// Whoever makes up series makes up users, too. The store is asked for all of them at once, not once a series.
#[tokio::test]
async fn the_users_of_the_overflow_series_are_asked_for_together() {
    let store = Replaced::new(&[], Duration::ZERO);
    let caps = CapSettings {
        series_max: 1,
        users_max: 2,
    };
    let minute = this_minute();
    let mut batch = Batch::default();
    for number in 0..40 {
        let (series, user) = (format!("s={number}"), format!("user{number}"));
        assert!(batch.push(minute, &series, &user, minute.start_nanos()));
    }
    let totals = record(&store, caps, Duration::ZERO, vec![batch]).await;
    assert_eq!((totals.recorded, totals.overflowed), (3, 2));
    assert_eq!(totals.rejected[Rejection::TooManyUsers.index()], 37);
    let asked = store.asked.load(Ordering::SeqCst);
    assert_eq!(asked, 2, "for the series and for the overflow series");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// While the store is away a batch becomes too old to be recorded; the next is not.
#[tokio::test]
async fn that_the_store_records_again_is_logged_when_it_has_recorded_something() {
    let minute = this_minute();
    let later = Minute::from_epoch_minutes(minute.epoch_minutes() + 120).unwrap();
    let batch = |minute: Minute| {
        let mut batch = Batch::default();
        assert!(batch.push(minute, SERIES, "user", minute.start_nanos()));
        batch
    };
    let caps = CapSettings {
        series_max: 10,
        users_max: 0,
    };
    for (batches, recorded) in [(vec![minute], 0), (vec![minute, later], 1)] {
        let (log, store) = (Log::default(), Replaced::failing(1, &[], Duration::ZERO));
        let asked = Arc::clone(&store);
        let clock = Clock::new(move || match asked.recordings.load(Ordering::SeqCst) {
            0 => minute.start_nanos(),
            _ => later.start_nanos(),
        });
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let logging = tracing::subscriber::set_default(subscriber.finish());
        let batches = batches.into_iter().map(batch).collect();
        let totals = record_by(clock, &store, caps, Duration::ZERO, batches).await;
        drop(logging);
        assert_eq!(totals.rejected[Rejection::TooOld.index()], 1);
        assert_eq!(totals.recorded, recorded);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("cannot record").count(), 1, "{log}");
        let again = log.matches("the store records again").count();
        assert_eq!(again as u64, recorded, "{log}");
    }
}
