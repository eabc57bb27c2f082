//! The metadata of a key of the configuration. The table of keys is in `sections.rs`.

/// A program that reads a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `eds run`, and the commands for the cluster of nodes.
    Node,
    /// `eds relay`
    Relay,
}

impl Program {
    /// The file that is read without `--config`. It may be missing.
    #[must_use]
    pub const fn default_file(self) -> &'static str {
        match self {
            Self::Node => "/etc/eds/eds.toml",
            Self::Relay => "/etc/eds/relay.toml",
        }
    }
}

/// The syntax of a value in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A text: a length of time.
    Span,
    /// A text, or a date and time.
    Time,
    /// A whole number.
    Integer,
    /// A list of texts; separated by commas elsewhere.
    List,
    /// A text that may hold a password.
    Url,
    /// The path of a file or directory.
    Path,
    /// The path of a file that holds a secret.
    SecretFile,
    /// A secret, which the file must not contain, only the environment. The key for a file that contains it ends in `_file`.
    Secret,
}

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// `flush.grace`, or `node` for a key at the top.
    pub path: &'static str,
    /// The syntax of a value in the file.
    pub form: Form,
    /// The allowed values, such as `10ms to 1h`; empty: all.
    pub allowed: &'static str,
    /// The default, as the environment would have it; empty: none.
    pub default: &'static str,
    /// Whether the key is cluster-wide: all nodes that share one Redis must have the same value.
    pub alike: bool,
    /// The programs that have the key.
    pub programs: &'static [Program],
    /// The documentation of the key, in one line.
    pub doc: &'static str,
}

/// The prefix of the environment variables.
pub const VARIABLE_PREFIX: &str = "EDS_";

impl Key {
    /// Returns the TOML table of the key; empty: it is at the top.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Returns the name within the section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Returns the variable that sets the key: `EDS_FLUSH__GRACE`, `EDS_NODE`.
    #[must_use]
    pub fn variable(&self) -> String {
        let path = self.path.replace('.', "__");
        format!("{VARIABLE_PREFIX}{}", path.to_ascii_uppercase())
    }

    /// Returns the default in this program. A relay has other ports, because it may run on the host of a node.
    #[must_use]
    pub fn default_in(&self, program: Program) -> &'static str {
        match (program, self.path) {
            (Program::Relay, "input.listen") => "127.0.0.1:8092",
            (Program::Relay, "http.listen") => "127.0.0.1:8093",
            _ => self.default,
        }
    }
}
