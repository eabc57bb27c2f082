//! A load generator for services that count events. It sends lines from standard input, or a seeded synthetic load, over UDP
//! or Unix sockets, and writes a file with the exact counts that the service must write. It shares no code with the service,
//! so that the two cannot have the same bug; callers pass the rules for lines as [`LineRules`].

mod ages;
mod datagram;
mod draw;
mod expected;
mod options;
mod pacer;
mod requests;
mod rollup;
mod sender;
mod source;
mod summary;
mod synthetic;
mod targets;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use chrono::{DateTime, SecondsFormat};

pub use ages::{MAX_AGE, MAX_FUTURE};
pub use expected::{Expected, Inconsistent, NotSimple};
pub use options::Options;
pub use rollup::Rollup;
pub use summary::Summary;
pub use synthetic::{Event, Plan, Synthetic};

use sender::Sender;
use source::{Lines, Source, Stop};

/// The service's rules for splitting input into lines and for finding lines without a timestamp.
#[derive(Debug, Clone, Copy)]
pub struct LineRules {
    /// Returns the length of the first line without its newline; `None` if more bytes are needed.
    pub end: fn(&[u8]) -> Option<usize>,
    /// Returns whether a line is an event without a timestamp.
    pub lacks_timestamp: fn(&[u8]) -> bool,
}

const MINUTE_NANOS: i64 = 60_000_000_000;

/// Why sending did not start, or stopped early. Line numbers start at 1.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SendError {
    #[error("cannot resolve `{0}`, expected HOST:PORT or unix:/PATH: {1}")]
    Resolve(String, #[source] io::Error),
    #[error("cannot open a socket to send to {0}: {1}")]
    Socket(String, #[source] io::Error),
    #[error("the load must be between the years 1970 and 2262")]
    Span,
    #[error("cannot read line {0}: {1}")]
    Input(u64, #[source] io::Error),
    /// All earlier lines have been sent.
    #[error("line {0} has more than 65507 bytes, the maximum size of a datagram")]
    LineTooLong(u64),
    /// A thread or signal handler could not be created.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// The file for the expected counts is left empty.
    #[error("cannot compute the expected counts for line {0}: {1}")]
    NotSimple(u64, #[source] NotSimple),
    /// The file for the expected counts is left empty.
    #[error("the expected counts are wrong, which is a bug in this program: {0}")]
    Inconsistent(#[from] Inconsistent),
    #[error("cannot read the token in {}: {}", .0.display(), .1)]
    Token(PathBuf, #[source] io::Error),
    #[error("cannot write the expected counts to {}: {}", .0.display(), .1)]
    Expected(PathBuf, #[source] io::Error),
}

/// Sends the events selected by the options, until all of them have been sent or SIGINT or SIGTERM arrives; a second signal
/// exits immediately. Copies that cannot be sent are not an error; the summary contains their number.
pub fn run(options: &Options, rules: LineRules) -> Result<Summary, SendError> {
    let is_typed = options.events.is_none() && io::stdin().is_terminal();
    send(options, io::stdin(), rules, is_typed, Stop::by_signals()?)
}

/// Like [`run`], but reads lines from this input and does not install signal handlers.
pub fn run_from(
    options: &Options,
    input: impl Read + Send + 'static,
    rules: LineRules,
) -> Result<Summary, SendError> {
    send(options, input, rules, false, Stop::default())
}

fn send(
    options: &Options,
    input: impl Read + Send + 'static,
    rules: LineRules,
    is_typed: bool,
    stop: Stop,
) -> Result<Summary, SendError> {
    let seed = options.seed.unwrap_or_else(rand::random);
    let (source, description) = match options.events {
        None => {
            let lacks_timestamp =
                if options.no_stamp { |_: &_| false } else { rules.lacks_timestamp };
            let lines = Lines::read(input, LineRules { lacks_timestamp, ..rules })?;
            let description = if is_typed {
                "the lines that you type (one event each, Ctrl-D to end)"
            } else {
                "lines from standard input"
            };
            (Source::Lines(lines), description.to_owned())
        }
        Some(events) => {
            let plan = plan(options, events, seed, now_nanos())?;
            let load = Synthetic::new(plan);
            let source =
                if options.realtime { Source::Realtime(load) } else { Source::Synthetic(load) };
            (source, describe(options, &plan))
        }
    };
    let sender = Sender::open(options, seed, stop)?;
    if !options.quiet {
        eprintln!("sending {description} to {}, seed {seed}", sender.addresses());
    }
    let summary = sender.send_all(source, is_typed)?;
    eprintln!("{summary}");
    Ok(summary)
}

fn plan(options: &Options, events: u64, seed: u64, now_nanos: i64) -> Result<Plan, SendError> {
    let span_nanos = i64::from(options.minutes.get()).checked_mul(MINUTE_NANOS);
    let span_nanos = span_nanos.ok_or(SendError::Span)?;
    let start_nanos = options.start.unwrap_or_else(|| now_nanos.saturating_sub(span_nanos));
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

fn describe(options: &Options, plan: &Plan) -> String {
    let events = plan.events;
    if options.realtime {
        return format!("{events} events with the current time");
    }
    let start = DateTime::from_timestamp_nanos(plan.start_nanos);
    format!("{events} events from {}", start.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn now_nanos() -> i64 {
    let since_epoch = UNIX_EPOCH.elapsed().unwrap_or_default();
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
    fn a_load_outside_the_range_of_timestamps_is_refused() {
        for start in [-1, i64::MAX - 1] {
            let options = Options { start: Some(start), ..Options::default() };
            assert!(matches!(plan(&options, 1, 0, NOW), Err(SendError::Span)), "{start}");
        }
    }

    #[test]
    fn line_without_a_defined_count_is_named() {
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
        let message = "cannot compute the expected counts for line 3: expected `<tags> value=<user> <timestamp>`";
        assert_eq!(error.to_string(), message);
    }
}
