//! The source of lines, which is an input or a synthetic load, and [`Stop`], which reports signals.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::datagram::LINE_BYTES_MAX;
use super::synthetic::Synthetic;
use super::{LineRules, SendError, now_nanos};

pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 64 * 1024;
/// The signals that stop sending, and the exit codes that a shell reports for them.
const SIGNALS: [(i32, u8); 2] = [(SIGINT, 130), (SIGTERM, 143)];

/// Whether Ctrl-C or SIGTERM was received. A second signal ends the process.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicUsize>);

impl Stop {
    pub(super) fn by_signals() -> io::Result<Self> {
        let (stop, stopping) = (Self::default(), Arc::new(AtomicBool::new(false)));
        for (signal, code) in SIGNALS {
            // The handlers run in this order, so only a second signal finds the flag set and exits.
            flag::register_conditional_shutdown(signal, code.into(), Arc::clone(&stopping))?;
            flag::register(signal, Arc::clone(&stopping))?;
            flag::register_usize(signal, Arc::clone(&stop.0), code.into())?;
        }
        Ok(stop)
    }

    pub(super) fn code(&self) -> Option<u8> {
        let code = u8::try_from(self.0.load(Ordering::Acquire)).ok();
        code.filter(|code| *code != 0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Line,
    /// No line is available yet, so the pending lines should be sent.
    Pause,
    End,
}

#[derive(Debug)]
pub(super) enum Source {
    Lines(Lines),
    Synthetic(Synthetic),
    /// A synthetic load whose events get their timestamps when they are sent.
    Realtime(Synthetic),
}

impl Source {
    /// Reads the next line into `line`, without its newline. Leaves `line` unchanged unless it returns [`Next::Line`].
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<Next, SendError> {
        let event = match self {
            Self::Lines(lines) => return lines.next(line),
            Self::Synthetic(load) => load.next(),
            Self::Realtime(load) => load.next_at(now_nanos()),
        };
        let Some(event) = event else { return Ok(Next::End) };
        line.clear();
        event.write_line(line);
        Ok(Next::Line)
    }

    /// Returns the number of the last line, counted from 1 and including empty lines.
    pub(super) const fn line_number(&self) -> u64 {
        match self {
            Self::Lines(lines) => lines.number,
            Self::Synthetic(load) | Self::Realtime(load) => load.sent(),
        }
    }
}

/// Splits an input into lines according to the caller's rules, skips empty lines, and adds missing timestamps.
#[derive(Debug)]
pub(super) struct Lines {
    chunks: Receiver<io::Result<Vec<u8>>>,
    rules: LineRules,
    /// Bytes read from the input. The first `taken` bytes have been consumed.
    bytes: Vec<u8>,
    taken: usize,
    has_ended: bool,
    has_paused: bool,
    passed: u64,
    number: u64,
    /// The last timestamp that was appended. Each appended timestamp is later than the previous one.
    stamped: i64,
}

impl Lines {
    /// Starts a thread to read the input, because reading from a terminal or a pipe may block indefinitely.
    pub(super) fn read(
        mut input: impl Read + Send + 'static,
        rules: LineRules,
    ) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(1);
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let read = match input.read(&mut chunk) {
                    Ok(0) => return,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read,
                };
                let has_failed = read.is_err();
                let read = read.map(|bytes| {
                    chunk.truncate(bytes);
                    chunk
                });
                if sender.send(read).is_err() || has_failed {
                    return;
                }
            }
        })?;
        Ok(Self::new(chunks, rules))
    }

    fn new(chunks: Receiver<io::Result<Vec<u8>>>, rules: LineRules) -> Self {
        Self {
            chunks,
            rules,
            bytes: Vec::new(),
            taken: 0,
            has_ended: false,
            has_paused: false,
            passed: 0,
            number: 0,
            stamped: 0,
        }
    }

    fn next(&mut self, line: &mut Vec<u8>) -> Result<Next, SendError> {
        loop {
            if let Some(length) = self.line_length() {
                line.clear();
                line.extend_from_slice(&self.bytes[self.taken..self.taken + length]);
                self.taken = self.bytes.len().min(self.taken + length + 1);
                self.number = self.passed + 1;
                self.passed += 1 + memchr::memchr_iter(b'\n', line).count() as u64;
                if line.len() > LINE_BYTES_MAX {
                    return Err(SendError::LineTooLong(self.number));
                }
                if !line.trim_ascii().is_empty() {
                    self.stamp(line);
                    return Ok(Next::Line);
                }
                continue;
            }
            if self.has_ended {
                return Ok(Next::End);
            }
            let wait = if self.has_paused { LOOK_INTERVAL } else { Duration::ZERO };
            match self.chunks.recv_timeout(wait) {
                Ok(chunk) => {
                    let chunk =
                        chunk.map_err(|source| SendError::Input(self.passed + 1, source))?;
                    self.bytes.drain(..self.taken);
                    self.bytes.extend(chunk);
                    self.taken = 0;
                    self.has_paused = false;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.has_paused = true;
                    return Ok(Next::Pause);
                }
                Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
            }
        }
    }

    /// Returns the length of the next line; `None` if more input is needed. A quoted field may contain newlines. If its
    /// closing quote is missing or beyond the maximum line length, the line ends at its first `\n`.
    fn line_length(&self) -> Option<usize> {
        let rest = &self.bytes[self.taken..];
        let rest = &rest[..rest.len().min(LINE_BYTES_MAX + 1)];
        (self.rules.end)(rest).or_else(|| {
            let is_final = self.has_ended && !rest.is_empty() || rest.len() > LINE_BYTES_MAX;
            is_final.then(|| memchr::memchr(b'\n', rest).unwrap_or(rest.len()))
        })
    }

    fn stamp(&mut self, line: &mut Vec<u8>) {
        if (self.rules.lacks_timestamp)(line) {
            line.pop_if(|last| *last == b'\r');
            self.stamped = now_nanos().max(self.stamped + 1);
            line.extend_from_slice(format!(" {}", self.stamped).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule like the service's: a line ends at an unquoted `\n`.
    fn unquoted(bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            at += memchr::memchr2(b'\n', b'"', &bytes[at..])?;
            if bytes[at] == b'\n' {
                return Some(at);
            }
            at += 2 + memchr::memchr(b'"', &bytes[at + 1..])?;
        }
    }

    const RULES: LineRules = LineRules { end: unquoted, lacks_timestamp: |_| false };

    /// Lines from an input that has been read to its end.
    fn lines(input: &[u8], rules: LineRules) -> Lines {
        let (sender, chunks) = sync_channel(1);
        sender.send(Ok(input.to_vec())).unwrap();
        Lines::new(chunks, rules)
    }

    fn all(input: &str) -> Result<Vec<String>, SendError> {
        let mut lines = lines(input.as_bytes(), RULES);
        let (mut line, mut all) = (Vec::new(), Vec::new());
        while lines.next(&mut line)? == Next::Line {
            all.push(String::from_utf8(line.clone()).unwrap());
        }
        Ok(all)
    }

    #[test]
    fn lines_are_unchanged_and_empty_ones_skipped() {
        let given = all("a 1 \r\n\n\r\n#x\n b\nlast").unwrap();
        assert_eq!(given, ["a 1 \r", "#x", " b", "last"]);
    }

    #[test]
    fn an_input_is_read_to_its_end() {
        let input: Vec<u8> = b"some line\n".repeat(20_000);
        let mut lines = Lines::read(io::Cursor::new(input), RULES).unwrap();
        let (mut line, mut count) = (Vec::new(), 0);
        loop {
            match lines.next(&mut line).unwrap() {
                Next::Line => count += u32::from(line == b"some line"),
                Next::Pause => {}
                Next::End => break,
            }
        }
        assert_eq!(count, 20_000);
    }

    #[test]
    fn silent_input_yields_pauses() {
        let (silent, _writer) = io::pipe().unwrap();
        let mut lines = Lines::read(silent, RULES).unwrap();
        for _ in 0..2 {
            assert_eq!(lines.next(&mut Vec::new()).unwrap(), Next::Pause);
        }
    }

    #[test]
    fn unstamped_lines_get_distinct_timestamps() {
        let before = now_nanos();
        let lacks_timestamp = |line: &[u8]| !line.starts_with(b"#") && !line.ends_with(b" 7");
        let input = b"a value=u\na value=u\r\na value=u 7\n#x\n";
        let mut lines = lines(input, LineRules { lacks_timestamp, ..RULES });
        let (mut line, mut stamps) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            assert_eq!(lines.next(&mut line).unwrap(), Next::Line);
            let text = str::from_utf8(&line).unwrap();
            let stamp = text.strip_prefix("a value=u ").unwrap();
            stamps.push(stamp.parse::<i64>().unwrap());
        }
        assert!(before <= stamps[0] && stamps[0] < stamps[1], "{stamps:?}");
        for expected in ["a value=u 7", "#x"] {
            assert_eq!(lines.next(&mut line).unwrap(), Next::Line);
            assert_eq!(line, expected.as_bytes());
        }
    }

    #[test]
    fn slow_writer_does_not_delay_complete_lines() {
        let (sender, chunks) = sync_channel(1);
        let mut lines = Lines::new(chunks, RULES);
        let mut line = Vec::new();
        for (chunk, expected) in [("a\nb\n", &["a", "b"][..]), ("c\nd", &["c"]), ("e\n", &["de"])] {
            sender.send(Ok(chunk.into())).unwrap();
            for expected in expected {
                assert_eq!(lines.next(&mut line).unwrap(), Next::Line);
                assert_eq!(line, expected.as_bytes());
            }
            assert_eq!(lines.next(&mut line).unwrap(), Next::Pause);
        }
        drop(sender);
        assert_eq!(lines.next(&mut line).unwrap(), Next::End);
    }

    #[test]
    fn line_feed_in_a_quoted_field_belongs_to_the_line() {
        let (quoted, bare) = ("a=1 note=\"\n\n\",value=u", "b=1 value=v");
        let mut two = lines(format!("{quoted}\n{bare}").as_bytes(), RULES);
        let mut line = Vec::new();
        for (expected, number) in [(quoted, 1), (bare, 4)] {
            assert_eq!(two.next(&mut line).unwrap(), Next::Line);
            assert_eq!((&*line, two.number), (expected.as_bytes(), number));
        }
        let unclosed = "a=1 value=\"u\nb=1 value=v\n\nc=1 value=w";
        let expected: Vec<_> = unclosed.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(all(unclosed).unwrap(), expected);
        // The closing quote is beyond the maximum line length.
        let far = format!("a=1 value=\"\n{}\"", "\n".repeat(LINE_BYTES_MAX));
        assert_eq!(all(&far).unwrap()[0], "a=1 value=\"");
    }

    #[test]
    fn a_line_that_fits_no_datagram_is_reported() {
        let longest = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(all(&format!("{longest}\n")).unwrap()[0], longest);
        let error = all(&format!("a\n\n{longest}x\n")).unwrap_err();
        assert!(matches!(error, SendError::LineTooLong(3)), "{error}");
    }
}
