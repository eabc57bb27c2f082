//! The five lines of the seed yield its six counts with any store and output, and Redis holds the members it lists.

use crate::prelude::*;

pub(crate) const LINES: [&str; 5] = [
    "event_type=http-5xx,product=productA value=testusername1 1480876707352348928",
    "event_type=os_error,product=productA value=testusername2 1480876707352348928",
    "event_type=browser_error,product=productB value=testusername3 1480876707352348928",
    "event_type=browser_error,product=productB value=testusername4 1480876707352348928",
    "event_type=http-5xx,product=productA value=testusername1 1480876707352348930",
];

/// 2016-12-04T18:38:00Z.
const MINUTE_NS: i64 = 1_480_876_680_000_000_000;
const EPOCH_MINUTE: u64 = 24_681_278;

pub(crate) const COUNTS: [(&str, u64, u64); 3] = [
    ("event_type=http-5xx,product=productA", 1, 2),
    ("event_type=os_error,product=productA", 1, 1),
    ("event_type=browser_error,product=productB", 2, 2),
];

fn six_points() -> Points {
    let point = |measurement: &str, series: &str| Point {
        minute_start_ns: MINUTE_NS,
        series: series.to_owned(),
        measurement: measurement.to_owned(),
    };
    let both = |&(series, unique, cumulative): &(&str, u64, u64)| {
        [
            (point("unique_user_event", series), unique),
            (point("cumulative_user_event", series), cumulative),
        ]
    };
    COUNTS.iter().flat_map(both).collect()
}

fn send_lines(node: &Node) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for line in LINES {
        socket.send_to(line.as_bytes(), node.udp()).unwrap();
    }
}

#[test]
fn from_memory_to_standard_output() {
    let keys = [("store.url", "memory:"), ("output.url", "stdout:"), ("flush.grace", "1s")];
    let node = Node::start("alone", &keys);
    send_lines(&node);
    eventually("the six counts are on standard output", SOON, || {
        let stdout = node.stdout();
        let whole_lines = &stdout[..stdout.rfind('\n').map_or(0, |end| end + 1)];
        compare(&six_points(), &read_back::written(whole_lines.as_bytes()))
    });
    let line = "unique_user_event,event_type=http-5xx,product=productA value=1 1480876680000000000";
    assert!(node.stdout().lines().any(|printed| printed == line), "{}", node.stdout());
    assert_eq!(node.stdout().lines().count(), 6);
}

#[test]
fn from_redis_to_influxdb_1() {
    let site = Site::start();
    let mut node = site.node("one", &[]);
    through_redis(&site.redis, &mut node);
    site.wait_exact(&six_points(), SOON);
    site.wait_redis_clean();
}

#[test]
fn from_redis_to_victoria_metrics() {
    let redis = RedisServer::start(&[]);
    let database = VictoriaMetrics::start();
    let mut node = Node::new(
        "one",
        &[
            ("store.url", &redis.url()),
            ("output.url", &database.url()),
            ("output.api", "v2"),
            ("output.org", "any"),
            ("output.bucket", DATABASE),
        ],
    );
    node.set_environment("EDS_OUTPUT__TOKEN", "any");
    through_redis(&redis, &mut node);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, database.port()));
    eventually("VictoriaMetrics holds the six counts", SOON, || {
        compare(&six_points(), &read_back::victoria_metrics(address))
    });
}

fn through_redis(redis: &RedisServer, node: &mut Node) {
    node.set("flush.grace", "1h");
    node.set("flush.max_hold", "1h");
    node.run();
    send_lines(node);
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 5);
    assert_redis_holds_what_the_seed_lists(redis);

    assert!(node.terminate().success());
    node.set("flush.grace", "300ms");
    node.apply_settings();
    node.launch();
}

fn assert_redis_holds_what_the_seed_lists(redis: &RedisServer) {
    let mut sets = BTreeMap::new();
    let mut tags = BTreeSet::new();
    let mut counts = BTreeSet::new();
    let mut seen = 0;
    for key in redis.keys() {
        let Some((tag, name)) = key.split_once("}:20161204:1118:") else {
            continue;
        };
        tags.insert(format!("{tag}}}"));
        if name == "counts" {
            // The admitted series, without values because none has been counted yet.
            let admitted: BTreeMap<String, String> = redis.query(&["HGETALL", &key]);
            assert!(admitted.values().all(String::is_empty), "{admitted:?}");
            counts.extend(admitted.into_keys());
            continue;
        }
        if name == "coverage" {
            let of_processes: Vec<u64> = redis.query(&["HVALS", &key]);
            seen += of_processes.iter().sum::<u64>();
            continue;
        }
        let members: BTreeSet<String> = redis.query(&["SMEMBERS", &key]);
        sets.entry(name.to_owned()).or_insert_with(BTreeSet::new).extend(members);
        // A series must be in the same partition as the set that names it, or no node would find it.
        if let Some((_, series)) = name.split_once("_user:") {
            let named: bool =
                redis.query(&["SISMEMBER", &format!("{tag}}}:20161204:1118:event_types"), series]);
            assert!(named, "{key} is not in its partition's event_types");
        }
    }

    let all: BTreeSet<String> = COUNTS.iter().map(|(series, _, _)| (*series).to_owned()).collect();
    assert_eq!(counts, all);
    assert_eq!(seen, 5, "the events that the only node has seen");
    let expected: [(&str, &[&str]); 7] = [
        ("event_types", &COUNTS.map(|(series, _, _)| series)),
        ("unique_user:event_type=http-5xx,product=productA", &["testusername1"]),
        ("unique_user:event_type=os_error,product=productA", &["testusername2"]),
        (
            "unique_user:event_type=browser_error,product=productB",
            &["testusername3", "testusername4"],
        ),
        (
            "cumulative_user:event_type=http-5xx,product=productA",
            &["testusername1_1480876707352348928", "testusername1_1480876707352348930"],
        ),
        (
            "cumulative_user:event_type=os_error,product=productA",
            &["testusername2_1480876707352348928"],
        ),
        (
            "cumulative_user:event_type=browser_error,product=productB",
            &["testusername3_1480876707352348928", "testusername4_1480876707352348928"],
        ),
    ];
    let owned = |members: &[&str]| members.iter().map(ToString::to_string).collect();
    let expected: BTreeMap<String, BTreeSet<String>> =
        expected.iter().map(|(name, members)| ((*name).to_owned(), owned(members))).collect();
    assert_eq!(sets, expected);

    for tag in tags {
        let minutes: Vec<(String, u64)> =
            redis.query(&["ZRANGE", &format!("{tag}:minutes"), "0", "-1", "WITHSCORES"]);
        assert_eq!(minutes, [("20161204:1118".to_owned(), EPOCH_MINUTE)], "{tag}");
    }
}
