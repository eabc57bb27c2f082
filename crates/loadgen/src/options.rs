//! The flags of the command that sends, and their defaults.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::draw::Share;
use super::start::Start;
use super::synthetic::{LINES_PER_DATAGRAM, REPEAT_SHARE_MAX};

const TO: &str = "127.0.0.1:8094";
const SERIES: NonZeroU32 = nonzero(50);
const USERS: NonZeroU32 = nonzero(10_000);
const MINUTES: NonZeroU32 = nonzero(1);
const REPEAT: &str = "0.01";
/// Well below what one node takes in, so that nobody loses events who has not asked for speed.
const RATE: u64 = 20_000;

/// A node that is started just before listens well within this, unless its host is very busy.
const WAIT: Duration = Duration::from_secs(5);

const fn nonzero(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

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
#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Options {
    /// Where to send; may be given several times, and each address gets a copy of every datagram.
    /// Of a name with several addresses the first is used, IPv4 before IPv6
    #[arg(long, value_name = "HOST:PORT|unix:/PATH", default_value = TO)]
    pub to: Vec<String>,

    /// Events a second, not counting copies; 0 for as fast as it goes
    #[arg(long, value_name = "EVENTS/S", default_value_t = RATE)]
    pub rate: u64,

    /// How long to wait at the start for addresses of this host (loopback or unix:) at which nobody listens yet
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    pub wait: Duration,

    /// The most lines in one datagram. It stays within 1400 bytes unless one line alone is longer
    #[arg(long, value_name = "N", default_value_t = LINES_PER_DATAGRAM)]
    pub lines_per_datagram: NonZeroUsize,

    /// The share of copies that are not sent, drawn for each datagram and address, so that nodes receive different
    /// events
    #[arg(long, value_name = "SHARE", default_value_t = Share::NONE)]
    pub drop_rate: Share,

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
    #[arg(long, value_name = "N", default_value_t = SERIES, requires = "events", help_heading = "Synthetic load")]
    pub series: NonZeroU32,

    /// How many different users each series has, at most
    #[arg(long, value_name = "N", default_value_t = USERS, requires = "events", help_heading = "Synthetic load")]
    pub users: NonZeroU32,

    /// Spread the events over this many minutes
    #[arg(long, value_name = "M", default_value_t = MINUTES, requires = "events", help_heading = "Synthetic load")]
    pub minutes: NonZeroU32,

    /// When the first of the minutes begins: a date like 2016-12-04T18:38:00Z, `now`, or before now like `-10m`;
    /// rounded down to a whole minute [default: as long ago as --minutes lasts]
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub start: Option<Start>,

    /// The share of events that are an exact repeat of one shortly before: the same series, user and timestamp,
    /// which must count once. At most 0.9
    #[arg(
        long,
        value_name = "SHARE",
        default_value = REPEAT,
        value_parser = parse_repeat,
        requires = "events",
        help_heading = "Synthetic load"
    )]
    pub repeat: Share,

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

/// The same as no flags on the command line.
impl Default for Options {
    fn default() -> Self {
        Self {
            to: vec![TO.to_owned()],
            rate: RATE,
            wait: WAIT,
            lines_per_datagram: LINES_PER_DATAGRAM,
            drop_rate: Share::NONE,
            expected: None,
            no_stamp: false,
            quiet: false,
            seed: None,
            events: None,
            series: SERIES,
            users: USERS,
            minutes: MINUTES,
            start: None,
            repeat: REPEAT.parse().unwrap_or_default(),
            shuffle: false,
            realtime: false,
        }
    }
}

fn parse_repeat(text: &str) -> Result<Share, String> {
    let share: Share = text.parse().map_err(|error| format!("{error}"))?;
    if share > share.at_most(REPEAT_SHARE_MAX) {
        return Err("at most 0.9: the others need something to repeat".to_owned());
    }
    Ok(share)
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
    fn no_flags_are_the_default() {
        assert_eq!(format!("{:?}", parse("").unwrap()), format!("{:?}", Options::default()));
    }

    #[test]
    fn flags_arrive() {
        let options =
            parse("--to a:1 --to [::1]:2 --events 5 --start -10m --repeat 0.5 --shuffle").unwrap();
        assert_eq!(options.to, ["a:1", "[::1]:2"]);
        assert_eq!(options.events, Some(5));
        assert_eq!(options.start, Some(Start::Ago(Duration::from_secs(600))));
        assert!(options.shuffle);
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
}
