//! Counts as line protocol: two lines each.
//!
//! A series is already canonical and escaped, and is not escaped again. But it is checked: a series that could end its line
//! early, or add fields, is refused, so that no tag can forge a point.

use super::{SealedCounts, WriteError};
use crate::diagnosis::{Cause, Diagnosis};

/// The measurement of distinct users.
pub const UNIQUE_MEASUREMENT: &str = "unique_user_event";
/// The measurement of distinct events.
pub const CUMULATIVE_MEASUREMENT: &str = "cumulative_user_event";

/// Returns the two lines of one count, each with its newline, or why the series does not stay within its line.
pub fn lines(counts: &SealedCounts) -> Result<String, &'static str> {
    let SealedCounts { minute, series, unique, cumulative, .. } = counts;
    let mut previous = None;
    for byte in series.bytes() {
        match byte {
            // A newline would begin a forged line; some servers reject other control characters.
            byte if byte.is_ascii_control() => {
                return Err("not sent: the series contains a control character");
            }
            // Text after a bare space is parsed as fields. InfluxDB's rule: a space is escaped when the byte before it is a
            // backslash, even an escaped one.
            b' ' if previous != Some(b'\\') => {
                return Err("not sent: the series contains a space that is not escaped");
            }
            byte => previous = Some(byte),
        }
    }
    if previous == Some(b'\\') {
        // It would escape the space after the series.
        return Err("not sent: the series ends in a backslash");
    }
    let nanos = minute.start_nanos();
    let comma = if series.is_empty() { "" } else { "," };
    Ok(format!(
        "{UNIQUE_MEASUREMENT}{comma}{series} value={unique} {nanos}\n\
         {CUMULATIVE_MEASUREMENT}{comma}{series} value={cumulative} {nanos}\n"
    ))
}

/// Returns the lines of these counts, or [`WriteError::Rejected`] if line protocol cannot represent one of them.
pub fn body(counts: &[SealedCounts]) -> Result<String, WriteError> {
    let lines = counts.iter().map(lines).collect::<Result<_, _>>();
    lines.map_err(|error| WriteError::Rejected(Diagnosis::new(Cause::OutputBug, error)))
}

#[cfg(test)]
mod tests {
    use influxdb_line_protocol::parse_lines;
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Minute, Partition};

    fn counts(series: &str) -> SealedCounts {
        SealedCounts {
            partition: Partition::default(),
            minute: Minute::of_nanos(1_480_876_707_352_348_928),
            series: series.to_owned(),
            unique: 1,
            cumulative: 2,
        }
    }

    #[test]
    fn the_lines_are_those_of_the_seeds() {
        assert_eq!(
            lines(&counts("event_type=http-5xx,product=productA")).unwrap(),
            "unique_user_event,event_type=http-5xx,product=productA value=1 1480876680000000000\n\
             cumulative_user_event,event_type=http-5xx,product=productA value=2 1480876680000000000\n",
        );
    }

    #[test]
    fn a_point_without_tags_has_no_comma() {
        let counts = counts("");
        let text = lines(&counts).unwrap();
        assert!(text.starts_with("unique_user_event value=1 "), "{text}");
    }

    #[test]
    fn what_could_forge_a_point_is_refused() {
        for (series, error) in [
            ("a=b\nforged value=9 1", "control character"),
            ("a=b\\\nforged value=9 1", "control character"),
            ("a=b\r", "control character"),
            ("a=b\0", "control character"),
            ("a=b value=9", "space that is not escaped"),
            (" a=b", "space that is not escaped"),
            ("a=b\\  c", "space that is not escaped"),
            ("a=b\\", "backslash"),
        ] {
            let refused = lines(&counts(series)).unwrap_err();
            assert!(refused.contains(error), "{series:?}: {refused}");
        }
    }

    #[test]
    fn the_largest_numbers_and_both_ends_of_time_are_written_whole() {
        for nanos in [i64::MIN, -1, i64::MAX] {
            let counts =
                SealedCounts { minute: Minute::of_nanos(nanos), unique: u64::MAX, ..counts("a=b") };
            let text = lines(&counts).unwrap();
            let start = counts.minute.start_nanos();
            let first = format!("unique_user_event,a=b value=18446744073709551615 {start}\n");
            assert!(text.starts_with(&first), "{text}");
        }
    }

    proptest! {
        /// An independent parser sees two points, and the tags that were meant, for any tags that the
        /// input lets pass.
        #[test]
        fn any_escaped_tags_read_back(
            tags in proptest::collection::btree_map("[a-z ,=ü\"]{1,8}", "[a-z ,=ü\"'#]{1,8}", 1..4)
        ) {
            let escape = |text: &str| {
                text.replace(',', "\\,").replace('=', "\\=").replace(' ', "\\ ")
            };
            let series: Vec<_> =
                tags.iter().map(|(key, value)| format!("{}={}", escape(key), escape(value))).collect();
            let counts = counts(&series.join(","));
            let text = lines(&counts).unwrap();
            let parsed: Vec<_> = parse_lines(&text).collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(parsed.len(), 2);
            for line in parsed {
                prop_assert_eq!(line.timestamp, Some(1_480_876_680_000_000_000));
                let read: Vec<_> = line.series.tag_set.iter().flatten()
                    .map(|(key, value)| (key.to_string(), value.to_string())).collect();
                let meant: Vec<_> = tags.clone().into_iter().collect();
                prop_assert_eq!(read, meant);
            }
        }

        /// However hostile the series: two lines or none.
        #[test]
        fn a_count_is_two_lines_or_none(series in "(\\PC|[\\\\ ,=\n\r\t\0])*") {
            let counts = counts(&series);
            if let Ok(text) = lines(&counts) {
                prop_assert_eq!(text.matches('\n').count(), 2);
                prop_assert!(text.ends_with('\n'));
            }
        }
    }
}
