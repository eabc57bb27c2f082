//! The four sources of values, each over the one before: defaults, the file, the environment, flags.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use redis_link::without_secrets;

use super::keys::Program;
use super::problem::Problem;
use super::values::{Effective, Origin};
use super::{environment, file};

/// The flags of `eds run` and `eds check`, as they were typed.
#[derive(Clone, Default, clap::Args)]
pub struct Flags {
    /// Configuration file [default: /etc/eds/eds.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node, unique in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// UDP addresses to receive events on, separated by commas or given repeatedly
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Where the minutes are gathered: memory:, redis://…, rediss://…, redis+unix://…, redis+cluster://… or
    /// redis+sentinel://…
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Where the counts go: stdout:, http://… or https://…; in place of all outputs if there are several
    #[arg(long, value_name = "URL")]
    pub output: Option<String>,
    /// TCP address of health and metrics; empty for none
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// A password in a URL is refused in a flag; that does not keep it from being typed.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| url.as_deref().map(without_secrets);
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("node", &self.node)
            .field("listen", &self.listen)
            .field("store", &shown(&self.store))
            .field("output", &shown(&self.output))
            .field("http", &self.http)
            .finish()
    }
}

/// The flags of `eds relay`, as they were typed.
#[derive(Clone, Default, clap::Args)]
pub struct RelayFlags {
    /// Configuration file [default: /etc/eds/relay.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// UDP addresses to receive lines on, separated by commas or given repeatedly
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Nodes that every event goes to, separated by commas or given repeatedly
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Where all other lines go: none:, udp://HOST:PORT, http://HOST:PORT?db=… or http://HOST:PORT?org=…&bucket=…
    #[arg(long, value_name = "URL")]
    pub rest: Option<String>,
    /// TCP address of health and metrics; empty for none
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// As that of [`Flags`].
impl fmt::Debug for RelayFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayFlags")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .field("to", &self.to)
            .field("rest", &self.rest.as_deref().map(without_secrets))
            .field("http", &self.http)
            .finish()
    }
}

/// A flag that was given: its name, the key that it sets, and the value.
type Given = (&'static str, &'static str, Option<String>);

/// What a program is told on the command line.
pub(super) trait Typed {
    const PROGRAM: Program;
    fn file(&self) -> Option<&Path>;
    fn given(&self) -> Vec<Given>;
}

/// Several values of a flag, as the environment would have them.
fn joined(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join(","))
}

impl Typed for Flags {
    const PROGRAM: Program = Program::Node;

    fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn given(&self) -> Vec<Given> {
        vec![
            ("--node", "node", self.node.clone()),
            ("--listen", "input.listen", joined(&self.listen)),
            ("--store", "store.url", self.store.clone()),
            ("--output", "output.url", self.output.clone()),
            ("--http", "http.listen", self.http.clone()),
        ]
    }
}

impl Typed for RelayFlags {
    const PROGRAM: Program = Program::Relay;

    fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn given(&self) -> Vec<Given> {
        vec![
            ("--listen", "input.listen", joined(&self.listen)),
            ("--to", "relay.to", joined(&self.to)),
            ("--rest", "rest.url", self.rest.clone()),
            ("--http", "http.listen", self.http.clone()),
        ]
    }
}

/// Asks the sources in turn. With a file that is not TOML nothing can be said about the values.
pub(super) fn gather<F: Typed>(
    flags: &F,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) -> Option<Effective> {
    let mut values = Effective::defaults(F::PROGRAM);
    if let Some(name) = host_name() {
        values.set("node", name, Origin::HostName);
    }
    let is_readable = file::read(F::PROGRAM, flags.file(), &mut values, problems);
    environment::read(environment, &mut values, problems);
    for (flag, path, value) in flags.given() {
        if let Some(value) = value {
            // One for all, as to try a configuration out.
            if path == "output.url" && values.outputs() > 1 {
                values.forget_outputs();
            }
            values.set(path, value, Origin::Flag(flag));
        }
    }
    is_readable.then_some(values)
}

/// The kernel's name for this host. The second file serves where `/proc` shows processes only.
pub(super) fn host_name() -> Option<String> {
    let read = |path| std::fs::read_to_string(path).ok().map(|name| name.trim().to_owned());
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .into_iter()
        .find_map(|path| read(path).filter(|name| !name.is_empty()))
}
