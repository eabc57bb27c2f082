//! Parses random bytes as a line. The line is rejected, or is an event that remains the same in every equivalent spelling.

use event_data_service::event::{Line, LineLimits, LineRules, Parser, Precision, Rejection, tags};

use crate::spelling::{self, spelled};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    series: String,
    user: String,
    pub(crate) timestamp: Option<i64>,
}

impl From<Line<'_>> for Event {
    fn from(line: Line<'_>) -> Self {
        Self {
            series: line.series.to_owned(),
            user: line.user.to_owned(),
            timestamp: line.timestamp,
        }
    }
}

pub(crate) fn all_rules() -> Vec<LineRules> {
    let usual = LineRules::default();
    let tight = LineLimits { line: 60, series: 16, tag: 6, user: 5 };
    vec![
        LineRules { limits: tight, measurement_tag: None, ..usual.clone() },
        LineRules {
            measurement_tag: Some("from".to_owned()),
            precision: Precision::Seconds,
            ..usual.clone()
        },
        usual,
    ]
}

const fn nanos(precision: Precision) -> i64 {
    match precision {
        Precision::Nanoseconds => 1,
        Precision::Microseconds => 1_000,
        Precision::Milliseconds => 1_000_000,
        Precision::Seconds => 1_000_000_000,
    }
}

fn parse(rules: &LineRules, line: &[u8]) -> Result<Event, Rejection> {
    Parser::new(rules).parse(line).map(Event::from)
}

pub(crate) fn escaped(text: &str) -> String {
    let special = |c| matches!(c, ',' | '=' | ' ');
    let mut escaped = String::new();
    for character in text.chars() {
        if special(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Formats an event as strict line protocol.
fn written(tags: &[String], event: &Event, precision: Precision) -> String {
    let user = event.user.replace('\\', r"\\").replace('"', "\\\"");
    let mut line = format!("{} value=\"{user}\"", tags.join(","));
    if let Some(timestamp) = event.timestamp {
        line = format!("{line} {}", timestamp / nanos(precision));
    }
    line
}

fn check_event(rules: &LineRules, line: &[u8], event: &Event) {
    let Event { series, user, timestamp } = event;
    let LineLimits { line: line_max, series: series_max, tag: tag_max, user: user_max } =
        rules.limits;
    assert!(line.len() <= line_max);
    assert!((1..=series_max).contains(&series.len()), "{event:?}");
    assert!((1..=user_max).contains(&user.len()), "{event:?}");
    assert!(!series.contains(char::is_control), "{event:?}");
    assert!(!user.contains(char::is_control), "{event:?}");

    let tags: Vec<_> =
        tags(series).iter().map(|(key, value)| (escaped(key), escaped(value))).collect();
    for (key, value) in &tags {
        assert!((1..=tag_max).contains(&key.len()), "{event:?}");
        assert!((1..=tag_max).contains(&value.len()), "{event:?}");
    }
    assert!(tags.is_sorted_by(|a, b| a.0 < b.0), "{event:?}");
    let mut tags: Vec<_> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(tags.join(","), *series);

    // Strict line protocol results in the same event for any order of the tags, but escapes may make the line longer.
    let roomy =
        LineRules { limits: LineLimits { line: usize::MAX, ..rules.limits }, ..rules.clone() };
    for _ in 0..tags.len() {
        let line = written(&tags, event, rules.precision);
        assert_eq!(parse(&roomy, line.as_bytes()).as_ref(), Ok(event), "{line}");
        tags.rotate_left(1);
    }

    // A relay appends a timestamp, which must not change anything else. A final backslash would escape the space before it.
    if timestamp.is_none() && !line.ends_with(b"\\") {
        let stamped = [line, b" 7"].concat();
        let expected = Event { timestamp: Some(7 * nanos(rules.precision)), ..event.clone() };
        assert_eq!(parse(&roomy, &stamped), Ok(expected));
    }
}

fn check(line: &[u8]) {
    for rules in all_rules() {
        let parsed = parse(&rules, line);
        // A parser keeps no state between lines.
        let mut used = Parser::new(&rules);
        for before in [&b"b=1,a=2 value=\"x\\\"\""[..], line] {
            let _ = used.parse(before);
        }
        assert_eq!(used.parse(line).map(Event::from), parsed);
        if let Ok(event) = parsed {
            check_event(&rules, line, &event);
        }
    }
}

#[test]
fn any_bytes_as_a_line() {
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check(input);
        check(&spelled(input, spelling::LINE));
    });
}
