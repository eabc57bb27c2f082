//! The configuration: read raw from four sources, then checked into types that cannot be wrong.
//!
//! [`KEYS`] knows which keys there are. `source` gathers the raw values, each with its origin, from `file`,
//! `environment` and flags; `reader` turns them into typed ones by their `kind`; `check` and `servers` build the
//! sections and hold the keys of each against each other, `together` those of several. All that is wrong is found in one go.
//!
//! No module of the service is given the whole [`Config`]; the daemon takes it apart.

mod alike;
mod check;
mod effective;
mod endpoints;
mod environment;
mod file;
mod keys;
mod kind;
mod nodes_url;
mod problem;
mod reader;
mod sections;
mod servers;
mod source;
mod together;
mod url;

#[cfg(test)]
mod tests;

use std::ffi::OsString;

pub use self::effective::Effective;
pub use self::endpoints::{
    Api, Identity, InfluxDb, Layout, Output, OutputUrl, Redis, RedisAddress, Store, StoreUrl, Tls,
};
pub use self::keys::{KEYS, Key, VARIABLE_PREFIX};
pub use self::kind::Kind;
pub use self::problem::{ConfigErrors, Problem};
pub use self::sections::{Flush, Http, Input, Log, LogFormat, LogLevel, Precision, Spool};
pub use self::source::{DEFAULT_FILE, Flags, Origin};

use self::reader::Reader;
use self::source::Settings;

/// A configuration without mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of this node: 1 to 64 of `[A-Za-z0-9._-]`.
    pub node: String,
    /// Receiving and queueing events.
    pub input: Input,
    /// The shared memory of the open minutes.
    pub store: Store,
    /// When a minute is closed and who may send it.
    pub flush: Flush,
    /// Where the counts go.
    pub output: Output,
    /// Health and metrics.
    pub http: Http,
    /// What is logged, and how.
    pub log: Log,
}

impl Config {
    /// Reads all sources and the files of secrets and certificates that are in use. The environment is given
    /// as [`std::env::vars_os`] gives it.
    pub fn load<E>(flags: &Flags, environment: E) -> Result<Self, ConfigErrors>
    where
        E: IntoIterator<Item = (OsString, OsString)>,
    {
        load(flags, environment).map(|(config, _)| config)
    }

    /// The same for an operator's command, which sends nothing: the secrets of the output are neither needed nor read.
    pub fn load_without_secrets_of_output<E>(
        flags: &Flags,
        environment: E,
    ) -> Result<Self, ConfigErrors>
    where
        E: IntoIterator<Item = (OsString, OsString)>,
    {
        load_as(flags, environment, false).map(|(config, _)| config)
    }
}

/// As [`Config::load`], and the values in force with their origins besides.
pub fn load<E>(flags: &Flags, environment: E) -> Result<(Config, Effective), ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    load_as(flags, environment, true)
}

fn load_as<E>(
    flags: &Flags,
    environment: E,
    sends: bool,
) -> Result<(Config, Effective), ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    let mut problems = Vec::new();
    let settings = Settings::gather(flags, environment, source::host_name(), &mut problems);
    let Some(settings) = settings else {
        return Err(ConfigErrors::new(problems));
    };
    let mut reader = Reader::new(&settings, problems, sends);
    let config = build(&mut reader);
    match reader.finish() {
        (problems, _) if problems.is_empty() => Ok((config, Effective(settings))),
        (problems, _) => Err(ConfigErrors::new(problems)),
    }
}

/// The level that the sources name now, for SIGHUP. The whole configuration is checked, so that a reload also
/// tells of a mistake that the next start would stumble over; all but the level waits for that start.
pub fn reload_log_level<E>(flags: &Flags, environment: E) -> Result<LogLevel, ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    Config::load(flags, environment).map(|config| config.log.level)
}

fn build(reader: &mut Reader<'_>) -> Config {
    let config = Config {
        node: reader.text("node"),
        input: check::input(reader),
        store: servers::store(reader),
        flush: check::flush(reader),
        output: servers::output(reader),
        http: check::http(reader),
        log: check::log(reader),
    };
    together::check(reader, &config);
    config
}
