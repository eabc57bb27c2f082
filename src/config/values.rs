//! The metadata of keys, and the effective value of each key as text, with its origin. A key in `[output]` has one value for
//! each `[[output]]` in the file, and likewise in `[rollup]`. After an invalid value, reading continues, so that all problems are reported at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, Utc};

use redis_link::{HIDDEN, without_secrets};
use reqwest::Url;

use super::kinds::items;

/// A program that reads a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `eds run` and the commands that manage a cluster of nodes.
    Node,
    /// `eds relay`.
    Relay,
}

impl Program {
    /// Returns the path of the configuration file that is read if `--config` is not set. The file may be missing.
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
    /// A string.
    Text,
    /// A string that contains a duration.
    Span,
    /// A string that contains a date and time, or a TOML date and time.
    Time,
    /// An integer.
    Integer,
    /// A Boolean. In the environment and in flags, `true` or `false`.
    Switch,
    /// A list of strings. In the environment and in flags, the items are separated by commas.
    List,
    /// A string that contains a URL, which may include a password.
    Url,
    /// The path to a file or directory.
    Path,
    /// The path to a file that contains a secret.
    SecretFile,
    /// A secret, which cannot be set in the file. A separate key, whose name ends in `_file`, names a file with the secret.
    Secret,
}

/// A configuration key.
#[derive(Debug)]
pub struct Key {
    /// The section and the name, such as `flush.grace`, or only the name for a top-level key, such as `node`.
    pub path: &'static str,
    /// The syntax of a value in the file.
    pub form: Form,
    /// A description of the allowed values, such as `10ms to 1h`; empty if all values are allowed.
    pub allowed: &'static str,
    /// The default, written as in the environment; empty if there is no default.
    pub default: &'static str,
    /// Whether the key is cluster-wide, i.e. all nodes that share a store must have the same value.
    pub alike: bool,
    /// The programs that use the key.
    pub programs: &'static [Program],
    /// One line of documentation for the key.
    pub doc: &'static str,
}

/// The prefix of the environment variables that set keys.
pub const VARIABLE_PREFIX: &str = "EDS_";
/// The environment variable that replaces `log.level` by a filter. It is not a key.
pub const LOG_VARIABLE: &str = "EDS_LOG";

/// The files of the HTTP servers, which a running process reads again when it reloads its configuration, and which operator
/// commands ignore.
pub(super) const HTTP_FILES: [&str; 7] = [
    "http.tokens_file",
    "http.cert_file",
    "http.key_file",
    "http.client_ca_file",
    "input.http.tokens_file",
    "input.http.cert_file",
    "input.http.key_file",
];

/// The other keys whose values take effect when a running process reloads its configuration.
const RELOADED: [&str; 2] = ["log.level", "http.public"];
/// The files with secrets that a running process replaces, but cannot add or remove.
const SECRET_FILES: [&str; 6] = [
    "store.password_file",
    "output.token_file",
    "telemetry.token_file",
    "output.password_file",
    "passthrough.token_file",
    "passthrough.password_file",
];

impl Key {
    /// Returns the name of the TOML table that contains the key; empty for a top-level key.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Returns the name within the section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Returns the name of the environment variable that sets the key, such as `EDS_FLUSH__GRACE` or `EDS_NODE`.
    #[must_use]
    pub fn variable(&self) -> String {
        let path = self.path.replace('.', "__");
        format!("{VARIABLE_PREFIX}{}", path.to_ascii_uppercase())
    }

    /// Returns the default for this program. Only the ports differ, because a relay and a node may run on the same host.
    #[must_use]
    pub fn default_in(&self, program: Program) -> &'static str {
        match (program, self.path) {
            (Program::Relay, "input.listen") => "127.0.0.1:8092",
            (Program::Relay, "http.listen") => "127.0.0.1:8093",
            _ => self.default,
        }
    }
}

/// Where a value came from. The variants are in the order in which their problems are reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The configuration file and the number of a line, counted from 1, or 0 for the file as a whole.
    File(PathBuf, usize),
    /// The environment variable with this name.
    Environment(String),
    /// The command-line flag with this name, including its dashes.
    Flag(&'static str),
    /// The host name, which is the default of `node`.
    HostName,
    /// The default in the table of keys.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escape the path, because a line feed in it would end the comment that `eds check` prints.
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

/// A mistake in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the mistake was made.
    pub origin: Origin,
    /// The key, such as `flush.grace`; empty if the problem is not about a key.
    pub key: String,
    /// The mistake, and how to fix it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        // The text may quote a name from the file. Control characters in it must not reach a terminal or break the line.
        self.text.chars().try_for_each(|character| {
            if character.is_control() {
                write!(f, "{}", character.escape_default())
            } else {
                f.write_char(character)
            }
        })
    }
}

/// All problems with a configuration. `Display` prints one problem per line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// Returns the problems. There is at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

pub(super) const OUTPUT: &str = "output";
pub(super) const ROLLUP: &str = "rollup";
/// The sections that a file may have several times.
pub(super) const REPEATED: [&str; 2] = [OUTPUT, ROLLUP];

struct Value {
    key: &'static Key,
    /// The index of the section that contains the key, if the file may have several.
    index: usize,
    text: String,
    origin: Origin,
    /// Whether the value is ignored, because it has been reported as invalid or is not needed.
    is_skipped: bool,
}

/// The effective values of all keys, and the problems found so far.
pub struct Effective {
    keys: &'static [Key],
    pub(super) program: Program,
    /// The values of all keys. Keys that only the other program uses have their default.
    values: Vec<Value>,
    /// The number of `[[output]]` or `[[rollup]]` sections; none if the file has a single `[output]` or `[rollup]`, or none.
    counts: BTreeMap<&'static str, usize>,
    /// The index of the `[[output]]` or `[[rollup]]` being set or read.
    pub(super) index: usize,
    pub(super) file: Option<PathBuf>,
    pub(super) problems: Vec<Problem>,
}

impl Effective {
    pub(super) fn new(program: Program, keys: &'static [Key]) -> Self {
        let values = defaults(program, 0, keys.iter()).collect();
        Self {
            keys,
            program,
            values,
            counts: BTreeMap::new(),
            index: 0,
            file: None,
            problems: Vec::new(),
        }
    }

    pub(super) fn outputs(&self) -> usize {
        self.count(OUTPUT).max(1)
    }

    /// Returns the number of rollups: those in the file, or one if a key of a rollup is set elsewhere.
    pub(super) fn rollups(&self) -> usize {
        let is_set =
            |value: &Value| value.key.section() == ROLLUP && value.origin != Origin::Default;
        self.count(ROLLUP).max(usize::from(self.values.iter().any(is_set)))
    }

    fn count(&self, section: &str) -> usize {
        self.counts.get(section).copied().unwrap_or_default()
    }

    /// Begins the section `[[section]]` with this index: sets its keys to their defaults, and removes all later ones.
    pub(super) fn begin(&mut self, section: &'static str, index: usize) {
        self.values.retain(|value| value.key.section() != section || value.index < index);
        let keys = self.keys.iter().filter(|key| key.section() == section);
        self.values.extend(defaults(self.program, index, keys));
        self.index = index;
        self.counts.insert(section, index + 1);
    }

    fn place(&self, path: &str) -> Option<usize> {
        let is_here =
            |value: &Value| value.index == self.index || !REPEATED.contains(&value.key.section());
        self.values.iter().position(|value| value.key.path == path && is_here(value))
    }

    fn value(&self, path: &str) -> Option<&Value> {
        self.values.get(self.place(path)?)
    }

    fn value_mut(&mut self, path: &str) -> Option<&mut Value> {
        let place = self.place(path)?;
        self.values.get_mut(place)
    }

    pub(super) fn set(&mut self, path: &str, text: String, origin: Origin) {
        if let Some(value) = self.value_mut(path) {
            (value.text, value.origin, value.is_skipped) = (text, origin, false);
        }
    }

    /// Reports a mistake in a source. If `path` is the path of a key, that key's value is then ignored.
    pub(super) fn refuse(&mut self, origin: Origin, path: &str, text: String) {
        self.ignore(&[path]);
        self.problems.push(Problem { origin, key: path.to_owned(), text });
    }

    pub(super) fn wrong(&mut self, path: &str, text: &str) {
        let section = path.split_once('.').map_or("", |(section, _)| section);
        let name = self.text(&format!("{section}.name")).to_owned();
        let is_of_several = self.is_of_several(path);
        let Some(value) = self.value_mut(path) else { return };
        value.is_skipped = true;
        let origin = value.origin.clone();
        let key = if is_of_several { format!("{path} of {name:?}") } else { path.to_owned() };
        self.problems.push(Problem { origin, key, text: text.to_owned() });
    }

    pub(super) fn is_of_several(&self, path: &str) -> bool {
        let section = path.split_once('.').map_or("", |(section, _)| section);
        self.count(section) > 1
    }

    /// Parses the value of a key. If the value is ignored, or is invalid and therefore reported, returns the type's default.
    pub(super) fn read<T: Default>(
        &mut self,
        path: &str,
        kind: fn(&str, &str) -> Result<T, String>,
    ) -> T {
        debug_assert!(Key::find(path).is_some(), "{path} is not a key");
        let value = self.value(path).filter(|value| !value.is_skipped);
        let value = value.map(|value| kind(&value.text, value.key.allowed)).transpose();
        let value = value.inspect_err(|text| self.wrong(path, text));
        value.ok().flatten().unwrap_or_default()
    }

    /// Ignores the values of these keys, so that [`Self::read`] returns the defaults of their types.
    pub(super) fn ignore(&mut self, paths: &[&str]) {
        for path in paths {
            if let Some(value) = self.value_mut(path) {
                value.is_skipped = true;
            }
        }
    }

    /// Unless `holds`, reports the first of these keys as wrong. Does nothing if any of these keys is ignored or invalid.
    pub(super) fn together(&mut self, paths: &[&str], holds: bool, text: &str) {
        debug_assert!(paths.iter().all(|path| Key::find(path).is_some()), "{paths:?} are not keys");
        let is_right = |path: &&str| self.value(path).is_some_and(|value| !value.is_skipped);
        if let ([blamed, ..], false) = (paths, holds)
            && paths.iter().all(is_right)
        {
            self.wrong(blamed, text);
        }
    }

    pub(super) fn text(&self, path: &str) -> &str {
        self.value(path).map_or("", |value| &value.text)
    }

    /// Returns whether the value came from a flag, which all users of this host can see.
    pub(super) fn is_of_a_flag(&self, path: &str) -> bool {
        self.value(path).is_some_and(|value| matches!(value.origin, Origin::Flag(_)))
    }

    /// Returns the names and values of the cluster-wide settings except outputs and rollups. Equivalent values have the same
    /// text.
    pub(super) fn alike(&self) -> impl Iterator<Item = (&'static str, String)> {
        let alike = self.values.iter().filter(|value| value.key.alike);
        let alike = alike.filter(|value| !REPEATED.contains(&value.key.section()));
        alike.map(|Value { key, text, .. }| (key.path, canonical(key, text)))
    }

    /// Returns the keys with a different value than in `running` that need a restart to take effect.
    pub(crate) fn need_restart(&self, running: &Self) -> BTreeSet<&'static str> {
        // For a secret, only whether there is one.
        let text = |value: &Value| match &*value.text {
            path if !path.is_empty() && SECRET_FILES.contains(&value.key.path) => HIDDEN.to_owned(),
            url if value.key.path == "store.url" => format!("{:?}", without_password(url)),
            text => text.to_owned(),
        };
        let all = |values: &Self| -> BTreeSet<_> {
            let values = values.values.iter();
            values.map(|value| (value.key.path, value.index, text(value))).collect()
        };
        let (read, running) = (all(self), all(running));
        let changed = read.symmetric_difference(&running).map(|(path, ..)| *path);
        changed.filter(|path| !RELOADED.contains(path) && !HTTP_FILES.contains(path)).collect()
    }

    pub(super) fn into_errors(mut self) -> ConfigErrors {
        self.problems.sort_by(|a, b| a.origin.cmp(&b.origin));
        ConfigErrors(self.problems)
    }

    /// Returns the effective values as TOML, with their origins but without secrets. `explain` adds their documentation.
    #[must_use]
    pub fn to_toml(&self, explain: bool) -> String {
        let mut toml = String::new();
        let (mut section, mut index) = ("", 0);
        let mut values: Vec<_> = self.values.iter().collect();
        // Sort by section, because the values of all outputs and rollups but the first are at the end.
        let place =
            |value: &&Value| self.keys.iter().position(|key| key.section() == value.key.section());
        values.sort_by_key(|value| (place(value), value.index));
        let known = |value: &&&Value| value.key.programs.contains(&self.program);
        for value in values.iter().filter(known) {
            let key = value.key;
            if key.section() == ROLLUP && self.rollups() == 0 {
                continue;
            }
            if (section, index) != (key.section(), value.index) {
                (section, index) = (key.section(), value.index);
                let _ = match section {
                    section if self.count(section) > 0 => writeln!(toml, "\n[[{section}]]"),
                    section => writeln!(toml, "\n[{section}]"),
                };
            }
            if explain {
                let _ = match key.allowed {
                    "" => writeln!(toml, "# {}", key.doc),
                    allowed => writeln!(toml, "# {} ({allowed})", key.doc),
                };
            }
            let (line, note) = line(value);
            let _ = writeln!(toml, "{line:<LINE_WIDTH$} # {}{note}", value.origin);
        }
        toml
    }
}

/// The width to which lines are padded, so that the origins line up. Few lines are longer.
const LINE_WIDTH: usize = 40;

impl fmt::Debug for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml(false))
    }
}

fn defaults(
    program: Program,
    index: usize,
    keys: impl Iterator<Item = &'static Key>,
) -> impl Iterator<Item = Value> {
    keys.map(move |key| Value {
        key,
        index,
        text: key.default_in(program).to_owned(),
        origin: Origin::Default,
        is_skipped: false,
    })
}

fn canonical(key: &Key, text: &str) -> String {
    let written = match key.form {
        // In Redis, an empty value means that the partition count does not change.
        Form::Integer if key.path == "store.partitions_before" && text == "0" => {
            Some(String::new())
        }
        Form::Integer => text.parse().ok().map(|number: i128| number.to_string()),
        Form::Span => humantime::parse_duration(text)
            .ok()
            .map(|span| humantime::format_duration(span).to_string()),
        Form::Time => DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|time| time.with_timezone(&Utc).to_rfc3339_opts(SecondsFormat::Secs, true)),
        _ => None,
    };
    written.unwrap_or_else(|| text.to_owned())
}

fn line(Value { key, text, .. }: &Value) -> (String, &'static str) {
    let name = key.name();
    let quoted = |text: &str| toml::Value::from(text).to_string();
    match key.form {
        Form::Secret if text.is_empty() => (format!("# {name}: not set"), ""),
        Form::Secret => (format!("# {name}: {HIDDEN}"), ""),
        Form::Url => {
            let (url, is_hidden) = without_password(text);
            let note = if is_hidden { "; its password is hidden" } else { "" };
            (format!("{name} = {}", quoted(&url)), note)
        }
        Form::Integer | Form::Switch => (format!("{name} = {text}"), ""),
        Form::List => {
            let items: Vec<String> = items(text).map(quoted).collect();
            (format!("{name} = [{}]", items.join(", ")), "")
        }
        _ => (format!("{name} = {}", quoted(text)), ""),
    }
}

/// Removes the password from a valid URL. Returns the URL, and whether it contained a password.
pub(super) fn without_password(text: &str) -> (String, bool) {
    match Url::parse(text) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(None);
            (url.to_string(), true)
        }
        Ok(_) => (text.to_owned(), false),
        // `Url` cannot parse a URL with several hosts.
        Err(_) => {
            let shown = without_secrets(text);
            let is_hidden = shown != text;
            (shown, is_hidden)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_hidden_with_any_number_of_hosts() {
        for (url, expected) in [
            ("redis://u:geheim@h/1", Some("redis://u@h/1")),
            ("redis://:geheim@a:6379/1", None),
            ("redis+cluster://:geheim@a:7000,b:7001", None),
            ("redis+sentinel://eds:geheim@a:26379,b:26379/mymaster", None),
        ] {
            let (shown, is_hidden) = without_password(url);
            assert!(is_hidden && !shown.contains("geheim"), "{shown}");
            assert_eq!(expected.unwrap_or(&shown), shown);
        }
        for url in ["redis://a:6379", "redis+cluster://a:7000,b:7001"] {
            assert_eq!(without_password(url), (url.to_owned(), false));
        }
    }
}
