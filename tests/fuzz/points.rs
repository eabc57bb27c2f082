//! Writes random text and the series of accepted lines as points. An independent parser must read exactly these two points.

use event_data_service::event::{Minute, Parser, Partition, tags};
use event_data_service::output::SealedCounts;
use event_data_service::output::line_protocol::lines;
use influxdb_line_protocol::{FieldValue, parse_lines};

use crate::line::all_rules;
use crate::spelling::{self, spelled};

fn counts(series: &str) -> SealedCounts {
    SealedCounts {
        partition: Partition::default(),
        minute: Minute::of_nanos(1_480_876_707_352_348_928),
        period: (Minute::of_nanos(1_480_876_707_352_348_928)).into(),
        series: series.to_owned(),
        unique: 3,
        cumulative: 5,
        quality: event_data_service::event::Quality::default(),
    }
}

fn check_any(series: &str) {
    let counts = counts(series);
    let stays_in_its_line = !series.contains(|c: char| c.is_ascii_control())
        && !series.replace(r"\ ", "").contains(' ')
        && !series.ends_with('\\');
    let written = lines(&counts);
    assert_eq!(written.is_ok(), stays_in_its_line, "{series:?}");
    let Ok(written) = written else {
        return;
    };
    assert!(written.ends_with('\n'), "{written:?}");
    let lines: Vec<_> = written.lines().collect();
    assert_eq!(lines.len(), 2, "{written:?}");
    for (line, begins) in lines.iter().zip(["unique_user_event", "cumulative_user_event"]) {
        assert!(line.starts_with(begins), "{line}");
        assert!(line.ends_with(" 1480876680000000000"), "{line}");
        // A series that no line can produce may be left out, but must never become a different point.
        for point in parse_lines(line).flatten() {
            assert!(point.series.measurement == begins, "{line}");
            assert_eq!(point.field_set.len(), 1, "{line}");
            assert_eq!(point.timestamp, Some(1_480_876_680_000_000_000), "{line}");
        }
    }
}

/// Checks that the series of an accepted line is written, and that the points have the tags of the line.
fn check_accepted(series: &str) {
    let counts = counts(series);
    let written = lines(&counts).unwrap();
    let points: Vec<_> = parse_lines(&written).collect::<Result<_, _>>().unwrap();
    let expected = [("unique_user_event", "3"), ("cumulative_user_event", "5")];
    assert_eq!(points.len(), expected.len(), "{written}");
    for (point, (measurement, value)) in points.iter().zip(expected) {
        assert_eq!(point.series.measurement, measurement);
        assert_eq!(point.timestamp, Some(1_480_876_680_000_000_000));
        let [(field, FieldValue::F64(found))] = &point.field_set[..] else {
            panic!("{written}");
        };
        assert!(*field == "value" && found.to_string() == value, "{written}");
        let read = point.series.tag_set.iter().flatten();
        let read: Vec<_> = read.map(|(key, value)| (key.to_string(), value.to_string())).collect();
        // InfluxDB 3, whose parser is used here, reads two backslashes as one; InfluxDB 1 and 2 keep both.
        let sent = tags(series).into_iter();
        let unescaped = |text: String| text.replace(r"\\", r"\");
        let sent: Vec<_> = sent.map(|(key, value)| (unescaped(key), unescaped(value))).collect();
        assert_eq!(read, sent, "{written}");
    }
}

fn check(input: &[u8]) {
    check_any(&String::from_utf8_lossy(input));
    for rules in all_rules() {
        if let Ok(line) = Parser::new(&rules).parse(input) {
            check_accepted(line.series);
        }
    }
}

#[test]
fn any_series_as_points() {
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check(input);
        check(&spelled(input, spelling::LINE));
    });
}
