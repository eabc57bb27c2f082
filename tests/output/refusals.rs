//! Publishes counts of which a real InfluxDB 1.x rejects some, for many reasons and in many patterns.

use event_data_service::event::Minute;
use event_data_service::output::{Output, SealedCounts};
use testing::prelude::*;

use super::publishing::{Names, Publisher, names};
use super::{SEED_MINUTE, counts, many_counts, output, v1_settings};

const VALUES_MAX: usize = 16;
const COUNTS: usize = 400;
/// Maximum requests per case beyond those per rejected count: the bodies, probes, and the search for a single count.
const REQUESTS_BESIDE: usize = 40;

/// Rejected tag values that look like parts of a response, because the response quotes them.
const FORGED: [&str; 16] = [
    r"database\ is\ required",
    r"please\ provide\ either\ orgid\ or\ org",
    r"unsupported\ path\ requested",
    r"http\ request\ to\ an\ https\ server",
    r"plain\ http\ request\ was\ sent\ to\ https\ port",
    r"invalid\ precision",
    r"points\ beyond\ retention\ policy",
    r"field\ type\ conflict",
    r"timeout",
    r"authorization\ failed",
    r"database\ not\ found",
    r"status\ 503",
    r"partial\ write:\ dropped\=0",
    r#"{"error":"timeout"}"#,
    r"unable\ to\ parse\ 'x'",
    r"%s\,%d|1:2|3",
];

type Pattern = (&'static str, fn(usize) -> bool, usize);

/// For each pattern, its name, which counts are bad, and the maximum number of requests per bad count.
const PATTERNS: [Pattern; 9] = [
    ("none", |_| false, 0),
    ("one", |n| n == COUNTS / 3, 2),
    ("two afar", |n| n == 7 || n == COUNTS - 9, 2),
    ("all", |_| true, 2),
    ("all but one", |n| n != COUNTS / 2, 2),
    ("half, together", |n| n % 8 < 4, 2),
    ("half, apart", |n| n < COUNTS / 2, 3),
    ("every second", |n| n / 64 % 2 == 0, 3),
    ("every tenth", |n| n % 10 == 3, 9),
];

fn minute_now() -> Minute {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Minute::of_nanos(i64::try_from(now.unwrap().as_nanos()).unwrap())
}

fn later(minute: Minute, minutes: i64) -> Minute {
    Minute::from_epoch_minutes(minute.epoch_minutes() + minutes).unwrap()
}

/// Returns a series that is accepted because no tag exceeds the server's limit of values.
fn good(n: usize) -> String {
    let digit = |place: u32| n / 8_usize.pow(place) % 8;
    format!("a={},b={},c={},d={}", digit(0), digit(1), digit(2), digit(3))
}

async fn held(server: &InfluxServer, database: &str, measurement: &str) -> Names {
    let query = format!("SELECT value FROM {measurement} GROUP BY *");
    let mut found = Names::new();
    for series in server.query(database, &query).await {
        let tags = series["tags"].as_object().unwrap().iter();
        let tags = tags.map(|(key, value)| (key, value.as_str().unwrap()));
        let tags: Vec<_> = tags
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        for row in series["values"].as_array().unwrap() {
            let minute = row[0].as_i64().unwrap().div_euclid(60_000_000_000);
            found.insert((minute, tags.join(",")));
        }
    }
    found
}

struct Table {
    number: usize,
    requests: Vec<String>,
}

impl Table {
    async fn database(&mut self, server: &InfluxServer, with: &str) -> String {
        self.number += 1;
        let database = format!("eds{}", self.number);
        let create = format!("CREATE DATABASE {database} {with}");
        server.query("", &create).await;
        database
    }

    /// Publishes counts, each with whether the server rejects it, and checks the result and the number of requests.
    async fn check(
        &mut self,
        kind: &str,
        server: &InfluxServer,
        database: &str,
        batch: Vec<(SealedCounts, bool)>,
        each: usize,
    ) {
        let is_refused = |refused: bool| batch.iter().filter(move |(_, is)| *is == refused);
        let refused = names(is_refused(true).map(|(counts, _)| counts));
        let honest = names(is_refused(false).map(|(counts, _)| counts));
        let all: Vec<_> = batch.iter().map(|(counts, _)| counts.clone()).collect();
        let mut publisher = Publisher::start(&v1_settings(&server.url(), database));
        publisher.give(&all).await;
        let requests = publisher.finish().await;
        assert_eq!(publisher.quarantined(), refused, "{kind}");
        for measurement in ["unique_user_event", "cumulative_user_event"] {
            let held = held(server, database, measurement).await;
            let missing: Vec<_> = honest.difference(&held).take(3).collect();
            assert!(missing.is_empty(), "{kind}: {measurement}: {missing:?}");
        }
        let line = format!(
            "{kind:60} {:>5} of {:>5} refused, {requests:>5} requests",
            refused.len(),
            all.len()
        );
        assert!(requests <= each * refused.len() + REQUESTS_BESIDE, "{line}");
        self.requests.push(line);
    }
}

#[tokio::test]
async fn accepted_counts_are_written_at_a_bounded_cost() {
    let server = InfluxServer::start_with_tag_limit(VALUES_MAX);
    let full = InfluxServer::start_with_series_limit(2 * COUNTS);
    let mut table = Table { number: 0, requests: Vec::new() };
    let fill_up = |database: String| {
        let server = &server;
        async move {
            for value in 0..VALUES_MAX {
                for measurement in ["unique_user_event", "cumulative_user_event"] {
                    let line = format!("{measurement},z=known{value} value=1 1480876680000000000");
                    server.write(&database, line).await;
                }
            }
        }
    };
    let database = table.database(&server, "").await;
    fill_up(database.clone()).await;
    for forged in FORGED {
        let mut batch: Vec<_> =
            (0..COUNTS).map(|n| (counts(SEED_MINUTE, &good(n), 1, 2), false)).collect();
        batch.push((counts(SEED_MINUTE, &format!("a=1,z={forged}"), 1, 2), true));
        let kind = format!("values of a tag: {forged}");
        table.check(&kind, &server, &database, batch, 2).await;
    }
    for (pattern, is_bad, each) in PATTERNS {
        let batch = (0..COUNTS).map(|n| {
            let series = if is_bad(n) { format!("{},z=v{n:04}", good(n)) } else { good(n) };
            (counts(SEED_MINUTE, &series, 1, 2), is_bad(n))
        });
        let kind = format!("values of a tag: {pattern}");
        table.check(&kind, &server, &database, batch.collect(), each).await;

        // The bad counts are the oldest, so they are written first.
        let now = minute_now();
        let kept = table.database(&server, "WITH DURATION 1h").await;
        let batch = (0..COUNTS).map(|n| {
            let minute = later(now, if is_bad(n) { -5000 } else { -3 });
            (counts(minute, &good(n), 1, 2), is_bad(n))
        });
        let kind = format!("beyond retention: {pattern}");
        table.check(&kind, &server, &kept, batch.collect(), each).await;

        // A field has a single type within a shard, and a shard spans one week.
        let typed = table.database(&server, "").await;
        let spoilt = "unique_user_event,z=x value=\"text\" 1480876680000000000";
        server.write(&typed, spoilt).await;
        let batch = (0..COUNTS).map(|n| {
            let minute = later(SEED_MINUTE, if is_bad(n) { 0 } else { 30 * 1440 });
            (counts(minute, &good(n), 1, 2), is_bad(n))
        });
        let kind = format!("another type in that week: {pattern}");
        table.check(&kind, &server, &typed, batch.collect(), each).await;

        // The server accepts only known series, so it rejects even the series of a probe.
        let limited = table.database(&full, "").await;
        let known: Vec<_> = (0..COUNTS).map(|n| counts(SEED_MINUTE, &good(n), 1, 2)).collect();
        output(&v1_settings(&full.url(), &limited)).write(&known).await.unwrap();
        let next = later(SEED_MINUTE, 1);
        let batch = (0..COUNTS).map(|n| {
            let series = if is_bad(n) { format!("{},z=v{n:04}", good(n)) } else { good(n) };
            (counts(next, &series, 1, 2), is_bad(n))
        });
        // If almost all counts are bad, a new node would find an accepted one only by chance.
        if !pattern.starts_with("all") {
            let kind = format!("series of a database: {pattern}");
            table.check(&kind, &full, &limited, batch.collect(), each).await;
        }
    }
    let kinds: BTreeSet<_> = table.requests.iter().collect();
    assert!(kinds.len() >= 40, "{}", kinds.len());
    println!("{}", table.requests.join("\n"));
}

/// InfluxDB responds as soon as it has read the length, and closes the connection while the body is still being sent.
#[tokio::test]
async fn a_body_over_the_limit_of_the_server_is_split() {
    let server = InfluxServer::start_with_body_limit(20_000);
    server.query("", "CREATE DATABASE eds").await;
    let mut publisher = Publisher::start(&v1_settings(&server.url(), "eds"));
    let batch = many_counts(5000);
    publisher.give(&batch).await;
    publisher.finish().await;
    assert!(publisher.quarantined().is_empty());
    for measurement in ["unique_user_event", "cumulative_user_event"] {
        assert_eq!(held(&server, "eds", measurement).await, names(&batch));
    }
}
