//! The four sources of values, each over the one before: defaults, the file, the environment, flags.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use redis_link::without_secrets;

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

/// Asks the sources in turn. With a file that is not TOML nothing can be said about the values.
pub(super) fn gather(
    flags: &Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) -> Option<Effective> {
    let mut values = Effective::defaults();
    if let Some(name) = host_name() {
        values.set("node", name, Origin::HostName);
    }
    let is_readable = file::read(flags.config.as_deref(), &mut values, problems);
    environment::read(environment, &mut values, problems);
    let listen = (!flags.listen.is_empty()).then(|| flags.listen.join(","));
    for (flag, path, value) in [
        ("--node", "node", &flags.node),
        ("--listen", "input.listen", &listen),
        ("--store", "store.url", &flags.store),
        ("--output", "output.url", &flags.output),
        ("--http", "http.listen", &flags.http),
    ] {
        if let Some(value) = value {
            // One for all, as to try a configuration out.
            if path == "output.url" && values.outputs() > 1 {
                values.forget_outputs();
            }
            values.set(path, value.clone(), Origin::Flag(flag));
        }
    }
    is_readable.then_some(values)
}

/// The kernel's name for this host. The second file serves where `/proc` shows processes only.
fn host_name() -> Option<String> {
    let read = |path| {
        std::fs::read_to_string(path)
            .ok()
            .map(|name| name.trim().to_owned())
    };
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .into_iter()
        .find_map(|path| read(path).filter(|name| !name.is_empty()))
}
