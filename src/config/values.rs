//! The values in force: one for each key, as a text, with where it came from. `eds check` prints them. The keys of
//! `[output]` have one for each `[[output]]` of the file.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use super::keys::{Key, Program};
use super::kind::{Form, items};
use super::url;
use crate::secret::HIDDEN;

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

/// The value in force for one key.
#[derive(Clone)]
pub(super) struct Value {
    pub(super) key: &'static Key,
    /// As the environment would have it.
    pub(super) text: String,
    pub(super) origin: Origin,
    /// The source that should have given the value gave something that is not one, and that is reported.
    pub(super) is_refused: bool,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the text: it may be a secret. `Effective::to_toml` shows what may be shown.
        f.debug_struct("Value")
            .field("key", &self.key.path)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// The section that there may be several of.
const OUTPUT: &str = "output";

/// The values in force, in the order of the table.
#[derive(Debug, Clone)]
pub struct Effective {
    /// One for each key.
    values: Vec<Value>,
    /// Those of each `[[output]]`, which stand for those of `[output]` among `values`.
    outputs: Vec<Vec<Value>>,
    /// The file that was read.
    pub(super) file: Option<PathBuf>,
}

/// The default of each of these keys.
fn defaults(program: Program, keys: impl Iterator<Item = &'static Key>) -> Vec<Value> {
    let value = |key: &'static Key| Value {
        key,
        text: key.default_in(program).to_owned(),
        origin: Origin::Default,
        is_refused: false,
    };
    keys.map(value).collect()
}

impl Effective {
    pub(super) fn defaults(program: Program) -> Self {
        Self { values: defaults(program, program.keys()), outputs: Vec::new(), file: None }
    }

    /// The keys that there are.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.values.iter().map(|value| value.key)
    }

    /// Begins another `[[output]]`.
    pub(super) fn add_output(&mut self) {
        let keys = Program::Node.keys().filter(|key| key.section() == OUTPUT);
        self.outputs.push(defaults(Program::Node, keys));
    }

    /// Forgets every `[[output]]`.
    pub(super) fn forget_outputs(&mut self) {
        self.outputs.clear();
    }

    /// How many `[[output]]` there are. None: one `[output]`.
    pub(super) fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Whether this key has no one value, but one of each `[[output]]`.
    pub(super) fn is_of_several(&self, key: &Key) -> bool {
        key.section() == OUTPUT && self.outputs.len() > 1
    }

    /// The value of this key; of an output that of the last `[[output]]`.
    fn last(&mut self, path: &str) -> Option<&mut Value> {
        let is_it = |value: &&mut Value| value.key.path == path;
        let of_output = self.outputs.last_mut();
        let of_output = of_output.and_then(|values| values.iter_mut().find(is_it));
        of_output.or_else(|| self.values.iter_mut().find(is_it))
    }

    /// Sets a key; of an output that of the last `[[output]]`.
    pub(super) fn set(&mut self, path: &str, text: String, origin: Origin) {
        if let Some(value) = self.last(path) {
            (value.text, value.origin, value.is_refused) = (text, origin, false);
        }
    }

    /// Remembers that this key has a value that was refused already.
    pub(super) fn refuse(&mut self, path: &str) {
        if let Some(value) = self.last(path) {
            value.is_refused = true;
        }
    }

    /// The value of this key; of an output that of the so-many-eth `[[output]]`.
    pub(super) fn value(&self, path: &str, output: usize) -> Option<&Value> {
        let is_it = |value: &&Value| value.key.path == path;
        let of_output = self.outputs.get(output);
        let of_output = of_output.and_then(|values| values.iter().find(is_it));
        of_output.or_else(|| self.values.iter().find(is_it))
    }

    /// Each section: its heading, empty for the keys at the top, and its values.
    fn sections(&self) -> impl Iterator<Item = (String, &[Value])> {
        let sections = self.values.chunk_by(|a, b| a.key.section() == b.key.section());
        sections.flat_map(|values| match values[0].key.section() {
            OUTPUT if !self.outputs.is_empty() => {
                let outputs = self.outputs.iter();
                outputs.map(|values| (format!("[[{OUTPUT}]]"), &values[..])).collect()
            }
            "" => vec![(String::new(), values)],
            section => vec![(format!("[{section}]"), values)],
        })
    }

    /// TOML with one key a line and its origin behind it. Secrets are comments that say `[hidden]`. With
    /// `explain`, what each key is for stands above it.
    #[must_use]
    pub fn to_toml(&self, explain: bool) -> String {
        let mut text = String::new();
        for (heading, values) in self.sections() {
            if !heading.is_empty() {
                let _ = write!(text, "\n{heading}\n");
            }
            for value in values {
                if explain {
                    let _ = write!(text, "# {}", value.key.doc);
                    let allowed = value.key.kind.allowed();
                    let _ = match &*allowed {
                        "" => writeln!(text),
                        allowed => writeln!(text, " ({allowed})"),
                    };
                }
                let (line, note) = line(value);
                let _ = writeln!(text, "{line:<LINE_WIDTH$} # {}{note}", value.origin);
            }
        }
        text
    }
}

/// Most lines are shorter, so that the origins form a column.
const LINE_WIDTH: usize = 40;

fn line(Value { key, text, .. }: &Value) -> (String, &'static str) {
    let name = key.name();
    let quoted = |text: &str| toml::Value::from(text).to_string();
    match key.kind.form() {
        Form::Secret => {
            let shown = if text.is_empty() { "not set" } else { HIDDEN };
            (format!("# {name}: {shown}"), "")
        }
        Form::Url => {
            let (url, is_hidden) = url::without_password(text);
            let note = if is_hidden { "; its password is hidden" } else { "" };
            (format!("{name} = {}", quoted(&url)), note)
        }
        Form::Integer => (format!("{name} = {text}"), ""),
        Form::List => {
            let items: Vec<String> = items(text).map(quoted).collect();
            (format!("{name} = [{}]", items.join(", ")), "")
        }
        Form::Text | Form::Time | Form::Path | Form::SecretFile => {
            (format!("{name} = {}", quoted(text)), "")
        }
    }
}
