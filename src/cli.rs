//! The command line and its exit codes.
//!
//! 0 is success, 1 a failure, 2 a mistake in the arguments or the configuration, 3 a node or relay that ended and lost events.
//! `eds send` that is stopped by a signal ends with 128 plus its number.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::{self, Config, ConfigErrors, Effective, Flags, RelayFlags};
use crate::daemon::Shown;
use crate::event::datagram::first_line;
use crate::event::{LineRules, Parser as LineParser};
use crate::{daemon, quarantine, text};

/// The rules of `eds send` for lines.
const LINE_RULES: loadgen::LineRules = loadgen::LineRules { end: first_line, lacks_timestamp };

const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const LOST: u8 = 3;

/// Exact counts of events and of distinct users, per minute and series, from UDP lines that reach any number
/// of nodes
#[derive(Parser)]
#[command(name = "eds", version = crate::BUILD, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Receive events, count them, send the counts: the service. Exit code 3 means that it stopped in order, and that
    /// events are lost: the last line of the log says how many, and how
    Run(Flags),
    /// Send every event that comes in by UDP to all nodes, and all other lines elsewhere. Exit code 3 means that it stopped
    /// in order, and that lines are lost
    Relay(RelayArguments),
    /// Show the whole path in one process, at once, with nothing to install
    Demo,
    /// Check the configuration and print the effective values with their origins, secrets hidden; with --connect try what it names
    Check(CheckArguments),
    /// Send lines from standard input, or a synthetic load
    Send(loadgen::Options),
    /// Ask how nodes, Redis and outputs are: what is wrong, worst first, why, and what to do. Exit code 0: nothing is wrong
    Status(StatusArguments),
    /// Look at counts that the output refused; have them sent again, or drop them
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// List what was lost, by minute, node and cause; or acknowledge it, so that status, page and alerts show it no more
    #[command(args_conflicts_with_subcommands = true)]
    Loss {
        #[command(subcommand)]
        command: Option<LossCommand>,
        #[command(flatten)]
        flags: Flags,
    },
    /// Look at what waits for each output, or drop what waits for one that is gone
    #[command(subcommand)]
    Outputs(OutputsCommand),
    /// Look at what must be alike on all nodes, or change it for all of them
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Ask a node or a relay whether it is ready, as the health check of a container does. Exit code 1: it is not
    Healthy {
        /// Its `http.listen`
        #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8095")]
        address: String,
    },
}

/// With the configuration of the nodes; without their secrets of the output.
#[derive(Subcommand)]
enum SettingsCommand {
    /// What all nodes must have alike, as it stands in Redis, and where this configuration differs
    Show(Flags),
    /// Write what this configuration has, and print each change. Then restart every node with it: until then a node
    /// goes on recording, and neither closes minutes nor sends
    Apply(Flags),
}

/// The usage of commands that select counts, which clap shows with its errors.
const SELECTING: &str =
    "eds quarantine <retry|drop> <--all | --minute <MINUTE>… and --series <SERIES>…> [OPTIONS]
Example: eds quarantine drop --minute 20161204:1118 --series event_type=login,product=shop";

#[derive(Subcommand)]
enum QuarantineCommand {
    /// One line each: minute, series, counts, since when, the first words of the server
    List(WithFlags<quarantine::List>),
    /// Everything about each
    Show(WithFlags<quarantine::Selection>),
    /// Take counts back: any node sends them again, with the value that they had. For when the server will take
    /// them; those that it refuses are quarantined again
    #[command(override_usage = SELECTING)]
    Retry(WithFlags<quarantine::Change>),
    /// Print counts, and forget them for good
    #[command(override_usage = SELECTING)]
    Drop(WithFlags<quarantine::Change>),
}

#[derive(Subcommand)]
enum LossCommand {
    /// Print what was lost and is not acknowledged, and acknowledge it
    Acknowledge(Flags),
}

#[derive(Subcommand)]
enum OutputsCommand {
    /// A line for each: how many minutes it lacks, the oldest of them, and how many counts it refused; and whether it is
    /// configured
    List(Flags),
    /// Drop all that waits for an output that no node has any more, its quarantine included, for good
    Drop {
        /// Its name
        name: String,
        #[command(flatten)]
        flags: Flags,
    },
}

/// What a command does, with the configuration of the nodes; without their secrets of the output.
#[derive(Args)]
#[command(mut_arg("output", |output| output.value_name("NAME").help("Of this output; needed when there are several")))]
struct WithFlags<A: Args> {
    #[command(flatten)]
    arguments: A,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Args)]
struct RelayArguments {
    #[command(flatten)]
    flags: RelayFlags,
    /// Only check the configuration, and print the effective values with their origins, secrets hidden
    #[arg(long)]
    check: bool,
    /// With --check: print what each key is for, too
    #[arg(long, requires = "check")]
    explain: bool,
}

/// With the configuration of the nodes; without their secrets of the output.
#[derive(Args)]
struct StatusArguments {
    #[command(flatten)]
    flags: Flags,
    /// One JSON object, as /api/v1/status has it
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Look again every two seconds, on the whole terminal
    #[arg(long)]
    watch: bool,
}

#[derive(Args)]
struct CheckArguments {
    #[command(flatten)]
    flags: Flags,
    /// Print what each key is for, too
    #[arg(long)]
    explain: bool,
    /// Try Redis, the outputs, sockets, disk and limits in place of printing values, and say of each what came of it. Exit code 1:
    /// something would not work
    #[arg(long, conflicts_with = "explain")]
    connect: bool,
    /// Say nothing of what is well
    #[arg(long, conflicts_with = "explain")]
    quiet: bool,
}

/// Returns the commands and arguments, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command. Mistakes in the arguments, `--help` and `--version` are handled by clap, with exit code 2, 0 and 0.
#[must_use]
pub fn main() -> ExitCode {
    match execute(Arguments::parse().command) {
        Ok(code) => ExitCode::from(code),
        // The reader has ended early, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(FAILED),
        Err(error) => {
            let is_misused = error.is::<ConfigErrors>()
                || error.is::<daemon::Misused>()
                || error.is::<daemon::OnlyTheNodeKnows>()
                || error.is::<daemon::NoTerminal>();
            let code = if is_misused {
                MISUSED
            } else if error.is::<daemon::EventsLost>() {
                LOST
            } else {
                FAILED
            };
            daemon::write_error(&text::chain(error.as_ref()));
            ExitCode::from(code)
        }
    }
}

/// Returns whether standard output is closed; errors of servers have other types.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs the command and returns the exit code.
fn execute(command: Command) -> anyhow::Result<u8> {
    let code = |is_well: bool| if is_well { 0 } else { FAILED };
    match command {
        Command::Run(flags) => {
            let environment: Vec<_> = std::env::vars_os().collect();
            let (config, _) = config::load(&flags, environment.iter().cloned())?;
            daemon::run(&config, flags, environment)?;
        }
        Command::Relay(arguments) => relay(arguments)?,
        Command::Demo => daemon::demo()?,
        Command::Check(arguments) => return check(&arguments).map(code),
        Command::Status(StatusArguments { flags, json, watch }) => {
            let shown = match (watch, json) {
                (true, _) => Shown::Live,
                (false, true) => Shown::Json,
                (false, false) => Shown::Table,
            };
            return daemon::status(&operated(&flags)?, shown).map(code);
        }
        Command::Quarantine(command) => quarantine(command)?,
        Command::Loss { command: None, flags } => daemon::loss(&operated(&flags)?, false)?,
        Command::Loss { command: Some(LossCommand::Acknowledge(flags)), .. } => {
            daemon::loss(&operated(&flags)?, true)?;
        }
        Command::Outputs(OutputsCommand::List(flags)) => daemon::outputs(&operated(&flags)?, None)?,
        Command::Outputs(OutputsCommand::Drop { name, flags }) => {
            daemon::outputs(&operated(&flags)?, Some(&name))?;
        }
        Command::Settings(SettingsCommand::Show(flags)) => {
            daemon::settings(&operated(&flags)?, false)?;
        }
        Command::Settings(SettingsCommand::Apply(flags)) => {
            // Other commands accept it to run without a full configuration; here it would become the output of all nodes.
            anyhow::ensure!(
                flags.output.as_deref() != Some("stdout:"),
                "--output stdout: would make standard output the output of every node; leave it out (no secret of the \
                 output is needed here), or write output.url = \"stdout:\" into the configuration"
            );
            daemon::settings(&operated(&flags)?, true)?;
        }
        Command::Healthy { address } => healthy(&address)?,
        Command::Send(options) => {
            let summary = loadgen::run(&options, LINE_RULES)?;
            return Ok(summary.stopped.unwrap_or_else(|| code(summary.is_well())));
        }
    }
    Ok(0)
}

/// Loads the configuration for a command of operators.
fn operated(flags: &Flags) -> anyhow::Result<Config> {
    Ok(config::load_without_secrets_of_output(flags, std::env::vars_os())?)
}

fn quarantine(command: QuarantineCommand) -> anyhow::Result<()> {
    use QuarantineCommand::{Drop, List, Retry, Show};
    use quarantine::Action;

    let (mut flags, action) = match command {
        List(WithFlags { arguments, flags }) => (flags, Action::List(arguments)),
        Show(WithFlags { arguments, flags }) => (flags, Action::Show(arguments)),
        Retry(WithFlags { arguments, flags }) => (flags, Action::Retry(arguments)),
        Drop(WithFlags { arguments, flags }) => (flags, Action::Drop(arguments)),
    };
    let output = flags.output.take();
    daemon::quarantine(&operated(&flags)?, output.as_deref(), &action)
}

/// Prints the answer of `/readyz`.
fn healthy(address: &str) -> anyhow::Result<()> {
    // A node waits three seconds for its store.
    const WITHIN: Duration = Duration::from_secs(4);
    const ANSWER_BYTES_MAX: u64 = 64 * 1024;

    let asked = || -> io::Result<String> {
        let found = address.to_socket_addrs()?.next();
        let found = found.ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&found, WITHIN)?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().with_context(|| format!("{address} does not answer"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    writeln!(io::stdout(), "{}", body.trim_end())?;
    let status = head.split_whitespace().nth(1);
    anyhow::ensure!(status == Some("200"), "{address} is not ready");
    Ok(())
}

/// Returns whether a line is an event without a timestamp, by the default grammar.
fn lacks_timestamp(line: &[u8]) -> bool {
    thread_local! {
        static PARSER: RefCell<LineParser> = RefCell::new(LineParser::new(&LineRules::default()));
    }
    let lacks = |parser: &mut LineParser| parser.parse(line).is_ok_and(|it| it.timestamp.is_none());
    // A timestamp after a backslash would belong to the last field.
    !line.ends_with(b"\\") && PARSER.with_borrow_mut(lacks)
}

/// Returns whether there is no problem.
fn check(arguments: &CheckArguments) -> anyhow::Result<bool> {
    let (config, effective) = config::load(&arguments.flags, std::env::vars_os())?;
    if arguments.connect {
        return daemon::connect(&config, arguments.quiet);
    }
    if !arguments.quiet {
        show(&config.warnings(), &effective, arguments.explain)?;
    }
    Ok(true)
}

fn relay(arguments: RelayArguments) -> anyhow::Result<()> {
    let environment: Vec<_> = std::env::vars_os().collect();
    let (config, effective) = config::load_relay(&arguments.flags, environment.iter().cloned())?;
    if arguments.check {
        return show(&config.warnings(), &effective, arguments.explain);
    }
    daemon::relay(&config, arguments.flags, environment)
}

fn show(warnings: &[String], effective: &Effective, explain: bool) -> anyhow::Result<()> {
    for warning in warnings {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    io::stdout().write_all(effective.to_toml(explain).as_bytes())?;
    Ok(())
}
