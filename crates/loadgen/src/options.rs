//! The flags of `eds send`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use chrono::DateTime;
use clap::{Args, FromArgMatches};

use super::now_nanos;
use super::rollup::Rollup;
use super::synthetic::REPEAT_SHARE_MAX;

const LOAD: &str = "Synthetic load";

/// Sends events over UDP, to Unix sockets or by HTTP: lines from standard input, or with --events a synthetic load.
///
/// Every address gets a copy of each datagram. UDP does not report what arrived, so a datagram that did not fit in the
/// receive buffer counts as sent; lower --rate to avoid this. A full Unix socket blocks the sender.
///
/// Copies to an address on which no process is listening count as refused if the network reports the refusal. Refusals
/// by addresses on this host are always reported. Events refused by every address are left out of the expected counts.
///
/// Exit code 0: all copies were sent; 1: some could not be sent or were refused; 130 or 143: stopped by Ctrl-C or
/// SIGTERM; the summary and the expected counts cover the events sent before that.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Options {
    /// Address to send to. Can be repeated; each address gets a copy of every datagram. If a name has several addresses, the
    /// first one is used, IPv4 before IPv6
    #[arg(long, value_name = "HOST:PORT|unix:/PATH", default_value = "127.0.0.1:8094")]
    pub to: Vec<String>,

    /// Send by HTTP to this server instead (input.http.listen of a node or relay), and repeat each request until it is
    /// recorded. Can be repeated; the servers are alternatives, each tried when the one before does not record the request
    #[arg(long, value_name = "URL", conflicts_with_all = ["to", "drop_rate", "lines_per_datagram", "wait"])]
    pub http: Vec<String>,

    /// Number of lines per request
    #[arg(long, value_name = "N", default_value = "5000", requires = "http")]
    pub lines_per_request: NonZeroUsize,

    /// File that contains the token for --http
    #[arg(long, value_name = "FILE", requires = "http")]
    pub token_file: Option<PathBuf>,

    /// Events per second, not counting copies; 0 means no limit
    // A single node can receive events at several times the default rate without loss.
    #[arg(long, value_name = "EVENTS/S", default_value_t = 20_000)]
    pub rate: u64,

    /// How long to wait at startup for a process to listen on an address of this host (loopback or unix:)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    pub wait: Duration,

    /// Maximum number of lines per datagram. A datagram has at most 1400 bytes, unless a single line is longer
    #[arg(long, value_name = "N", default_value = "15")]
    pub lines_per_datagram: NonZeroUsize,

    /// Share of copies that are dropped instead of sent, chosen at random for each datagram and address, so that nodes
    /// receive different events
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub drop_rate: f64,

    /// Write to this file the exact counts that the nodes must publish, as sorted output lines.
    /// An event counts if at least one copy of it was sent. Lines from standard input must have a timestamp in nanoseconds
    /// and the user field `value`, and must not have escapes. Takes 16 to 32 bytes of memory per event, and at the end up to
    /// 64, because the counts are checked against those of hours and a day
    #[arg(long, value_name = "FILE")]
    pub expected: Option<PathBuf>,

    /// Also write the counts of a rollup to the --expected file. Can be repeated. The keys are those of rollups in the
    /// configuration, except for the limits; lists have commas
    #[arg(long, value_name = "NAME [KEY=VALUE…]", requires = "expected")]
    pub rollup: Vec<Rollup>,

    /// Do not add timestamps. By default, lines from standard input without a timestamp get the time at which they are read,
    /// in nanoseconds, so that all nodes count their copies as one event
    #[arg(long)]
    pub no_stamp: bool,

    /// Print only the summary, and no startup message, progress bar or warnings
    #[arg(long)]
    pub quiet: bool,

    /// Seed for all random choices. The same seed and options, with a date for --start, send the same bytes
    /// [default: random, and printed]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,

    /// Send this many synthetic events instead of standard input
    #[arg(long, value_name = "N", help_heading = LOAD)]
    pub events: Option<u64>,

    /// Maximum number of series
    #[arg(long, value_name = "N", default_value = "50", requires = "events", help_heading = LOAD)]
    pub series: NonZeroU32,

    /// Maximum number of users per series
    #[arg(long, value_name = "N", default_value = "10000", requires = "events", help_heading = LOAD)]
    pub users: NonZeroU32,

    /// Spread the events over this many minutes
    #[arg(long, value_name = "M", default_value = "1", requires = "events", help_heading = LOAD)]
    pub minutes: NonZeroU32,

    /// Start of the first minute: a date such as 2016-12-04T18:38:00Z, `now`, or a time before now such as `-10m`;
    /// rounded down to a whole minute [default: --minutes before now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "events", help_heading = LOAD)]
    #[arg(value_parser = |text: &str| start(text, now_nanos()))]
    pub start: Option<i64>,

    /// Share of events that exactly repeat a recent event (same series, user and timestamp), which must count only
    /// once. At most 0.9
    #[arg(long, value_name = "SHARE", default_value = "0.01", requires = "events", help_heading = LOAD)]
    #[arg(value_parser = repeat)]
    pub repeat: f64,

    /// Send the events in random order instead of chronological order. Takes 8 bytes of memory per event
    #[arg(long, requires = "events", help_heading = LOAD)]
    pub shuffle: bool,

    /// Give each event the time at which it is sent instead of spreading the events over --minutes
    #[arg(long, requires = "events", help_heading = LOAD)]
    #[arg(conflicts_with_all = ["minutes", "start", "shuffle"])]
    pub realtime: bool,
}

impl Default for Options {
    fn default() -> Self {
        let command = Self::augment_args(clap::Command::new("send"));
        let options = Self::from_arg_matches(&command.get_matches_from(["send"]));
        options.unwrap_or_else(|error| error.exit())
    }
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or("expected a number from 0 to 1, for example 0.01")
}

fn repeat(text: &str) -> Result<f64, &'static str> {
    let share = share(text)?;
    if share > REPEAT_SHARE_MAX {
        return Err("expected a number from 0 to 0.9, for example 0.01");
    }
    Ok(share)
}

/// Parses the start time of a load, in nanoseconds since the epoch.
fn start(text: &str, now_nanos: i64) -> Result<i64, &'static str> {
    let before_now =
        |ago: Duration| now_nanos.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX));
    let start = match text.strip_prefix('-') {
        None if text == "now" => Some(now_nanos),
        Some(ago) => humantime::parse_duration(ago).ok().map(before_now),
        None => DateTime::parse_from_rfc3339(text).ok().and_then(|date| date.timestamp_nanos_opt()),
    };
    start.ok_or(
        "expected `now`, a time before now such as `-10m`, or a date such as 2016-12-04T18:38:00Z",
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn parse(flags: &str) -> Result<Options, clap::Error> {
        let arguments = std::iter::once("send").chain(flags.split_whitespace());
        Command::try_parse_from(arguments).map(|command| command.options)
    }

    #[test]
    fn flags_are_parsed() {
        let options = parse(
            "--to a:1 --to [::1]:2 --events 5 --start 1970-01-01T00:00:07Z --repeat 0.5 --shuffle",
        )
        .unwrap();
        assert_eq!(options.to, ["a:1", "[::1]:2"]);
        assert_eq!(options.events, Some(5));
        assert_eq!(options.start, Some(7_000_000_000));
        assert!(options.shuffle);
        assert!(parse("--events 1 --start -10m").is_ok());
    }

    #[test]
    fn invalid_flags_are_refused() {
        for flags in [
            "--series 3",
            "--events 1 --series 0",
            "--events 1 --repeat 0.91",
            "--events 1 --realtime --shuffle",
            "--rollup hourly",
            "--expected x --rollup every=1h",
            "--events 1 --realtime --minutes 2",
            "--drop-rate 2",
            "--lines-per-datagram 0",
        ] {
            assert!(parse(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn shares_outside_0_to_1_are_refused() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%"] {
            assert!(share(text).is_err(), "{text:?}");
        }
        assert_eq!(share("0.25"), Ok(0.25));
    }

    #[test]
    fn a_load_starts_at_a_date_or_before_now() {
        let start = |text| start(text, 7_000_000_000);
        assert_eq!(start("now"), Ok(7_000_000_000));
        assert_eq!(start("-2s"), Ok(5_000_000_000));
        assert_eq!(start("2016-12-04T18:38:00Z"), Ok(1_480_876_680_000_000_000));
        assert_eq!(start("2016-12-04T19:38:00+01:00"), Ok(1_480_876_680_000_000_000));
        for text in ["", "10m", "-", "then", "3000-01-01T00:00:00Z"] {
            assert!(start(text).is_err(), "{text:?}");
        }
    }
}
