//! Tests that the size of requests is bounded, and that long names are sent as rarely as the layout allows.

use event_data_service::event::{Every, Partitions, Rollup, RollupLimits, Tags};
use event_data_service::store::REQUEST_BYTES_MAX;
use memchr::memmem;
use testing::redis_proxy::Watcher;

use crate::store_redis::prelude::*;

#[derive(Default)]
struct Sent(Mutex<Vec<Vec<u8>>>);

impl Watcher for Sent {
    fn command(&self, _: u64, command: &[u8]) -> Then {
        self.0.lock().unwrap().push(command.to_vec());
        Then::Pass
    }

    fn answer(&self, _: u64, _: &[u8]) -> Then {
        Then::Pass
    }
}

impl Sent {
    fn times(&self, text: &str) -> usize {
        let sent = self.0.lock().unwrap();
        let times = |command: &Vec<u8>| memmem::find_iter(command, text).count();
        sent.iter().map(times).sum()
    }

    fn largest(&self) -> usize {
        self.0.lock().unwrap().iter().map(Vec::len).max().unwrap()
    }
}

fn watched(server: &RedisServer, layout: Layout) -> (RedisStore, Arc<Sent>) {
    watched_as(server, layout, partitions())
}

fn watched_as(
    server: &RedisServer,
    layout: Layout,
    partitions: Partitions,
) -> (RedisStore, Arc<Sent>) {
    let sent = Arc::new(Sent::default());
    let proxy = RedisProxy::watched(server.address(), Arc::clone(&sent) as Arc<dyn Watcher>);
    let mut redis = server.settings();
    redis.address = Address::Server(proxy.address().into());
    let settings = Settings { redis, layout, partitions, ..tcp(server) };
    (store(&settings), sent)
}

fn with_hours(partitions: Partitions) -> Partitions {
    partitions.with_rollups(vec![Rollup {
        name: "hours".to_owned(),
        every: Every::Minutes(60),
        tags: Tags::All,
        keep: Vec::new(),
        drop: Vec::new(),
        limits: RollupLimits { users_max: 1000, groups_max: 1000, bytes_max: 1 << 20 },
        suffix: "_1h".into(),
    }])
}

async fn admit(store: &RedisStore, minute: Minute, series: &[&str]) {
    let request = AdmitRequest { minute, series, series_max: 100_000, overflow: "o=1" };
    store.admit(partition(), &request).await.unwrap();
}

fn name(number: usize) -> String {
    format!("s={number:01000}")
}

/// A recording sends the name once for all sets of the series and its entry in `event_types`.
#[tokio::test]
async fn long_name_is_sent_once_per_step() {
    for (layout, most) in [(Layout::Sets, 3), (Layout::Log, 4)] {
        let server = RedisServer::start(&[]);
        let (store, sent) = watched(&server, layout);
        let (long, other) = (name(1), name(2));
        // The first round makes the server load the scripts, so that no request of the second round is repeated.
        for (minute, series) in [(minute(), &other), (next_minute(), &long)] {
            admit(&store, minute, &[series, "s=3"]).await;
            record(&store, minute, &[series, "s=3"], 1).await.unwrap();
            let claims = claim(&store).await.unwrap();
            assert_eq!(finish(&store, &claims[0]).await.unwrap(), 2);
        }
        let times = sent.times(&long);
        assert!(times <= most, "{layout:?}: {times} times");
    }
}

/// A node that has recorded all users of a series need not read them to add them to windows.
#[tokio::test]
async fn users_of_the_node_are_not_read() {
    let server = RedisServer::start(&[]);
    let (store, sent) = watched_as(&server, Layout::Sets, with_hours(partitions()));
    let partition = partition();
    let outputs = [OutputName::rollup()];
    let request =
        SealRequest { series_max: 9, lease: LEASE, outputs: &outputs, ..SealRequest::default() };
    let generation = store.generation(partition);
    // Users that may have been recorded in any generation are read.
    for (minute, generation) in [(minute(), 0), (next_minute(), generation)] {
        record_as_of(&store, generation, minute, &["s=1", "s=2"], 1).await.unwrap();
        let claims = claim(&store).await.unwrap();
        let done = store.compact(&claims[0], &request).await.unwrap();
        let counts = store.unsent(&done.sending[0], 0).await.unwrap().items;
        let mut users = 0;
        let mut take = |_, found: Vec<u64>| users += found.len();
        store.sealed_users(&done.sending[0], &counts, &mut take).await.unwrap();
        assert_eq!((users, sent.times("SMEMBERS\r\n")), (2, 2));
    }
}

/// A script is sent again to a server that does not know it.
#[tokio::test]
async fn missing_script_loses_no_event_with_a_long_name() {
    let server = RedisServer::start(&[]);
    let (store, _) = watched(&server, Layout::Sets);
    let (long, short) = (name(1), "s=2");
    for nanos in [1, 2] {
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        record(&store, minute(), &[&long, short], nanos).await.unwrap();
    }
    for series in [&long, short] {
        let base = "{eds:0}:20161204:1118";
        let size =
            |set: &str| -> u64 { server.query(&["SCARD", &format!("{base}:{set}:{series}")]) };
        assert_eq!([size("unique_user"), size("cumulative_user")], [1, 2]);
    }
}

/// A recording may fail after the scripts have been flushed, but a retry completes the counts.
#[tokio::test]
async fn flushed_scripts_lose_no_event_of_logs() {
    let server = RedisServer::start(&[]);
    let (store, _) = watched(&server, Layout::Log);
    for (nanos, minute) in [(1, minute()), (2, minute()), (3, next_minute())] {
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        let recorded = record(&store, minute, &["s=1"], nanos).await;
        assert_eq!(recorded.is_ok(), nanos == 1, "{recorded:?}");
        if recorded.is_err() {
            record(&store, minute, &["s=1"], nanos).await.unwrap();
        }
    }
    let mut counts = Vec::new();
    for claim in claim(&store).await.unwrap() {
        let claim = seal(&store, &claim, 10).await.unwrap();
        let page = store.unsent(&claim, 0).await.unwrap();
        counts.extend(page.items.iter().map(|item| (item.unique, item.cumulative)));
    }
    assert_eq!(counts, [(1, 2), (1, 1)]);
}

#[tokio::test]
async fn sealed_counts_are_read_and_acknowledged_in_bounded_pages() {
    const SERIES: usize = 3000;
    for layout in [Layout::Sets, Layout::Log] {
        let server = RedisServer::start(&[]);
        let (store, sent) = watched(&server, layout);
        let names: Vec<_> = (0..SERIES).map(name).collect();
        for names in names.chunks(100) {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            admit(&store, minute(), &names).await;
            record(&store, minute(), &names, 1).await.unwrap();
        }
        let claims = claim(&store).await.unwrap();
        let to_send = seal(&store, &claims[0], 200).await.unwrap();
        assert_eq!(finish(&store, &to_send).await.unwrap(), SERIES);
        let largest = sent.largest();
        assert!(largest < REQUEST_BYTES_MAX + (64 << 10), "{layout:?}: {largest}");
    }
}
