//! Lines from standard input, or from anything that is read.

use std::io::{BufRead, BufReader, Read};

use super::datagram::LINE_BYTES_MAX;
use super::{SendError, now_nanos};

/// What a source has to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// A line.
    Line,
    /// No line is at hand, and asking again may wait for one: send first what was given.
    Pause,
    /// Nothing will come any more.
    End,
}

/// Splits its input into lines, by the rule of its caller, and skips empty ones.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: BufReader<R>,
    line_end: fn(&[u8]) -> Option<usize>,
    /// What was read and not given yet: a line end in it may be inside a quoted field.
    held: Vec<u8>,
    /// How many lines were read that are not held.
    passed: u64,
    number: u64,
    paused: bool,
    /// Which lines get a timestamp.
    lacks_timestamp: fn(&[u8]) -> bool,
    /// The last timestamp: no two are equal.
    stamped: i64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R, line_end: fn(&[u8]) -> Option<usize>) -> Self {
        // Nothing was given yet that could be sent first.
        Self {
            input: BufReader::new(input),
            line_end,
            held: Vec::new(),
            passed: 0,
            number: 0,
            paused: true,
            lacks_timestamp: |_| false,
            stamped: 0,
        }
    }

    /// The same, which appends the time at which they are read to lines that lack a timestamp.
    pub(super) const fn stamping(mut self, lacks_timestamp: fn(&[u8]) -> bool) -> Self {
        self.lacks_timestamp = lacks_timestamp;
        self
    }

    fn stamp(&mut self, line: &mut Vec<u8>) {
        if (self.lacks_timestamp)(line) {
            line.pop_if(|last| *last == b'\r');
            self.stamped = now_nanos().max(self.stamped + 1);
            line.extend_from_slice(format!(" {}", self.stamped).as_bytes());
        }
    }

    /// The number of the line given last, from 1, empty lines counted too.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Puts the next line into `line`, without its `\n`.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<Next, SendError> {
        let mut ended = false;
        loop {
            let whole = (self.line_end)(&self.held).or_else(|| {
                let no_more = (ended && !self.held.is_empty()) || self.held.len() > LINE_BYTES_MAX;
                let newline = || memchr::memchr(b'\n', &self.held).unwrap_or(self.held.len());
                no_more.then(newline)
            });
            if let Some(end) = whole {
                line.clear();
                line.extend_from_slice(&self.held[..end]);
                self.held.drain(..self.held.len().min(end + 1));
                self.number = self.passed + 1;
                self.passed += 1 + memchr::memchr_iter(b'\n', line).count() as u64;
                if line.len() > LINE_BYTES_MAX {
                    return Err(SendError::LineTooLong { line: self.number });
                }
                if !line.trim_ascii().is_empty() {
                    self.stamp(line);
                    return Ok(Next::Line);
                }
                continue;
            }
            if ended {
                return Ok(Next::End);
            }
            if !self.paused && memchr::memchr(b'\n', self.input.buffer()).is_none() {
                self.paused = true;
                return Ok(Next::Pause);
            }
            // Enough to see that a line is too long, without reading on to an end that may never come.
            let most = LINE_BYTES_MAX as u64 + 2;
            let read = (&mut self.input)
                .take(most)
                .read_until(b'\n', &mut self.held)
                .map_err(|source| SendError::Input { line: self.passed + 1, source })?;
            self.paused = false;
            ended = (read as u64) < most && self.held.last() != Some(&b'\n') || read == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule as the service has it: a line ends at a `\n` that is in no quotes.
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

    /// Gives its pieces one a read, as a pipe does.
    struct Pipe(Vec<&'static str>);

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            self.0.remove(0).as_bytes().read(buffer)
        }
    }

    fn all(input: impl Read) -> Result<Vec<String>, SendError> {
        let mut lines = Lines::new(input, unquoted);
        let (mut line, mut all) = (Vec::new(), Vec::new());
        loop {
            match lines.next(&mut line)? {
                Next::Line => all.push(String::from_utf8(line.clone()).unwrap()),
                Next::Pause => all.push("pause".to_owned()),
                Next::End => return Ok(all),
            }
        }
    }

    #[test]
    fn lines_are_given_unchanged_and_empty_ones_skipped() {
        let given = all("a 1 \r\n\n\r\n#x\n b\nlast".as_bytes()).unwrap();
        assert_eq!(given, ["a 1 \r", "#x", " b", "pause", "last", "pause"]);
    }

    #[test]
    fn lines_that_lack_a_timestamp_get_one_each() {
        let before = now_nanos();
        let lacks_timestamp = |line: &[u8]| !line.starts_with(b"#") && !line.ends_with(b" 7");
        let input = "a value=u\na value=u\r\na value=u 7\n#x\n".as_bytes();
        let mut lines = Lines::new(input, unquoted).stamping(lacks_timestamp);
        let (mut line, mut stamps) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            while lines.next(&mut line).unwrap() == Next::Pause {}
            let text = str::from_utf8(&line).unwrap();
            let stamp = text.strip_prefix("a value=u ").unwrap();
            stamps.push(stamp.parse::<i64>().unwrap());
        }
        assert!(before <= stamps[0] && stamps[0] < stamps[1], "{stamps:?}");
        for expected in ["a value=u 7", "#x"] {
            while lines.next(&mut line).unwrap() == Next::Pause {}
            assert_eq!(line, expected.as_bytes());
        }
    }

    #[test]
    fn a_slow_writer_does_not_hold_up_what_it_wrote() {
        let given = all(Pipe(vec!["a\nb\n", "c\nd", "e\n"])).unwrap();
        assert_eq!(given, ["a", "b", "pause", "c", "pause", "de", "pause"]);
    }

    #[test]
    fn a_line_end_inside_a_quoted_field_belongs_to_the_line() {
        let (quoted, bare) = ("a=1 note=\"\n\n\",value=u", "b=1 value=v");
        let mut lines =
            Lines::new(quoted.as_bytes().chain(&b"\n"[..]).chain(bare.as_bytes()), unquoted);
        let mut line = Vec::new();
        for (expected, number) in [(quoted, 1), (bare, 4)] {
            while lines.next(&mut line).unwrap() == Next::Pause {}
            assert_eq!((&*line, lines.number()), (expected.as_bytes(), number));
        }
        let unclosed = "a=1 value=\"u\nb=1 value=v\n\nc=1 value=w";
        let lines: Vec<_> = unclosed.lines().filter(|it| !it.is_empty()).collect();
        let mut given = all(unclosed.as_bytes()).unwrap();
        given.retain(|it| it != "pause");
        assert_eq!(given, lines);
        // No end of the quote can come any more that fits a datagram.
        let endless = (&b"a=1 value=\"\n"[..]).chain(std::io::repeat(b'\n'));
        let mut endless = Lines::new(endless, unquoted);
        while endless.next(&mut line).unwrap() == Next::Pause {}
        assert_eq!(line, b"a=1 value=\"");
    }

    #[test]
    fn a_line_that_fits_no_datagram_is_named() {
        let longest = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(all(format!("{longest}\n").as_bytes()).unwrap()[0], longest);
        let error = all(format!("a\n\n{longest}x\n").as_bytes()).unwrap_err();
        assert!(matches!(error, SendError::LineTooLong { line: 3 }), "{error}");
    }
}
