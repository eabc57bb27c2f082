//! The four sources of values, each over the one before: defaults, the file, the environment, flags.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::keys::{KEYS, Key};
use super::kind::Kind;
use super::problem::Problem;
use super::{environment, file, url};

/// The file that is read when `--config` names none. It may be missing.
pub const DEFAULT_FILE: &str = "/etc/eds/eds.toml";

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
    /// Where the counts go: stdout:, http://… or https://…
    #[arg(long, value_name = "URL")]
    pub output: Option<String>,
    /// TCP address of health and metrics; empty for none
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// A password in a URL is refused in a flag; that does not keep it from being typed.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| url.as_deref().map(url::shown);
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

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The table of keys.
    Default,
    /// The host name, which is the default of `node`.
    HostName,
    /// A line of the configuration file, counted from 1; 0 for the file as a whole.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// A flag, with its dashes.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped, for a name with a line feed must not end the comment that it is shown in.
        let path = |path: &Path| path.display().to_string().escape_debug().to_string();
        match self {
            Self::Default => f.write_str("default"),
            Self::HostName => f.write_str("host name"),
            Self::File(name, 0) => f.write_str(&path(name)),
            Self::File(name, line) => write!(f, "{}:{line}", path(name)),
            Self::Environment(name) => write!(f, "environment {}", name.escape_debug()),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value as a source has it. Without `Debug`, since only its key tells whether it is a secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Raw {
    One(String),
    List(Vec<String>),
}

impl Raw {
    /// A value from a source that knows only text: lists are separated by commas.
    pub(super) fn from_text(kind: Kind, text: &str) -> Self {
        match kind {
            Kind::Addresses => {
                let items = text
                    .split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty());
                Self::List(items.map(str::to_owned).collect())
            }
            _ => Self::One(text.to_owned()),
        }
    }

    pub(super) fn one(&self) -> Result<&str, String> {
        match self {
            Self::One(text) => Ok(text),
            Self::List(_) => Err("is a list; write one value".to_owned()),
        }
    }

    pub(super) fn list(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::List(items) => items,
        }
    }
}

/// The value in force for one key.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) key: &'static Key,
    pub(super) raw: Raw,
    pub(super) origin: Origin,
    /// The source that should have given the value gave something that is none, and was told so.
    pub(super) unsound: bool,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: it may be a secret. `Effective::to_toml` shows what may be shown.
        f.debug_struct("Setting")
            .field("key", &self.key.path())
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// The values in force, one for each key and in the order of the table.
#[derive(Debug, Clone)]
pub(super) struct Settings(Vec<Setting>);

impl Settings {
    /// Asks the sources in turn. With a file that is not TOML nothing can be said about the values.
    pub(super) fn gather(
        flags: &Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        host_name: Option<String>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let mut settings = Self::defaults(host_name);
        let readable = file::read(flags.config.as_deref(), &mut settings, problems);
        environment::read(environment, &mut settings, problems);
        settings.take_flags(flags);
        readable.then_some(settings)
    }

    fn defaults(host_name: Option<String>) -> Self {
        let setting = |key: &'static Key| {
            let raw = Raw::from_text(key.kind, key.default);
            Setting {
                key,
                raw,
                origin: Origin::Default,
                unsound: false,
            }
        };
        let mut settings = Self(KEYS.iter().map(setting).collect());
        if let Some(name) = host_name {
            settings.set("node", Raw::One(name), Origin::HostName);
        }
        settings
    }

    fn take_flags(&mut self, flags: &Flags) {
        let single = [
            ("--node", "node", &flags.node),
            ("--store", "store.url", &flags.store),
            ("--output", "output.url", &flags.output),
            ("--http", "http.listen", &flags.http),
        ];
        for (flag, path, value) in single {
            if let Some(value) = value {
                self.set(path, Raw::One(value.clone()), Origin::Flag(flag));
            }
        }
        if !flags.listen.is_empty() {
            self.set(
                "input.listen",
                Raw::List(flags.listen.clone()),
                Origin::Flag("--listen"),
            );
        }
    }

    pub(super) fn set(&mut self, path: &str, raw: Raw, origin: Origin) {
        self.put(path, |setting| {
            *setting = Setting {
                key: setting.key,
                raw,
                origin,
                unsound: false,
            };
        });
    }

    /// Remembers that this key has a value that was refused already.
    pub(super) fn spoil(&mut self, path: &str) {
        self.put(path, |setting| setting.unsound = true);
    }

    fn put(&mut self, path: &str, change: impl FnOnce(&mut Setting)) {
        if let Some(setting) = self.0.iter_mut().find(|setting| setting.key.is(path)) {
            change(setting);
        }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Setting> {
        self.0.iter().find(|setting| setting.key.is(path))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.0.iter()
    }
}

/// The kernel's name for this host. The second file serves where `/proc` shows processes only.
pub(super) fn host_name() -> Option<String> {
    let read = |path| {
        std::fs::read_to_string(path)
            .ok()
            .map(|name| name.trim().to_owned())
    };
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .into_iter()
        .find_map(|path| read(path).filter(|name| !name.is_empty()))
}
