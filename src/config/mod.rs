//! The configuration: texts from four sources, checked and built into the settings of the parts, which cannot be wrong.
//!
//! | file | what it is | uses |
//! | --- | --- | --- |
//! | `url.rs` | URLs of the output, what may be shown of one | |
//! | `kind.rs`, `range.rs`, `relay_kind.rs` | the kinds of values, and how each is read | `url` |
//! | `keys.rs` | **the table of keys**: name, kind, default, meaning | the kinds |
//! | `values.rs` | the value in force for each key, and its origin | `keys` |
//! | `problem.rs` | what is wrong, and which name was most likely meant | `values` |
//! | `file.rs`, `environment.rs`, `source.rs` | the sources: file, variables, flags | `problem` |
//! | `reader.rs` | from texts to typed values; gathers every problem | `problem` |
//! | `service.rs`, `store.rs`, `output.rs` | the settings of the parts of a node, section by section | `reader` |
//! | `relay.rs` | the settings of a relay | the sections |
//! | `together.rs` | keys of several sections held against each other | the sections |
//!
//! Imports run from the lower row to the upper only. A new key is a line in `keys.rs`, a line where its setting is built,
//! and its explanation in `config/eds.toml`.

mod environment;
mod file;
mod keys;
mod kind;
mod output;
mod problem;
mod range;
mod reader;
mod relay;
mod relay_kind;
mod service;
mod source;
mod store;
mod together;
mod url;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

pub use self::keys::{KEYS, Key, LogFormat, Program, VARIABLE_PREFIX};
pub use self::kind::{Form, Kind};
pub use self::output::{Output, Target};
pub use self::problem::{ConfigErrors, Problem};
pub use self::reader::OUTPUTS;
pub use self::relay::RelayConfig;
pub use self::service::ServiceSettings;
pub use self::source::{Flags, RelayFlags};
pub use self::store::{RelayStore, Store};
pub use self::values::{Effective, Origin};

use self::keys::{input, log as logging, top};
use self::reader::Reader;
use self::source::Typed;
use crate::event::Partitions;

/// The counts of a minute are kept so many times as long as the oldest event that is accepted.
const RETENTION_AGES: u32 = 2;

/// A configuration without mistakes: the settings of all parts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file that was read; none where nobody names one and there is none in the usual place.
    pub file: Option<PathBuf>,
    /// Name of this node: 1 to 64 of `[A-Za-z0-9._-]`.
    pub node: String,
    /// The shared memory of the open minutes.
    pub store: Store,
    /// How the series are spread over it.
    pub partitions: Partitions,
    /// How long the counts of a minute are kept.
    pub retention: Duration,
    /// Events further ahead of the clock are refused.
    pub max_future: Duration,
    /// How the parts of the node behave.
    pub service: ServiceSettings,
    /// At shutdown, the longest to record what is queued.
    pub drain_timeout: Duration,
    /// Where the counts go: each has all of them.
    pub outputs: Vec<Output>,
    /// What is logged, and how.
    pub log: Log,
    alike: Vec<(&'static str, String)>,
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// This and all that is graver.
    pub level: LevelFilter,
    /// How.
    pub format: LogFormat,
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
        read(flags, environment, false, build).map(|(config, _)| config)
    }

    /// Key and value of everything that must be alike on all nodes that share one Redis. Values that mean the same are
    /// written the same. Without secrets. What names the store itself (`store.url`, `store.prefix`) is not among them: nodes
    /// that differ in it meet nowhere.
    #[must_use]
    pub fn alike(&self) -> &[(&'static str, String)] {
        &self.alike
    }

    /// What is allowed and unwise, a sentence each that names the keys.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        together::warnings(&self.service, self.drain_timeout, &self.store, &self.outputs)
    }
}

/// As [`Config::load`], and the values in force with their origins besides.
pub fn load<E>(flags: &Flags, environment: E) -> Result<(Config, Effective), ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    read(flags, environment, true, build)
}

/// Gathers the values, and builds what a program needs of them.
fn read<F: Typed, E, C>(
    flags: &F,
    environment: E,
    sends: bool,
    build: impl FnOnce(&mut Reader<'_>) -> C,
) -> Result<(C, Effective), ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    let mut problems = Vec::new();
    let Some(values) = source::gather(flags, environment, &mut problems) else {
        return Err(ConfigErrors::new(problems));
    };
    let mut reader = Reader::new(&values, problems, sends);
    let config = build(&mut reader);
    match reader.finish() {
        problems if problems.is_empty() => Ok((config, values)),
        problems => Err(ConfigErrors::new(problems)),
    }
}

/// As [`load`], for a relay.
pub fn load_relay<E>(
    flags: &RelayFlags,
    environment: E,
) -> Result<(RelayConfig, Effective), ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    read(flags, environment, true, relay::read)
}

/// The level that the sources name now, for SIGHUP. The whole configuration is checked, so that a reload also
/// reports a mistake that the next start would fail with; all but the level waits for that start.
pub fn reload_log_level<E>(flags: &Flags, environment: E) -> Result<LevelFilter, ConfigErrors>
where
    E: IntoIterator<Item = (OsString, OsString)>,
{
    Config::load(flags, environment).map(|config| config.log.level)
}

fn build(reader: &mut Reader<'_>) -> Config {
    let node = reader.read(&top::node);
    let (max_age, max_future) = (reader.read(&input::max_age), reader.read(&input::max_future));
    let retention = max_age.saturating_mul(RETENTION_AGES);
    let (store, partitions) = store::read(reader, &node, retention);
    let service = service::read(reader, partitions.clone(), [max_age, max_future]);
    let outputs = output::read(reader);
    let log = log(reader);
    let drain_timeout = reader.read(&input::drain_timeout);
    together::check(reader, &service, &store);
    Config {
        file: reader.file(),
        node,
        store,
        partitions,
        retention,
        max_future,
        service,
        drain_timeout,
        outputs,
        log,
        alike: reader.alike(),
    }
}

fn log(reader: &mut Reader<'_>) -> Log {
    Log { level: reader.read(&logging::level).into(), format: reader.read(&logging::format) }
}
