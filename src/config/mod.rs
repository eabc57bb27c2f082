//! The configuration. Values from flags, the environment, the file and the defaults are merged, validated, and converted.
//!
//! To add a key, add a row to **the table of keys** in `sections.rs`, use the key where the setting is built, and document
//! it in `config/eds.toml`. `output`, `sections`, `servers` and `values` import `kinds`, never the reverse.

mod access;
mod kinds;
mod migrate;
mod node;
mod output;
mod relay;
mod requests;
mod rollup;
mod sections;
mod servers;
mod sources;
mod telemetry;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;

pub(crate) use self::kinds::LogFormat;
pub(crate) use self::migrate::migrate;
pub use self::node::Config;
pub(crate) use self::node::{OUTPUTS, Store};
pub(crate) use self::output::{Output, Target};
pub use self::relay::RelayConfig;
pub(crate) use self::requests::Requests;
pub use self::sections::KEYS;
pub(crate) use self::sections::{Http, Input, Log};
pub use self::sources::{Flags, RelayFlags};
pub(crate) use self::telemetry::Telemetry;
pub use self::values::{
    ConfigErrors, Effective, Form, Key, LOG_VARIABLE, Origin, Problem, Program, VARIABLE_PREFIX,
};

use self::sources::{Typed, gather};

/// Loads the configuration of a node from all sources. Returns the settings and the effective values, or all problems.
/// `environment` contains the names and values of the environment variables, as returned by [`std::env::vars_os`].
pub fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Config, Effective), ConfigErrors> {
    read(flags.typed(), environment, node::build)
}

/// Like [`load`], but for operator commands, which do not write to outputs. Does not read the secrets of the outputs, so
/// that an operator does not need access to them.
pub fn load_without_secrets_of_output(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigErrors> {
    read(flags.typed(), environment, node::build_to_look).map(|(config, _)| config)
}

/// Like [`load`], but for a relay.
pub fn load_relay(
    flags: &RelayFlags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(RelayConfig, Effective), ConfigErrors> {
    read(flags.typed(), environment, relay::build)
}

fn read<C>(
    typed: Typed<'_>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    build: impl FnOnce(&mut Effective) -> C,
) -> Result<(C, Effective), ConfigErrors> {
    let (mut values, is_complete) = gather(typed, environment);
    let config = is_complete.then(|| build(&mut values));
    match config {
        Some(config) if values.problems.is_empty() => Ok((config, values)),
        _ => Err(values.into_errors()),
    }
}
