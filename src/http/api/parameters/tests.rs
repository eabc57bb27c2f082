//! Tests the parsing of request parameters.

use chrono_tz::Tz;

use super::*;
use crate::event::{Rollup, RollupLimits, Tags};

/// Returns two partitions with the rollups `hourly` and `daily`, whose days are those of Berlin.
fn partitions() -> Partitions {
    let rollup = |name: &str, every| Rollup {
        name: name.to_owned(),
        every,
        tags: Tags::All,
        keep: Vec::new(),
        drop: Vec::new(),
        limits: RollupLimits { users_max: 1, groups_max: 9, bytes_max: 8 },
        suffix: name.into(),
    };
    let hourly = rollup("hourly", Every::Minutes(60));
    let daily = rollup("daily", Every::Days(1, Tz::Europe__Berlin));
    Partitions::new(2.try_into().unwrap()).with_rollups(vec![hourly, daily])
}

fn read(query: &str) -> Result<Parameters, Problem> {
    let uri = format!("/x?{query}").parse().unwrap();
    Parameters::read(&uri, &RESERVED, &partitions(), 120)
}

fn wrong<T: std::fmt::Debug>(result: Result<T, Problem>) -> String {
    serde_json::to_value(result.unwrap_err()).unwrap()["parameter"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn range_contains_the_minutes_that_begin_in_it() {
    let minutes = |query: &str| {
        let range = read(query).unwrap().range(90 * 60 + 30).unwrap();
        (range.from, range.to)
    };
    assert_eq!(minutes(""), (76, 91), "the current minute is included");
    assert_eq!(minutes("from=60&to=180"), (1, 3));
    assert_eq!(minutes("from=61&to=181"), (2, 4));
    assert_eq!(minutes("from=1970-01-01T00:01:00Z&to=1970-01-01T01:03:00%2B01:00"), (1, 3));
    assert_eq!(minutes("from=5300"), (89, 91));
}

#[test]
fn invalid_parameter_is_named() {
    for query in ["from=x", "from=5400&to=5400", "from=0&to=99999", "from=1&from=2"] {
        assert_eq!(
            wrong(read(query).and_then(|parameters| parameters.range(6000))),
            "from",
            "{query}"
        );
    }
    let beyond = read("to=99999999999999999").and_then(|parameters| parameters.range(6000));
    assert_eq!(wrong(beyond), "to");
    for (query, parameter) in [
        ("by=users", "by"),
        ("window=15", "window"),
        ("window=90s", "window"),
        ("window=0s", "window"),
        ("window=121m", "window"),
        ("n=0", "n"),
        ("n=101", "n"),
        ("position=5", "position"),
        ("n=3&position=-1", "position"),
        ("list=x", "list"),
        ("a=1&a=2", "a"),
        ("=1", ""),
    ] {
        assert_eq!(wrong(read(query).and_then(Parameters::top)), parameter, "{query}");
    }
    let uri = "/x?n=5".parse().unwrap();
    assert_eq!(wrong(Parameters::read(&uri, &[], &partitions(), 1)), "n");
    let long = format!("a={}", "x".repeat(QUERY_BYTES_MAX));
    assert!(read(&long).is_err());
    assert!(read(&format!("a={}", "x".repeat(TAGS_BYTES_MAX))).is_err());
}

#[test]
fn one_list_has_one_key() {
    let key = |query: &str| read(query).unwrap().top().unwrap().key();
    assert_eq!(key(""), key("by=cumulative&window=900s&n=5&position=2&list=1"));
    assert_eq!(key("a=1&b=2"), key("b=2&tag.a=1"));
    for query in ["by=unique", "window=16m", "n=6", "a=1"] {
        assert_ne!(key(""), key(query), "{query}");
    }
    let longest = format!("a={}", "%00".repeat(TAGS_BYTES_MAX - 1));
    assert!(read(&longest).is_ok());
}

#[test]
fn tags_are_joined_by_and() {
    let filter = read("a=1&tag.to=x,y").unwrap().filter;
    assert!(matches(&filter, r"a=1,b=2,to=x\,y"));
    assert!(!matches(&filter, "a=1,b=2"));
    assert!(!matches(&filter, r"a=2,to=x\,y"));
    assert!(matches(&Filter::new(), ""));
}

#[test]
fn windows_begin_in_the_range() {
    let starts = |query: &str, now: &str| {
        let parameters = read(query).unwrap();
        let every = parameters.counted.every;
        let now = DateTime::parse_from_rfc3339(now).unwrap().timestamp();
        let range = parameters.range(now).unwrap();
        let starts: Vec<_> =
            range.windows(every).map(|last| start(every, last.epoch_minutes())).collect();
        let before = Range::before(now, parameters.window().unwrap(), every);
        assert_eq!(before.windows(every).count(), 15, "{query}");
        assert_eq!(before.to, start(every, now / 60), "the current window has not ended");
        let time = |number: &i64| super::super::minute(*number);
        (starts.first().map(time).unwrap(), starts.last().map(time).unwrap(), starts.len())
    };
    let [now, first, last] =
        ["2026-11-01T12:30:00Z", "2026-10-31T22:00:00Z", "2026-11-01T12:00:00Z"];
    assert_eq!(starts("rollup=hourly", now), (first.to_owned(), last.to_owned(), 15));
    // One of these days has 25 hours.
    let [first, last] = ["2026-10-17T22:00:00Z", "2026-10-31T23:00:00Z"];
    assert_eq!(starts("rollup=daily", now), (first.to_owned(), last.to_owned(), 15));
    let [first, last] = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"];
    let two = "rollup=daily&from=2026-10-24T22:00:00Z&to=2026-10-26T00:00:00Z";
    assert_eq!(starts(two, now), (first.to_owned(), last.to_owned(), 2));
}

#[test]
fn rollup_is_one_of_the_configured_ones() {
    for query in ["rollup=weekly", "rollup="] {
        let problem = serde_json::to_value(read(query).unwrap_err()).unwrap();
        assert_eq!(problem["parameter"], "rollup");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.ends_with("use one of: hourly, daily"), "{detail}");
    }
    for (query, parameter) in
        [("rollup=hourly&window=90m", "window"), ("rollup=daily&window=1441days", "window")]
    {
        assert_eq!(wrong(read(query).unwrap().top()), parameter, "{query}");
    }
    let key = |query: &str| read(query).unwrap().top().unwrap().key();
    assert_ne!(key("window=1h"), key("rollup=hourly&window=1h"));
}
