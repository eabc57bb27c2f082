//! The TOML file.
//!
//! It is read as a tree with the place of each value, not by serde into a struct, so that every mistake is
//! found in one go and each has a line. No message quotes a line of the file: it may hold a secret.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::keys::{KEYS, Key};
use super::kind::Kind;
use super::problem::{Problem, nearest_key, nearest_section};
use super::source::{DEFAULT_FILE, Origin, Raw, Settings};

/// Reads the named file, or the default one if it exists. False when it could not be read or is not TOML.
pub(super) fn read(
    named: Option<&Path>,
    settings: &mut Settings,
    problems: &mut Vec<Problem>,
) -> bool {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => read_text(path, &text, settings, problems),
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => true,
        Err(error) => {
            let origin = Some(Origin::File(path.to_owned(), 0));
            let text = format!("cannot be read: {error}; name a readable file by --config");
            problems.push(Problem {
                origin,
                key: String::new(),
                text,
            });
            false
        }
    }
}

/// Reads a file's text, as if it had stood at this path.
pub(super) fn read_text(
    path: &Path,
    text: &str,
    settings: &mut Settings,
    problems: &mut Vec<Problem>,
) -> bool {
    let (tree, errors) = DeTable::parse_recoverable(text);
    let mut file = File {
        path: path.to_owned(),
        text,
        settings,
        problems,
    };
    // After one error a parser may see more in the same line; the first is the true one.
    let mut lines = BTreeSet::new();
    for error in &errors {
        let span = error.span().unwrap_or_default();
        if lines.insert(file.line(&span)) {
            file.problem(&span, "", format!("this is no TOML: {}", error.message()));
        }
    }
    if errors.is_empty() {
        file.top(tree.get_ref());
    }
    errors.is_empty()
}

struct File<'a> {
    path: PathBuf,
    text: &'a str,
    settings: &'a mut Settings,
    problems: &'a mut Vec<Problem>,
}

impl File<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let is_section = KEYS
                .iter()
                .any(|key| key.section == name.get_ref().as_ref());
            match value.get_ref() {
                DeValue::Table(inner) if is_section => self.section(name.get_ref(), inner),
                _ if is_section => {
                    let text = format!(
                        "is a section; write [{0}] on a line of its own, and its keys below",
                        name.get_ref()
                    );
                    self.problem(&name.span(), name.get_ref(), text);
                }
                DeValue::Table(_) if Key::find(name.get_ref()).is_none() => {
                    let nearest = nearest_section(name.get_ref());
                    let text = format!(
                        "unknown section [{}]; did you mean [{nearest}]?",
                        name.get_ref()
                    );
                    self.problem(&name.span(), "", text);
                }
                _ => self.entry("", name, value),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            self.entry(section, name, value);
        }
    }

    fn entry(&mut self, section: &str, name: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let known = KEYS
            .iter()
            .find(|key| (key.section, key.name) == (section, name.get_ref().as_ref()));
        let Some(key) = known else {
            let path = if section.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{section}.{}", name.get_ref())
            };
            let nearest = nearest_key(section, name.get_ref())
                .map(Key::path)
                .unwrap_or_default();
            return self.problem(
                &name.span(),
                "",
                format!("unknown key {path}; did you mean {nearest}?"),
            );
        };
        let path = key.path();
        if let Kind::SecretText { file } = key.kind {
            let text = format!(
                "a secret has no place in this file; put it into a file of its own and name that by {file}, or set {}",
                key.variable()
            );
            self.settings.spoil(&path);
            return self.problem(&name.span(), &path, text);
        }
        match raw(key.kind, value.get_ref()) {
            Ok(raw) => {
                let origin = self.origin(&name.span());
                self.settings.set(&path, raw, origin);
            }
            Err(wanted) => {
                let text = format!("is {} here; {wanted}", kind_of(value.get_ref()));
                self.settings.spoil(&path);
                self.problem(&value.span(), &path, text);
            }
        }
    }

    fn problem(&mut self, span: &Range<usize>, key: &str, text: String) {
        let origin = Some(self.origin(span));
        self.problems.push(Problem {
            origin,
            key: key.to_owned(),
            text,
        });
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File(self.path.clone(), self.line(span))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..span.start)
            .unwrap_or(self.text.as_bytes());
        1 + memchr::memchr_iter(b'\n', before).count()
    }
}

/// The value of a key of this kind, or which TOML value it wants.
fn raw(kind: Kind, value: &DeValue<'_>) -> Result<Raw, &'static str> {
    match (kind, value) {
        (Kind::Addresses, DeValue::Array(items)) => {
            let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
            let items: Option<Vec<String>> = items.iter().map(text).collect();
            items.map(Raw::List).ok_or(WANTS_LIST)
        }
        (Kind::Addresses, _) => Err(WANTS_LIST),
        (Kind::Integer { .. }, DeValue::Integer(number)) => {
            // A number beyond i128 is out of every range anyway; its text is refused as no number.
            let decimal = i128::from_str_radix(number.as_str(), number.radix())
                .map(|number| number.to_string());
            Ok(Raw::One(
                decimal.unwrap_or_else(|_| number.as_str().to_owned()),
            ))
        }
        (Kind::Integer { .. }, _) => Err("write a whole number without quotes"),
        (_, DeValue::String(text)) => Ok(Raw::One(text.to_string())),
        (Kind::Instant, DeValue::Datetime(at)) => Ok(Raw::One(at.to_string())),
        (Kind::Duration { .. }, _) => {
            Err("write a text with a unit, such as \"100ms\", \"30s\" or \"1h\"")
        }
        (Kind::Size { .. }, _) => Err("write a text with a unit, such as \"64KiB\" or \"8MiB\""),
        _ => Err("write a text in quotes"),
    }
}

const WANTS_LIST: &str = "write a list of texts, such as [\"127.0.0.1:8094\"]";

fn kind_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => format!("the number {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::String(text) => format!("the text {text:?}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
