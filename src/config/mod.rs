//! The configuration: texts from four sources, checked and built into the settings of the parts, which cannot be wrong.
//! A new key is a row in `sections.rs`, **the table of keys**, its use where a setting is built, and its explanation in
//! `config/eds.toml`. Imports run from `sources`, `sections`, `servers` and `values` to `kinds` only.

mod kinds;
mod node;
mod output;
mod relay;
mod sections;
mod servers;
mod sources;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;

pub(crate) use self::kinds::LogFormat;
pub use self::node::Config;
pub(crate) use self::node::{OUTPUTS, Store};
pub(crate) use self::output::{Output, Target};
pub use self::relay::RelayConfig;
pub use self::sections::KEYS;
pub(crate) use self::sections::{Http, Input, Log};
pub use self::sources::{Flags, RelayFlags};
pub use self::values::{
    ConfigErrors, Effective, Form, Key, Origin, Problem, Program, VARIABLE_PREFIX,
};

use self::sources::{Typed, gather};

/// Reads all sources, with an environment as of [`std::env::vars_os`], and the files in use. Also returns the effective values.
pub fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(Config, Effective), ConfigErrors> {
    read(flags.typed(), environment, node::build)
}

/// As [`load`], for an operator's command, which sends nothing: it does not read the secrets of the outputs.
pub fn load_without_secrets_of_output(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigErrors> {
    read(flags.typed(), environment, node::build_to_look).map(|(config, _)| config)
}

/// As [`load`], for a relay.
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
