//! The command line and its exit codes.
//!
//! The exit code is 0 for success, 1 for a failure, 2 for wrong arguments or configuration, and 3 if a node or relay shut
//! down cleanly but lost events or lines. If a signal stops `eds send`, its exit code is 128 plus the signal number.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, CommandFactory, Parser, Subcommand};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::config::{self, Config, ConfigErrors, Effective, Flags, RelayFlags};
use crate::event::datagram::first_line;
use crate::event::{LineRules, Minute, Parser as LineParser, Rejection};
use crate::{count, daemon, quarantine, text};

const LINE_RULES: loadgen::LineRules = loadgen::LineRules { end: first_line, lacks_timestamp };

const EXIT_CODES: &str = "Exit codes: 0, success; 1, failure; 2, wrong arguments or configuration; 3, a node or relay shut down cleanly, \
                          but lost events or lines; 128 plus the number of the signal that stopped `eds send`";

const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const LOST: u8 = 3;

/// Counts events and distinct users exactly, per minute and series, from UDP lines received by any number of nodes
#[derive(Parser)]
#[command(name = "eds", version = crate::BUILD, arg_required_else_help = true)]
#[command(disable_version_flag = true, args_conflicts_with_subcommands = true)]
#[command(after_help = EXIT_CODES)]
struct Arguments {
    /// Print the version and the commit
    #[arg(short = 'V', long)]
    version: bool,
    /// With --version: print a JSON object, which also has the target of the build, and the layouts and the formats of keys
    /// in Redis that this version can read
    #[arg(long, requires = "version")]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node, which receives and counts events and writes the counts. Exit code 3: it shut down cleanly, but events
    /// were lost; the last log line shows how many and why
    Run(Flags),
    /// Run a relay, which sends every event to all nodes, and all other lines to a different destination. Exit code 3: it
    /// shut down cleanly, but lines were lost
    Relay(RelayArguments),
    /// Show the complete path of an event in a single process; nothing needs to be installed
    Demo,
    /// Check the configuration and print the effective values with their origins, without secrets
    Check(CheckArguments),
    /// Send lines from standard input, or a synthetic load
    Send(loadgen::Options),
    /// Count the events in files of line protocol as the service would, without Redis. Lines without a timestamp, and lines
    /// that nodes would reject, are reported and not counted; the age of events does not matter. Exit code 1: a file could not
    /// be read, or the database has other points (--compare)
    Count(CountArguments),
    /// Print the status of nodes, Redis and outputs, with problems by severity, their causes and remedies. Exit code 0:
    /// healthy; 1: not healthy
    Status(StatusArguments),
    /// List, retry or drop the counts that an output rejected
    #[command(mut_arg("output", |arg| arg.value_name("NAME").help("Name of the output; required if several outputs are configured")))]
    Quarantine(Operated<quarantine::Action>),
    /// List losses by minute, process and cause, or acknowledge them to clear their warnings
    #[command(mut_args(|arg| arg.global(true)))]
    Loss {
        #[command(subcommand)]
        command: Option<LossCommand>,
        #[command(flatten)]
        flags: Flags,
    },
    /// List the unsent counts of each output, or drop the counts of a removed output
    Outputs(Operated<OutputsCommand>),
    /// Show or change the cluster-wide settings
    Settings(Operated<SettingsCommand>),
    /// Change a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check whether a node or relay is ready, for use as a container health check. Exit code 1: not ready
    Healthy {
        /// HTTP address of the node or relay (http.listen), with https:// before it if the server uses TLS. The certificate is
        /// not verified
        #[arg(
            value_name = "HOST:PORT",
            env = "EDS_HTTP__LISTEN",
            hide_env_values = true,
            default_value = "127.0.0.1:8095"
        )]
        address: String,
    },
    /// Print a script that completes commands and flags in a shell; packages install those for bash, zsh and fish
    Completions {
        /// Shell for which the script is
        shell: clap_complete::Shell,
    },
}

/// The arguments of a command that uses the nodes' configuration, but not the secrets of the outputs.
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
    /// Write the settings in this configuration to Redis, and print each change. Afterwards, restart every node with this
    /// configuration. A node that has not been restarted records events, but does not close minutes or send counts
    Apply,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Rename the sections of earlier versions in a configuration file. The unchanged file is kept as FILE.old
    Migrate {
        /// Configuration file of a node or relay
        file: PathBuf,
    },
}

#[derive(Subcommand)]
enum LossCommand {
    /// Print the unacknowledged losses, and acknowledge them
    Acknowledge,
}

#[derive(Subcommand)]
enum OutputsCommand {
    /// Print one line per output: the number of unsent minutes, the oldest unsent minute, the number of quarantined counts,
    /// and whether the output is configured
    List,
    /// Drop the unsent and quarantined counts of an output that is not configured on any node; this cannot be undone
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
struct CountArguments {
    /// Files to read, plain or compressed with gzip or zstd; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Configuration of a node, for the grammar of lines, the rollups and the output (default: /etc/eds/eds.toml, if it exists)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a table instead of line protocol
    #[arg(long)]
    table: bool,
    /// Instead of the counts, print where they differ from the points in a database: the name of an output in the
    /// configuration, or a URL, which replaces the URL of the output. InfluxDB 1 and 2, VictoriaMetrics
    #[arg(long, value_name = "OUTPUT", conflicts_with = "table")]
    compare: Option<String>,
    /// With --compare: write the points that are missing in the database. Points that are there, or that nodes may still
    /// publish, and minutes and windows that the files may have only in part, are left alone
    #[arg(long, requires = "compare")]
    fill: bool,
    /// Number of threads (default: the number of cores)
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Memory for events. Further events go to temporary files, with 16 bytes per event
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: ByteSize,
    /// Directory for temporary files (default: TMPDIR or /tmp)
    #[arg(long, value_name = "DIRECTORY")]
    temp_dir: Option<PathBuf>,
}

#[derive(Args)]
struct StatusArguments {
    #[command(flatten)]
    flags: Flags,
    /// Print the status as a JSON object, like the response of /api/v1/status
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Show the status full-screen, and refresh it every two seconds
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
    /// Test Redis, outputs, sockets, disk and limits, and print the results instead of the values. Exit code 1: a
    /// critical problem was found
    #[arg(long, conflicts_with = "explain")]
    connect: bool,
    /// Print only problems
    #[arg(long, conflicts_with = "explain")]
    quiet: bool,
    /// Print the memory that a window of each rollup takes with this many distinct users per group, instead of the values
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["explain", "connect", "quiet"])]
    users: Option<u64>,
    /// With --users: the number of groups in a window; without `by` or `without`, each series is a group
    #[arg(long, value_name = "NUMBER", requires = "users", default_value = "1", value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    groups: u64,
}

/// Returns the definition of all commands and arguments, from which manual pages and completions are generated.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command given by the process arguments, prints its error, if any, and returns its exit code. For `--help`, clap
/// exits with code 0; for invalid arguments, with code 2.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { json, command, .. } = Arguments::parse();
    let executed = match command {
        Some(command) => execute(command),
        None => daemon::version(json).map(|()| 0).map_err(anyhow::Error::from),
    };
    match executed {
        Ok(code) => ExitCode::from(code),
        // The process reading the output exited early, as `head` does.
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

/// Returns whether the reader of standard output has closed it. Connections to servers report errors of different types.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn execute(command: Command) -> anyhow::Result<u8> {
    let code = |is_well: bool| if is_well { 0 } else { FAILED };
    match command {
        Command::Run(flags) => daemon::run(move || config::load(&flags, std::env::vars_os()))?,
        Command::Relay(arguments) => relay(arguments)?,
        Command::Demo => daemon::demo()?,
        Command::Check(arguments) => return check(&arguments).map(code),
        Command::Count(arguments) => return count(arguments).map(code),
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
            // Other commands accept this flag to work without the settings of an output. Here, it would apply to all nodes.
            anyhow::ensure!(
                !is_applied || flags.output.as_deref() != Some("stdout:"),
                "--output stdout: would make standard output the output of every node; remove the flag (this command does not \
                 need output secrets), or set output.url = \"stdout:\" in the configuration"
            );
            daemon::settings(&operated(&flags)?, is_applied)?;
        }
        Command::Config(ConfigCommand::Migrate { file }) => migrate(&file)?,
        Command::Healthy { address } => daemon::healthy(&address)?,
        Command::Completions { shell } => {
            // The generator panics if it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "eds", &mut script);
            io::stdout().write_all(&script)?;
        }
        Command::Send(options) => {
            let summary = loadgen::run(&options, LINE_RULES)?;
            return Ok(summary.stopped.unwrap_or_else(|| code(summary.is_well())));
        }
    }
    Ok(0)
}

/// Runs `eds count`. Returns false if the points in the database differ.
fn count(arguments: CountArguments) -> anyhow::Result<bool> {
    let CountArguments { files, config, table, compare, fill, threads, memory, temp_dir } =
        arguments;
    let url = compare.clone().filter(|output| output.contains(':'));
    let store = Some("memory:".to_owned());
    let flags = Flags { config, store, compare: url, ..Flags::default() };
    // The secrets of the output are needed only to compare.
    let config = match &compare {
        None => operated(&flags)?,
        Some(_) => config::load(&flags, std::env::vars_os())?.0,
    };
    let database = compare.map(|output| database(&config, &output, fill)).transpose()?;
    let threads = threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        NonZeroUsize::get,
    );
    let bytes: u64 =
        files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    let progress = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes}  ETA {eta}") {
        progress.set_style(style);
    }
    let options = count::Options {
        files,
        rules: config.batcher.rules.clone(),
        rollups: config.partitions.rollups().map(|(_, rollup)| rollup.clone()).collect(),
        threads,
        memory: usize::try_from(memory.as_u64()).unwrap_or(usize::MAX),
        directory: temp_dir.unwrap_or_else(std::env::temp_dir),
    };
    let counted = count::count(&options, |bytes| progress.inc(bytes))?;
    progress.finish_and_clear();
    for (reason, lines, example) in &counted.rejected {
        eprintln!(
            "rejected {lines} lines ({}): {reason}; for example: {}",
            reason.label(),
            example.line
        );
    }
    let count::Counted { events, distinct, spilled, .. } = counted;
    eprintln!("{events} events, {distinct} different ones, {spilled} bytes in temporary files");
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut is_equal = true;
    if let Some(database) = database {
        let is_unstamped =
            counted.rejected.iter().any(|(reason, ..)| *reason == Rejection::TimestampMissing);
        anyhow::ensure!(
            !fill || !is_unstamped,
            "nothing was filled, because events without a timestamp are missing in the counts; use files without such lines"
        );
        let compared = count::compare(&counted, &database, &mut out);
        // Differences that were found before an error are printed too.
        let compared = daemon::runtime()?.block_on(compared);
        out.flush()?;
        let compared = compared.map_err(|error| match error {
            count::CompareError::Print(error) => anyhow::Error::from(error),
            error => error.into(),
        })?;
        eprintln!("{compared}");
        is_equal = compared.is_equal();
    } else if table {
        counted.write_table(&mut out)?;
    } else {
        counted.write_lines(&mut out)?;
    }
    out.flush()?;
    Ok(is_equal)
}

fn migrate(file: &Path) -> anyhow::Result<()> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    // The error itself would quote a line of the file, which may contain a secret.
    let migrated = config::migrate(&text);
    let (migrated, renamed) =
        migrated.map_err(|error| daemon::Misused(format!("{name}:{error}")))?;
    if renamed.is_empty() {
        writeln!(io::stdout(), "{name} has no section of an earlier version")?;
        return Ok(());
    }
    let [old, new] = ["old", "new"].map(|end| PathBuf::from(format!("{name}.{end}")));
    // The copy has the permissions of the file.
    let written = fs::copy(file, &new).and_then(|_| fs::write(&new, migrated));
    written.with_context(|| format!("cannot write {}", new.display()))?;
    fs::hard_link(file, &old).with_context(|| {
        format!("cannot keep the unchanged file as {}; move that file away", old.display())
    })?;
    fs::rename(&new, file).with_context(|| format!("cannot replace {name}"))?;
    for (old, new) in renamed {
        writeln!(io::stdout(), "{name}: renamed [{old}] to [{new}]")?;
    }
    writeln!(
        io::stdout(),
        "the unchanged file is {}; check the new one with --check, and restart",
        old.display()
    )?;
    Ok(())
}

/// Returns the database of an output, which is given by its name or is the only one.
fn database(config: &Config, output: &str, fill: bool) -> anyhow::Result<count::Database> {
    let is_named = |known: &&config::Output| output.contains(':') || known.name.as_str() == output;
    let found = config.outputs.iter().find(is_named);
    let is_readable = |output: &&config::Output| match &output.target {
        config::Target::Server(settings) => settings.api.accepts_lines(),
        config::Target::Stdout => false,
    };
    let Some(config::Output { target: config::Target::Server(settings), write_counts_max, .. }) =
        found.filter(is_readable)
    else {
        let names: Vec<_> = config.outputs.iter().map(|output| output.name.as_str()).collect();
        return Err(daemon::Misused(format!(
            "--compare: {output} is not the name of an output with a database that can be read (output.api v1 or v2), nor a URL \
             such as http://host:8086; the configured outputs are: {}",
            names.join(", ")
        ))
        .into());
    };
    // After this time, no node accepts or publishes an event, unless counts wait for the output.
    let flush = config.flush;
    let open = config.input.max_age + flush.max_hold + flush.grace + flush.lease;
    let open = i64::try_from(open.as_nanos()).unwrap_or(i64::MAX);
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap_or(0);
    let next = Minute::of_nanos(now.saturating_sub(open));
    Ok(count::Database {
        settings: (**settings).clone(),
        lines_max: 2 * write_counts_max,
        is_filled: fill,
        first_open: next,
    })
}

fn operated(flags: &Flags) -> anyhow::Result<Config> {
    Ok(config::load_without_secrets_of_output(flags, std::env::vars_os())?)
}

/// Returns whether a line is an event without a timestamp under the default grammar.
fn lacks_timestamp(line: &[u8]) -> bool {
    thread_local! {
        static PARSER: RefCell<LineParser> = RefCell::new(LineParser::new(&LineRules::default()));
    }
    let is_missing =
        |parser: &mut LineParser| parser.parse(line).is_ok_and(|event| event.timestamp.is_none());
    // If the line ended with a backslash, an appended timestamp would become part of the last field.
    !line.ends_with(b"\\") && PARSER.with_borrow_mut(is_missing)
}

/// Runs `eds check`. Returns false if `--connect` is set and a critical problem was found.
fn check(arguments: &CheckArguments) -> anyhow::Result<bool> {
    let (config, effective) = config::load(&arguments.flags, std::env::vars_os())?;
    if arguments.connect {
        return daemon::connect(&config, arguments.quiet);
    }
    if let Some(users) = arguments.users {
        daemon::rollup_costs(&config, arguments.groups, users)?;
        return Ok(true);
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
    daemon::relay(load)
}

fn show(warnings: &[String], effective: &Effective, explain: bool) -> anyhow::Result<()> {
    for warning in warnings {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    io::stdout().write_all(effective.to_toml(explain).as_bytes())?;
    Ok(())
}
