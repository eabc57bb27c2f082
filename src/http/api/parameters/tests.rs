//! Tests the parsing of request parameters.

use super::*;

fn read(query: &str) -> Result<Parameters, Problem> {
    let uri = format!("/x?{query}").parse().unwrap();
    Parameters::read(&uri, &RESERVED, 120)
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
        assert_eq!(
            wrong(read(query).and_then(|parameters| parameters.top())),
            parameter,
            "{query}"
        );
    }
    let uri = "/x?n=5".parse().unwrap();
    assert_eq!(wrong(Parameters::read(&uri, &[], 1)), "n");
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
