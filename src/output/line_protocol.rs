//! Formats counts as line protocol. Series are already escaped, but one that could end its line or add fields is rejected.

use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{Output, SealedCounts, WriteError};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{ESTIMATE_ERROR, Period};

/// The measurement for distinct users.
pub const UNIQUE_MEASUREMENT: &str = "unique_user_event";
/// The measurement for distinct events.
pub const CUMULATIVE_MEASUREMENT: &str = "cumulative_user_event";

const STDOUT: &str = "standard output";

/// Returns the two lines for a count, each with a newline, or why the series would break out of its line.
pub fn lines(counts: &SealedCounts) -> Result<String, &'static str> {
    let SealedCounts {
        period: Period { start, suffix }, series, unique, cumulative, quality, ..
    } = counts;
    let mut previous = None;
    for byte in series.bytes() {
        match byte {
            // A newline would start a forged line; some servers reject other control characters.
            byte if byte.is_ascii_control() => {
                return Err("not sent: the series contains a control character");
            }
            // Text after an unescaped space is parsed as fields. For InfluxDB, even an escaped backslash escapes a space.
            b' ' if previous != Some(b'\\') => {
                return Err("not sent: the series contains an unescaped space");
            }
            byte => previous = Some(byte),
        }
    }
    if previous == Some(b'\\') {
        // The backslash would escape the space after the series.
        return Err("not sent: the series ends with a backslash");
    }
    let nanos = start.start_nanos();
    let comma = if series.is_empty() { "" } else { "," };
    let error = if quality.is_estimated { ESTIMATE_ERROR } else { 0.0 };
    let error = if suffix.is_empty() { String::new() } else { format!(",error={error}") };
    let complete = if quality.is_incomplete { ",complete=false" } else { "" };
    Ok(format!(
        "{UNIQUE_MEASUREMENT}{suffix}{comma}{series} value={unique}{error}{complete} {nanos}\n\
         {CUMULATIVE_MEASUREMENT}{suffix}{comma}{series} value={cumulative}{complete} {nanos}\n"
    ))
}

/// Returns the lines for these counts, or [`WriteError::Rejected`] if one of them cannot be represented in line protocol.
pub fn body(counts: &[SealedCounts]) -> Result<String, WriteError> {
    let lines = counts.iter().map(lines).collect::<Result<_, _>>();
    lines.map_err(|error| WriteError::Rejected(Diagnosis::new(Cause::OutputBug, error)))
}

/// An output that writes lines to a stream. Each write holds the lock until it is flushed, so lines are never interleaved.
/// If the reader stalls, a write blocks a thread that cannot be stopped, so shutdown must not wait for it.
#[derive(Debug)]
pub(crate) struct Lines<W>(pub(crate) Arc<Mutex<W>>);

#[async_trait]
impl<W: Write + Send + Debug + 'static> Output for Lines<W> {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let lines = body(counts)?;
        let writer = Arc::clone(&self.0);
        let unavailable = |error: io::Error| WriteError::unavailable(format!("{STDOUT}: {error}"));
        tokio::task::spawn_blocking(move || {
            // The writer is usable after a panic, because every batch is written from its start.
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(lines.as_bytes())?;
            writer.flush()
        })
        .await
        .map_err(|error| unavailable(error.into()))?
        .map_err(unavailable)
    }

    fn describe(&self) -> String {
        STDOUT.to_owned()
    }

    fn has_server(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use influxdb_line_protocol::parse_lines;
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Minute, Partition, Quality};

    fn counts(series: &str) -> SealedCounts {
        SealedCounts {
            partition: Partition::default(),
            minute: Minute::of_nanos(1_480_876_707_352_348_928),
            period: Minute::of_nanos(1_480_876_707_352_348_928).into(),
            series: series.to_owned(),
            unique: 1,
            cumulative: 2,
            quality: Quality::default(),
        }
    }

    #[test]
    fn lines_have_the_documented_form() {
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
    fn tags_that_could_forge_a_point_are_refused() {
        for (series, error) in [
            ("a=b\nforged value=9 1", "control character"),
            ("a=b\\\nforged value=9 1", "control character"),
            ("a=b\r", "control character"),
            ("a=b\0", "control character"),
            ("a=b value=9", "unescaped space"),
            (" a=b", "unescaped space"),
            ("a=b\\  c", "unescaped space"),
            ("a=b\\", "backslash"),
        ] {
            let refused = lines(&counts(series)).unwrap_err();
            assert!(refused.contains(error), "{series:?}: {refused}");
        }
    }

    #[test]
    fn the_largest_numbers_and_both_ends_of_time_are_written_whole() {
        for nanos in [i64::MIN, -1, i64::MAX] {
            let period = Period::from(Minute::of_nanos(nanos));
            let start = period.start.start_nanos();
            let counts = SealedCounts { period, unique: u64::MAX, ..counts("a=b") };
            let text = lines(&counts).unwrap();
            let first = format!("unique_user_event,a=b value=18446744073709551615 {start}\n");
            assert!(text.starts_with(&first), "{text}");
        }
    }

    proptest! {
        /// For any tags that the input accepts, an independent parser sees two points with the intended tags.
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
                let expected: Vec<_> = tags.clone().into_iter().collect();
                prop_assert_eq!(read, expected);
            }
        }

        /// However hostile the series, the result is two lines or none.
        #[test]
        fn a_count_is_two_lines_or_none(series in "(\\PC|[\\\\ ,=\n\r\t\0])*") {
            let counts = counts(&series);
            if let Ok(text) = lines(&counts) {
                prop_assert_eq!(text.matches('\n').count(), 2);
                prop_assert!(text.ends_with('\n'));
            }
        }
    }

    /// A buffer that counts flushes, or a pipe whose reader has gone away.
    #[derive(Debug, Default)]
    struct Pipe {
        bytes: Vec<u8>,
        flushed: usize,
        closed: bool,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.flushed += 1;
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_batch_is_written_and_flushed_at_once() {
        let output = Lines(Arc::new(Mutex::new(Pipe::default())));
        output.write(&[counts("a=1"), counts("a=3")]).await.unwrap();
        let forged = output.write(&[counts("a=1"), counts("a=2\n")]).await;
        assert!(matches!(forged, Err(WriteError::Rejected(_))), "{forged:?}");
        let pipe = output.0.lock().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&pipe.bytes),
            "unique_user_event,a=1 value=1 1480876680000000000\ncumulative_user_event,a=1 value=2 1480876680000000000\n\
             unique_user_event,a=3 value=1 1480876680000000000\ncumulative_user_event,a=3 value=2 1480876680000000000\n",
        );
        assert_eq!(pipe.flushed, 1);
    }

    #[tokio::test]
    async fn a_closed_pipe_is_unavailable() {
        let output = Lines(Arc::new(Mutex::new(Pipe { closed: true, ..Pipe::default() })));
        match output.write(&[counts("a=1")]).await.unwrap_err() {
            WriteError::Unavailable { found, retry_after: None } => {
                assert!(found.why.contains("standard output: "), "{found}");
            }
            other => panic!("{other:?}"),
        }
    }
}
