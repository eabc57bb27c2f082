//! Compares a node's memory per user and per event with `config/eds.toml`. Each measurement runs in a separate process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests panic on failure"
)]

#[path = "recorder/setup.rs"]
#[allow(dead_code, reason = "only a part is used here")]
mod setup;
#[path = "store_redis/site.rs"]
#[allow(dead_code, reason = "only a part is used here")]
mod site;
#[path = "recorder/store.rs"]
#[allow(dead_code, reason = "only a part is used here")]
mod store;

use event_data_service::event::{Batch, Hint, Minute, OpenBatch};
use event_data_service::ingest::Delivery;
use event_data_service::node::{Clock, Node};
use event_data_service::store::redis::{Layout, Settings};
use event_data_service::store::{RecordRequest, Recording as _, Records};
use redis_link::{Address, Endpoint};
use setup::{Setup, caps, hand_over, recorder};
use store::CountingStore;
use testing::prelude::*;
use testing::process::{peak_kib, resident_kib};
use tokio::sync::mpsc;

/// The number of users, large enough that they dominate the memory usage of the process.
const USERS: usize = 300_000;
const EVENTS: usize = 1_000_000;
/// The environment variable that passes `dedup_users` to a child process.
const DEDUP_USERS: &str = "MEMORY_TEST_DEDUP_USERS";
const SERIES: &str = "MEMORY_TEST_SERIES";
/// The environment variable that passes the port of a Redis server with a minute to seal.
const REDIS_PORT: &str = "MEMORY_TEST_REDIS_PORT";
const TAKEN: &str = "taken: ";

/// Runs a test of this file in a child process with this environment variable. Returns the two numbers that it prints.
fn taken_by(test: &str, variable: &str, value: usize) -> (usize, usize) {
    let mut process = std::process::Command::new(std::env::current_exe().unwrap());
    process.args([test, "--exact", "--nocapture"]);
    let output = process.env(variable, value.to_string()).output();
    let stdout = String::from_utf8(output.unwrap().stdout).unwrap();
    let figures = stdout.split_once(TAKEN).and_then(|(_, rest)| {
        let (taken, more) = rest.lines().next()?.split_once(' ')?;
        Some((taken.parse().ok()?, more.parse().ok()?))
    });
    figures.unwrap_or_else(|| panic!("{stdout}"))
}

struct Working {
    store: Arc<CountingStore>,
    batches: mpsc::Sender<Delivery>,
    node: Arc<Node>,
}

impl Working {
    fn start(dedup_users: usize) -> Self {
        let store = Arc::<CountingStore>::default();
        let (recorder, batches, node) = recorder(Setup {
            clock: Clock::default(),
            max_age: Duration::from_secs(100 * 365 * 86400),
            store: store.clone(),
            caps: caps(usize::MAX / 4, 0),
            replay_window: Duration::ZERO,
            dedup_users,
        });
        tokio::spawn(recorder.run());
        Self { store, batches, node }
    }

    async fn record(&self, batch: Batch) {
        hand_over(batch, &self.batches, &self.node).await;
        while self.node.ledger.totals().queued_bytes > 0 {
            tokio::task::yield_now().await;
        }
    }

    fn users(&self) -> usize {
        self.store.users.load(Ordering::SeqCst)
    }
}

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(24_681_278 + number).unwrap()
}

fn series(number: usize) -> String {
    format!("s={number:0748}")
}

fn resident_bytes() -> usize {
    usize::try_from(resident_kib(std::process::id())).unwrap() * 1024
}

/// Returns the number that precedes these words in a comment in `config/eds.toml`.
fn documented(words: &str) -> usize {
    let text = include_str!("../config/eds.toml").replace("\n# ", " ");
    let (before, _) =
        text.split_once(words).unwrap_or_else(|| panic!("{words:?} is not in config/eds.toml"));
    let number = before.split_whitespace().next_back();
    number.unwrap().parse().unwrap()
}

#[tokio::test]
async fn record_users_in_a_separate_process() {
    let Ok(users_max) = std::env::var(DEDUP_USERS) else {
        return;
    };
    let recorder = Working::start(users_max.parse().unwrap());
    let before = resident_bytes();
    for first in (0..USERS).step_by(1000) {
        let mut batch = Batch::default();
        for user in first..first + 1000 {
            let name = format!("user{user:08}");
            assert!(batch.push(minute(0), &series(user), &name, minute(0).start_nanos()));
        }
        recorder.record(batch).await;
    }
    let taken = resident_bytes() - before;
    assert_eq!(recorder.users(), USERS);
    let mut last = Batch::default();
    let name = format!("user{:08}", USERS - 1);
    assert!(last.push(minute(0), &series(USERS - 1), &name, 1));
    recorder.record(last).await;
    println!("{TAKEN}{taken} {}", recorder.users() - USERS);
}

/// Regression test: each user took 1 KiB because the name of the series was stored with the user.
#[test]
fn memory_of_a_known_user_is_as_documented() {
    let test = "record_users_in_a_separate_process";
    let (nobody, sent_again) = taken_by(test, DEDUP_USERS, 0);
    assert_eq!(sent_again, 1, "a user is known without dedup");
    let (everybody, sent_again) = taken_by(test, DEDUP_USERS, USERS);
    assert_eq!(sent_again, 0, "the last user is unknown");
    let each = everybody.saturating_sub(nobody) / USERS;
    let most = documented("bytes, regardless of name");
    eprintln!("a known user: {each} bytes measured, at most {most} documented");
    assert!(each <= most, "{everybody} bytes, {nobody} without users");
    assert!(each >= 10, "{everybody} bytes, {nobody} without users: the measurement is wrong");
}

#[tokio::test(start_paused = true)]
async fn busy_recorder_forgets_users_in_time() {
    let recorder = Working::start(100_000);
    let mut so_far = 0;
    let mut record = async |at_minute: i64, user: &str| {
        let mut batch = Batch::default();
        assert!(batch.push(minute(at_minute), "s=1", user, minute(at_minute).start_nanos()));
        recorder.record(batch).await;
        let new = recorder.users() - so_far;
        so_far += new;
        new
    };
    assert_eq!(record(0, "first").await, 1);
    assert_eq!(record(0, "first").await, 0);
    // Record a new user twice per second for four minutes.
    for step in 0..480 {
        record(1 + step / 120, &step.to_string()).await;
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert_eq!(record(0, "first").await, 1, "the first user is still known");
    assert_eq!(record(4, "479").await, 0, "the last user was forgotten too early");
}

/// Collects events in a child process, and prints the memory used and the memory accounted for.
#[test]
fn gather_events_in_a_separate_process() {
    let Ok(series_count) = std::env::var(SERIES) else {
        return;
    };
    let series_count: usize = series_count.parse().unwrap();
    let before = resident_bytes();
    let mut batch = OpenBatch::default();
    for event in 0..EVENTS {
        let (series, user) = (series(event % series_count), format!("user{event:08}"));
        let series = (&*series, &mut Hint::default());
        assert!(batch.push(minute(0), series, user.as_bytes(), minute(0).start_nanos()));
    }
    println!("{TAKEN}{} {}", resident_bytes() - before, batch.bytes());
}

#[test]
fn memory_of_a_queued_event_is_as_documented() {
    let per_event = documented("bytes plus its user's name");
    let per_series = documented("bytes plus its name");
    for series_count in [100, 100_000] {
        let test = "gather_events_in_a_separate_process";
        let (measured, counted) = taken_by(test, SERIES, series_count);
        let stated = EVENTS * (per_event + 12) + series_count * (per_series + 750);
        let [measured_each, stated_each, counted_each] =
            [measured, stated, counted].map(|bytes| bytes / EVENTS);
        eprintln!(
            "an event in one of {series_count} series of 750 bytes: {measured_each} bytes measured, {stated_each} \
             documented, {counted_each} counted"
        );
        assert_eq!(counted, stated);
        // A list doubles its capacity when it grows.
        assert!(measured <= 2 * stated, "{measured} bytes, {stated} documented");
    }
}

fn logs_at(port: u16) -> Settings {
    let mut settings = site::at(Address::Server(Endpoint::Tcp("127.0.0.1".to_owned(), port)));
    settings.layout = Layout::Log;
    settings
}

/// Seals the minute in a child process, and prints the peak memory and the number of series.
#[tokio::test]
async fn seal_in_a_separate_process() {
    let Ok(port) = std::env::var(REDIS_PORT) else {
        return;
    };
    let store = site::store(&logs_at(port.parse().unwrap()));
    let claim = site::claim(&store).await.unwrap().remove(0);
    let before = resident_bytes();
    let sealed = site::compact(&store, &claim, 200).await.unwrap().sealed;
    let peak = usize::try_from(peak_kib(std::process::id())).unwrap() * 1024;
    println!("{TAKEN}{} {sealed}", peak - before);
}

/// The events of each series are recorded many times.
#[tokio::test]
async fn memory_of_sealing_is_bounded_with_repeated_events() {
    const SERIES: usize = 8;
    /// The number of events that fit in one frame of a log.
    const EVENTS: i64 = 300;
    const COPIES: usize = 1750;
    /// Counting uses 16 MiB of fingerprints, twice because a list is copied when it grows.
    const STATED: usize = 32 << 20;
    let server = RedisServer::start(&[]);
    let store = site::store(&logs_at(server.address().port()));
    let minute = site::minute();
    for number in 0..SERIES {
        let mut batch = Batch::default();
        for event in 0..EVENTS {
            let (series, user) = (format!("s={number}"), format!("user{event}"));
            assert!(batch.push(minute, &series, &user, minute.start_nanos() + event));
        }
        let group = &batch.groups()[0];
        let requests = [RecordRequest::new(&batch, group)];
        let records = Records { generation: 0, requests: &requests, seen: &[] };
        store.record(site::partition(), &records).await.unwrap();
    }
    let log = server.keys().into_iter().find(|key| key.contains(":log:"));
    let copy = "local frames = redis.call('LRANGE', KEYS[1], 0, -1) \
        for _, frame in ipairs(frames) do for _ = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], frame) end end \
        return #frames";
    let copies = COPIES.to_string();
    let frames: usize = server.query(&["EVAL", copy, "1", &log.unwrap(), &copies]);
    assert_eq!(frames, SERIES);
    let port = usize::from(server.address().port());
    let (taken, sealed) = taken_by("seal_in_a_separate_process", REDIS_PORT, port);
    eprintln!("sealing took {} KiB", taken / 1024);
    assert_eq!(sealed, SERIES);
    assert!(taken <= STATED, "{taken} bytes");
}
