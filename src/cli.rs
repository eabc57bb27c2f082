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
use crate::event::datagram::first_line;
use crate::event::{LineRules, Parser as LineParser};
use crate::{daemon, quarantine, text};

/// How `eds send` interprets lines.
const LINE_RULES: loadgen::LineRules = loadgen::LineRules { end: first_line, lacks_timestamp };

const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const LOST: u8 = 3;

/// Exact counts of events and of distinct users, per minute and series, from UDP lines that any number of nodes receive
#[derive(Parser)]
#[command(name = "eds", version = crate::BUILD, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node: receive events, count them, write the counts. Exit code 3: it stopped in order, but events are lost; the
    /// last line of the log shows how many and why
    Run(Flags),
    /// Run a relay: send every event that arrives by UDP to all nodes, and all other lines elsewhere. Exit code 3: it stopped in
    /// order, but lines are lost
    Relay(RelayArguments),
    /// Show the complete path of an event in one process; requires no installation
    Demo,
    /// Check the configuration and print the effective values with their origins, without secrets
    Check(CheckArguments),
    /// Send lines from standard input, or a synthetic load
    Send(loadgen::Options),
    /// Print the state of nodes, Redis and outputs: problems by severity, with causes and remedies. Exit code 0: healthy
    Status(StatusArguments),
    /// List, retry or drop the counts that an output refused
    #[command(mut_arg("output", |arg| arg.value_name("NAME").help("Name of the output; required if there are several")))]
    Quarantine(Operated<quarantine::Action>),
    /// List losses by minute, process and cause, or acknowledge them, which ends their warnings
    #[command(mut_args(|arg| arg.global(true)))]
    Loss {
        #[command(subcommand)]
        command: Option<LossCommand>,
        #[command(flatten)]
        flags: Flags,
    },
    /// List the unsent counts of each output, or drop those of a removed output
    Outputs(Operated<OutputsCommand>),
    /// Show or change the cluster-wide settings
    Settings(Operated<SettingsCommand>),
    /// Ask a node or a relay whether it is ready, for the health check of a container. Exit code 1: it is not ready
    Healthy {
        /// Its http.listen
        #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8095")]
        address: String,
    },
}

/// A command with the configuration of the nodes. It does not read the secrets of the outputs.
#[derive(Args)]
#[command(mut_args(|arg| arg.global(true)))]
struct Operated<C: Subcommand> {
    #[command(subcommand)]
    command: C,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Subcommand)]
enum SettingsCommand {
    /// Print the settings in Redis, and where this configuration differs
    Show,
    /// Write the settings of this configuration to Redis, and print each change. Then restart every node with this configuration:
    /// until its restart a node records events, but neither closes minutes nor sends counts
    Apply,
}

#[derive(Subcommand)]
enum LossCommand {
    /// Print the unacknowledged losses, and acknowledge them
    Acknowledge,
}

#[derive(Subcommand)]
enum OutputsCommand {
    /// Print a line for each output: unsent minutes, the oldest of them, quarantined counts, and whether it is configured
    List,
    /// Drop the unsent and quarantined counts of an output that no node has in its configuration; this cannot be undone
    Drop {
        /// Name of the output
        name: String,
    },
}

#[derive(Args)]
struct RelayArguments {
    #[command(flatten)]
    flags: RelayFlags,
    /// Only check the configuration, and print the effective values with their origins, without secrets
    #[arg(long)]
    check: bool,
    /// With --check: also print the purpose of each key
    #[arg(long, requires = "check")]
    explain: bool,
}

#[derive(Args)]
struct StatusArguments {
    #[command(flatten)]
    flags: Flags,
    /// Print one JSON object, as /api/v1/status does
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Show the status in full screen, and refresh it every two seconds
    #[arg(long)]
    watch: bool,
}

#[derive(Args)]
struct CheckArguments {
    #[command(flatten)]
    flags: Flags,
    /// Also print the purpose of each key
    #[arg(long)]
    explain: bool,
    /// Test Redis, outputs, sockets, disk and limits instead of printing values, and print the results. Exit code 1: a problem
    #[arg(long, conflicts_with = "explain")]
    connect: bool,
    /// Print problems only
    #[arg(long, conflicts_with = "explain")]
    quiet: bool,
}

/// Returns the commands and arguments, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command. clap handles argument errors, `--help` and `--version`, with exit codes 2, 0 and 0.
#[must_use]
pub fn main() -> ExitCode {
    match execute(Arguments::parse().command) {
        Ok(code) => ExitCode::from(code),
        // The reader has exited early, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(FAILED),
        Err(error) => {
            let code = if error.is::<ConfigErrors>() || error.is::<daemon::Misused>() {
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

/// Returns whether standard output is closed; server errors have other types.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs the command and returns the exit code.
fn execute(command: Command) -> anyhow::Result<u8> {
    let code = |is_well: bool| if is_well { 0 } else { FAILED };
    match command {
        Command::Run(flags) => daemon::run(move || {
            config::load(&flags, std::env::vars_os()).map(|(config, _)| config)
        })?,
        Command::Relay(arguments) => relay(arguments)?,
        Command::Demo => daemon::demo()?,
        Command::Check(arguments) => return check(&arguments).map(code),
        Command::Status(StatusArguments { flags, json, watch }) => {
            return daemon::status(&operated(&flags)?, json, watch).map(code);
        }
        Command::Quarantine(Operated { command, mut flags }) => {
            let output = flags.output.take();
            daemon::quarantine(&operated(&flags)?, output.as_deref(), &command)?;
        }
        Command::Loss { command, flags } => daemon::loss(&operated(&flags)?, command.is_some())?,
        Command::Outputs(Operated { command, flags }) => {
            let dropped = match command {
                OutputsCommand::List => None,
                OutputsCommand::Drop { name } => Some(name),
            };
            daemon::outputs(&operated(&flags)?, dropped.as_deref())?;
        }
        Command::Settings(Operated { command, flags }) => {
            let is_applied = matches!(command, SettingsCommand::Apply);
            // Other commands accept it, to run without a full configuration. Here, it would become the output of all nodes.
            anyhow::ensure!(
                !is_applied || flags.output.as_deref() != Some("stdout:"),
                "--output stdout: would make standard output the output of every node; remove it (this command needs no secrets \
                 of outputs), or write output.url = \"stdout:\" into the configuration"
            );
            daemon::settings(&operated(&flags)?, is_applied)?;
        }
        Command::Healthy { address } => healthy(&address)?,
        Command::Send(options) => {
            let summary = loadgen::run(&options, LINE_RULES)?;
            return Ok(summary.stopped.unwrap_or_else(|| code(summary.is_well())));
        }
    }
    Ok(0)
}

/// Loads the configuration for an operator command.
fn operated(flags: &Flags) -> anyhow::Result<Config> {
    Ok(config::load_without_secrets_of_output(flags, std::env::vars_os())?)
}

/// Prints the response from `/readyz`.
fn healthy(address: &str) -> anyhow::Result<()> {
    // A node waits up to three seconds for its store.
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

/// Returns whether a line is an event without a timestamp under the default grammar.
fn lacks_timestamp(line: &[u8]) -> bool {
    thread_local! {
        static PARSER: RefCell<LineParser> = RefCell::new(LineParser::new(&LineRules::default()));
    }
    let lacks = |parser: &mut LineParser| parser.parse(line).is_ok_and(|it| it.timestamp.is_none());
    // A timestamp after a backslash would become part of the last field.
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

fn relay(RelayArguments { flags, check, explain }: RelayArguments) -> anyhow::Result<()> {
    let load = move || config::load_relay(&flags, std::env::vars_os());
    if check {
        let (config, effective) = load()?;
        return show(&config.warnings(), &effective, explain);
    }
    daemon::relay(move || load().map(|(config, _)| config))
}

fn show(warnings: &[String], effective: &Effective, explain: bool) -> anyhow::Result<()> {
    for warning in warnings {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    io::stdout().write_all(effective.to_toml(explain).as_bytes())?;
    Ok(())
}
