//! Lines from standard input, or from anything that is read.

use std::io::{BufRead, BufReader, Read};

use super::SendError;
use super::datagram::LINE_BYTES_MAX;

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

/// Splits its input at `\n` and skips empty lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: BufReader<R>,
    number: u64,
    paused: bool,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        // Nothing was given yet that could be sent first.
        Self {
            input: BufReader::new(input),
            number: 0,
            paused: true,
        }
    }

    /// The number of the line given last, from 1, empty lines counted too.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Puts the next line into `line`, without its `\n`.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<Next, SendError> {
        loop {
            if !self.paused && memchr::memchr(b'\n', self.input.buffer()).is_none() {
                self.paused = true;
                return Ok(Next::Pause);
            }
            line.clear();
            self.number += 1;
            // Enough to see that a line is too long, without reading on to an end that may never come.
            let most = LINE_BYTES_MAX as u64 + 2;
            let read = (&mut self.input)
                .take(most)
                .read_until(b'\n', line)
                .map_err(|source| SendError::Input {
                    line: self.number,
                    source,
                })?;
            if read == 0 {
                return Ok(Next::End);
            }
            self.paused = false;
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(SendError::LineTooLong { line: self.number });
            }
            if !line.is_empty() && line != b"\r" {
                return Ok(Next::Line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut lines = Lines::new(input);
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
    fn a_slow_writer_does_not_hold_up_what_it_wrote() {
        let given = all(Pipe(vec!["a\nb\n", "c\nd", "e\n"])).unwrap();
        assert_eq!(given, ["a", "b", "pause", "c", "pause", "de", "pause"]);
    }

    #[test]
    fn a_line_that_fits_no_datagram_is_named() {
        let longest = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(all(format!("{longest}\n").as_bytes()).unwrap()[0], longest);
        let error = all(format!("a\n\n{longest}x\n").as_bytes()).unwrap_err();
        assert!(
            matches!(error, SendError::LineTooLong { line: 3 }),
            "{error}"
        );
    }
}
