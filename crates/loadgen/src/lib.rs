//! A load generator for services that count events: lines from standard input or a seeded synthetic load, over UDP or Unix
//! sockets to any number of addresses, with a file of the exact counts that must come out.
//!
//! `source` gives a line, `pacer` says when, `datagram` packs it, and `sender` copies each full datagram to all `targets`, but
//! for the copies that the drop rate takes out. `expected` counts a line when at least one copy of its datagram was sent.
//!
//! It shares no code with the service, so that both cannot be wrong in the same way. Only where a line ends is the service's
//! rule: callers pass it, and whether it has a timestamp, as [`LineRules`].
//!
//! It blocks: one thread that sleeps, reads and sends needs no runtime.

mod ages;
mod datagram;
mod draw;
mod expected;
mod lines;
mod options;
mod pacer;
mod progress;
mod realtime;
mod sender;
mod shuffle;
mod source;
mod start;
mod stop;
mod summary;
mod synthetic;
mod targets;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};

pub use ages::{MAX_AGE, MAX_FUTURE};
pub use draw::{ParseShareError, Share};
pub use expected::{Counts, Expected, NotSimple};
pub use options::Options;
pub use start::{ParseStartError, Start};
pub use summary::Summary;
pub use synthetic::{Event, Plan, Synthetic};

use sender::Sender;
use source::Source;
use stop::{Input, Stop};

/// What the service knows of lines.
#[derive(Debug, Clone, Copy)]
pub struct LineRules {
    /// How many bytes the first line takes, without its end; `None` while that is not known before more bytes come.
    pub end: fn(&[u8]) -> Option<usize>,
    /// Whether a line is an event that has no timestamp, and that takes one at its end.
    pub lacks_timestamp: fn(&[u8]) -> bool,
}

const MINUTE_NANOS: i64 = 60_000_000_000;

/// Why sending did not begin, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// An address that is none, or a name that nobody knows.
    #[error("cannot resolve `{to}`, expected HOST:PORT or unix:/PATH: {source}")]
    Resolve {
        /// As it was given.
        to: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No address at all.
    #[error("there is no address to send to")]
    NoAddress,
    /// No socket, for example because this host has no IPv6.
    #[error("cannot open a socket to send to {address}: {source}")]
    Socket {
        /// Where to.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The synthetic load begins before 1970 or ends after 2262, beyond what a timestamp can say.
    #[error("the minutes of the load must lie between the years 1970 and 2262")]
    Span,
    /// The input broke off.
    #[error("cannot read line {line}: {source}")]
    Input {
        /// Counted from 1.
        line: u64,
        /// What reading it said.
        source: io::Error,
    },
    /// A line longer than any datagram. Those before it are sent.
    #[error("line {line} is longer than 65507 bytes, the most that a datagram holds")]
    LineTooLong {
        /// Counted from 1.
        line: u64,
    },
    /// The system gives no thread or no signals.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// A line whose count is not certain, while expected counts are wanted. Their file is left empty.
    #[error("the counts of line {line} are not certain: {source}")]
    NotSimple {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        source: NotSimple,
    },
    /// The file of expected counts cannot be written.
    #[error("cannot write the expected counts to {}: {source}", path.display())]
    Expected {
        /// Which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Sends what the options say, and returns when it is sent. Reports its progress on standard error. Without `events`,
/// lines come from standard input. SIGINT and SIGTERM end it early, in order; a second one ends the process.
///
/// A datagram that cannot be sent is counted in the summary and is no error.
pub fn run(options: &Options, rules: LineRules) -> Result<Summary, SendError> {
    let is_typed = options.events.is_none() && io::stdin().is_terminal();
    let stop = Stop::by_signals()?;
    if options.events.is_some() {
        return send(options, io::empty(), rules, is_typed, stop);
    }
    let input = Input::new(io::stdin(), stop.clone())?;
    send(options, input, rules, is_typed, stop)
}

/// The same as [`run`], with lines from this input instead of standard input, and without regard to signals.
pub fn run_from(
    options: &Options,
    input: impl Read,
    rules: LineRules,
) -> Result<Summary, SendError> {
    send(options, input, rules, false, Stop::default())
}

fn send(
    options: &Options,
    input: impl Read,
    rules: LineRules,
    is_typed: bool,
    stop: Stop,
) -> Result<Summary, SendError> {
    let seed = options.seed.unwrap_or_else(rand::random);
    let (source, what) = match options.events {
        None if is_typed => {
            let what = "what you type here, a line an event, until Ctrl-D,";
            (Source::lines(input, rules, !options.no_stamp), what.to_owned())
        }
        None => {
            (Source::lines(input, rules, !options.no_stamp), "lines of standard input".to_owned())
        }
        Some(events) => {
            let plan = plan(options, events, seed, now_nanos())?;
            (Source::synthetic(Synthetic::new(plan), options.realtime), describe(options, &plan))
        }
    };
    let sender = Sender::open(options, seed, stop)?;
    if !options.quiet {
        eprintln!("sending {what} to {}, seed {seed}", sender.addresses());
    }
    let summary = sender.send_all(source, is_typed)?;
    eprintln!("{summary}");
    Ok(summary)
}

fn plan(options: &Options, events: u64, seed: u64, now_nanos: i64) -> Result<Plan, SendError> {
    let span_nanos = i64::from(options.minutes.get()).checked_mul(MINUTE_NANOS);
    let span_nanos = span_nanos.ok_or(SendError::Span)?;
    let start_nanos =
        options.start.map_or(now_nanos.saturating_sub(span_nanos), |start| start.nanos(now_nanos));
    let start_nanos = start_nanos - start_nanos.rem_euclid(MINUTE_NANOS);
    if start_nanos < 0 || start_nanos.checked_add(span_nanos).is_none() {
        return Err(SendError::Span);
    }
    Ok(Plan {
        seed,
        events,
        series: options.series,
        users: options.users,
        start_nanos,
        span_nanos,
        repeat: options.repeat,
        shuffle: options.shuffle && !options.realtime,
    })
}

/// What of the load is not on the command line when it is left to its default.
fn describe(options: &Options, plan: &Plan) -> String {
    let events = plan.events;
    if options.realtime {
        return format!("{events} events as of now");
    }
    let start = DateTime::from_timestamp_nanos(plan.start_nanos);
    format!("{events} events from {}", start.to_rfc3339_opts(SecondsFormat::Secs, true))
}

/// Nanoseconds since the epoch.
fn now_nanos() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_480_876_707_352_348_928;

    #[test]
    fn a_load_begins_with_a_minute_and_by_default_ends_before_now() {
        let plan = plan(&Options::default(), 1, 0, NOW).unwrap();
        assert_eq!(plan.start_nanos, 1_480_876_620_000_000_000);
        assert_eq!(plan.span_nanos, MINUTE_NANOS);
        assert_eq!(describe(&Options::default(), &plan), "1 events from 2016-12-04T18:37:00Z");
    }

    #[test]
    fn a_load_outside_of_time_is_refused() {
        for start in [-1, i64::MAX - 1] {
            let options = Options { start: Some(Start::At(start)), ..Options::default() };
            assert!(matches!(plan(&options, 1, 0, NOW), Err(SendError::Span)), "{start}");
        }
    }

    #[test]
    fn a_line_without_a_certain_count_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let expected = directory.path().join("expected");
        let options = Options {
            to: vec!["127.0.0.1:9".into()],
            expected: Some(expected),
            ..Options::default()
        };
        let rules =
            LineRules { end: |bytes| memchr::memchr(b'\n', bytes), lacks_timestamp: |_| false };
        let input = "a=1 value=x 5\n\na=1 value=x\n".as_bytes();
        let error = run_from(&options, input, rules).unwrap_err();
        let message =
            "the counts of line 3 are not certain: expected `<tags> value=<user> <timestamp>`";
        assert_eq!(error.to_string(), message);
    }
}
