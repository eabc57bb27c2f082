//! The flags of the command that sends.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use chrono::DateTime;
use clap::{Args, FromArgMatches};

use super::now_nanos;
use super::synthetic::REPEAT_SHARE_MAX;

/// Sends events over UDP or to Unix sockets: lines from standard input, or with --events a synthetic load.
///
/// Each datagram is copied to every address. UDP tells no sender what arrived: a datagram that the receiver had
/// no room for counts as sent. A lower --rate helps. A Unix socket without room makes the sender wait.
///
/// Copies that nobody took, because nobody listens at an address, count as refused and not as sent, as far as the network
/// reports them: on this host all of them. An event refused by every address is not expected to be counted.
///
/// Exit code 0: all was sent; 1: something could not be, or nobody listens at an address; 130 or 143: stopped by Ctrl-C or
/// SIGTERM, with the summary and the expected counts of what was sent until then.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Options {
    /// Where to send; may be given several times, and each address gets a copy of every datagram.
    /// Of a name with several addresses the first is used, IPv4 before IPv6
    #[arg(long, value_name = "HOST:PORT|unix:/PATH", default_value = "127.0.0.1:8094")]
    pub to: Vec<String>,

    /// Events a second, not counting copies; 0 for as fast as it goes
    // Well below what one node takes in, so that no events are lost unless the user asks for speed.
    #[arg(long, value_name = "EVENTS/S", default_value_t = 20_000)]
    pub rate: u64,

    /// How long to wait at the start for addresses of this host (loopback or unix:) at which nobody listens yet
    // A node that was just started listens well within this, unless its host is very busy.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    pub wait: Duration,

    /// The most lines in one datagram. It stays within 1400 bytes unless one line alone is longer
    #[arg(long, value_name = "N", default_value = "15")]
    pub lines_per_datagram: NonZeroUsize,

    /// The share of copies that are not sent, drawn for each datagram and address, so that nodes receive different
    /// events
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    pub drop_rate: f64,

    /// Write the exact counts that must come out to this file: one line of output a count, sorted bytewise.
    /// An event counts when at least one address was sent a copy. Lines from standard input must then have
    /// a timestamp in nanoseconds, the user field `value`, and no escapes. Takes 16 to 32 bytes of memory an
    /// event
    #[arg(long, value_name = "FILE")]
    pub expected: Option<PathBuf>,

    /// Leave lines of standard input without a timestamp as they are. Otherwise they get the time at which they are read, in
    /// nanoseconds, so that their copies are one event at all nodes
    #[arg(long)]
    pub no_stamp: bool,

    /// No progress bar, no opening line and no warnings; the closing summary alone
    #[arg(long)]
    pub quiet: bool,

    /// Decides every choice made by chance. The same seed and options, with --start at a date, send the same
    /// bytes [default: drawn, and printed]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,

    /// Send this many synthetic events and leave standard input alone
    #[arg(long, value_name = "N", help_heading = "Synthetic load")]
    pub events: Option<u64>,

    /// How many different series there are, at most
    #[arg(
        long,
        value_name = "N",
        default_value = "50",
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub series: NonZeroU32,

    /// How many different users each series has, at most
    #[arg(
        long,
        value_name = "N",
        default_value = "10000",
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub users: NonZeroU32,

    /// Spread the events over this many minutes
    #[arg(
        long,
        value_name = "M",
        default_value = "1",
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub minutes: NonZeroU32,

    /// When the first of the minutes begins: a date like 2016-12-04T18:38:00Z, `now`, or before now like `-10m`;
    /// rounded down to a whole minute [default: as long ago as --minutes lasts]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = |text: &str| start(text, now_nanos()),
        allow_hyphen_values = true,
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub start: Option<i64>,

    /// The share of events that are an exact repeat of one shortly before: the same series, user and timestamp,
    /// which must count once. At most 0.9
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0.01",
        value_parser = repeat,
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub repeat: f64,

    /// Send the events in a random order instead of by time
    #[arg(long, requires = "events", help_heading = "Synthetic load")]
    pub shuffle: bool,

    /// Events happen at the moment they are sent, instead of spread over --minutes
    #[arg(
        long,
        requires = "events",
        conflicts_with_all = ["minutes", "start", "shuffle"],
        help_heading = "Synthetic load"
    )]
    pub realtime: bool,
}

impl Default for Options {
    /// Returns the options without any flags.
    fn default() -> Self {
        let command = Self::augment_args(clap::Command::new("send"));
        let options = Self::from_arg_matches(&command.get_matches_from(["send"]));
        options.unwrap_or_else(|error| error.exit())
    }
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or("a share is a number from 0 to 1, for example 0.01")
}

fn repeat(text: &str) -> Result<f64, &'static str> {
    let share = share(text)?;
    if share > REPEAT_SHARE_MAX {
        return Err("at most 0.9: the others need something to repeat");
    }
    Ok(share)
}

/// Reads the time at which a load begins, in nanoseconds since the epoch.
fn start(text: &str, now_nanos: i64) -> Result<i64, &'static str> {
    let before_now =
        |ago: Duration| now_nanos.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX));
    let start = match text.strip_prefix('-') {
        None if text == "now" => Some(now_nanos),
        Some(ago) => humantime::parse_duration(ago).ok().map(before_now),
        None => DateTime::parse_from_rfc3339(text).ok().and_then(|date| date.timestamp_nanos_opt()),
    };
    start
        .ok_or("expected `now`, a time before now like `-10m`, or a date like 2016-12-04T18:38:00Z")
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
    fn flags_arrive() {
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
    fn flags_that_make_no_sense_are_refused() {
        for flags in [
            "--series 3",
            "--events 1 --series 0",
            "--events 1 --repeat 0.91",
            "--events 1 --realtime --shuffle",
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
