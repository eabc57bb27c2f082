//! The TOML file.
//!
//! It is read as a tree with the place of each value, not by serde into a struct, so that every mistake is
//! found in one go and each has a line. No message quotes a line of the file: it may hold a secret.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::keys::{Key, Program};
use super::kind::Form;
use super::problem::{Problem, nearest_key, nearest_section};
use super::values::{Effective, Origin};

impl Program {
    /// The file that is read when `--config` names none. It may be missing.
    #[must_use]
    pub const fn default_file(self) -> &'static str {
        match self {
            Self::Node => "/etc/eds/eds.toml",
            Self::Relay => "/etc/eds/relay.toml",
        }
    }
}

/// Reads the named file, or the program's own if it exists. False when it could not be read or is not TOML.
pub(super) fn read(
    program: Program,
    named: Option<&Path>,
    values: &mut Effective,
    problems: &mut Vec<Problem>,
) -> bool {
    let path = named.unwrap_or(Path::new(program.default_file()));
    match std::fs::read_to_string(path) {
        Ok(text) => {
            values.file = Some(path.to_owned());
            read_text(path, &text, values, problems)
        }
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => true,
        Err(error) => {
            let origin = Some(Origin::File(path.to_owned(), 0));
            let text = format!("cannot be read: {error}; name a readable file by --config");
            problems.push(Problem { origin, key: String::new(), text });
            false
        }
    }
}

/// Reads a file's text, as if it had stood at this path.
pub(super) fn read_text(
    path: &Path,
    text: &str,
    values: &mut Effective,
    problems: &mut Vec<Problem>,
) -> bool {
    let (tree, errors) = DeTable::parse_recoverable(text);
    let mut file = File { path: path.to_owned(), text, values, problems };
    // After one error a parser may see more in the same line; the first is the true one.
    let mut lines = BTreeSet::new();
    for error in &errors {
        let span = error.span().unwrap_or_default();
        if lines.insert(file.line(&span)) {
            match error.message() {
                "duplicate key" => file.duplicate(&span),
                message => file.problem(&span, "", format!("this is not TOML: {message}")),
            }
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
    values: &'a mut Effective,
    problems: &'a mut Vec<Problem>,
}

impl File<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let is_section =
                (self.values.keys()).any(|key| key.section() == name.get_ref().as_ref());
            match value.get_ref() {
                DeValue::Table(inner) if is_section => self.section(name.get_ref(), inner),
                DeValue::Array(entries)
                    if is_section && name.get_ref() == "output" && !entries.is_empty() =>
                {
                    self.outputs(name, entries);
                }
                _ if is_section => {
                    let text = format!(
                        "is a section; write [{0}] on a line of its own, and its keys below",
                        name.get_ref()
                    );
                    self.problem(&name.span(), name.get_ref(), text);
                }
                DeValue::Table(_) if !self.is_key(name.get_ref()) => {
                    let nearest = nearest_section(self.values.keys(), name.get_ref());
                    let text =
                        format!("unknown section [{}]; did you mean [{nearest}]?", name.get_ref());
                    self.problem(&name.span(), "", text);
                }
                _ => self.entry("", name, value),
            }
        }
    }

    /// `[[output]]`, again and again.
    fn outputs(&mut self, name: &Spanned<DeString<'_>>, entries: &DeArray<'_>) {
        for entry in entries {
            if let DeValue::Table(table) = entry.get_ref() {
                self.values.add_output();
                self.section("output", table);
            } else {
                let text = "is no list of values; write [[output]] above the keys of each output";
                self.problem(&entry.span(), name.get_ref(), text.to_owned());
            }
        }
    }

    fn is_key(&self, path: &str) -> bool {
        self.values.keys().any(|key| key.path == path)
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            self.entry(section, name, value);
        }
    }

    fn entry(&mut self, section: &str, name: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let is_it = |key: &&Key| key.section() == section && key.name() == name.get_ref();
        let Some(key) = self.values.keys().find(is_it) else {
            let dot = if section.is_empty() { "" } else { "." };
            let path = format!("{section}{dot}{}", name.get_ref());
            let nearest = nearest_key(self.values.keys(), section, name.get_ref());
            return self.problem(
                &name.span(),
                "",
                format!("unknown key {path}; did you mean {nearest}?"),
            );
        };
        if key.kind.form() == Form::Secret {
            let text = format!(
                "a secret has no place in this file; put it into a file of its own and name that by {}_file, or set {}",
                key.path,
                key.variable()
            );
            self.values.refuse(key.path);
            return self.problem(&name.span(), key.path, text);
        }
        match text(key.kind.form(), value.get_ref()) {
            Ok(text) => {
                let origin = self.origin(&name.span());
                self.values.set(key.path, text, origin);
            }
            Err(hint) => {
                let text = match &*key.kind.allowed() {
                    "" => format!("is {} here; {hint}", kind_of(value.get_ref())),
                    allowed => format!("is {} here; {hint}: {allowed}", kind_of(value.get_ref())),
                };
                self.values.refuse(key.path);
                self.problem(&value.span(), key.path, text);
            }
        }
    }

    /// Reports a key or a section that is given twice, with its first place. The parser tells only the second.
    fn duplicate(&mut self, span: &Range<usize>) {
        let line = self.line(span);
        let before: Vec<_> = self.text.lines().take(line).map(named).collect();
        let name = before.last().copied().unwrap_or_default();
        let key = self.text.get(span.clone()).unwrap_or_default();
        if !name.trim_end_matches(']').ends_with(key) {
            return self.problem(
                span,
                "",
                format!("the key {key} is given twice in one value; keep one of them"),
            );
        }
        let mut earlier = before.iter().rev().skip(1);
        let first = earlier.position(|it| *it == name).map(|ago| line - 1 - ago);
        let place = first.map_or(String::new(), |first| format!(" and in line {first}"));
        if name.starts_with('[') {
            let text =
                format!("{name} is given here{place}; keep one of them, with the keys of both");
            return self.problem(span, "", text);
        }
        let is_section = |it: &&&str| it.starts_with('[');
        let section = before.iter().rev().find(is_section);
        let section = section.map_or("", |it| it.trim_matches(['[', ']']));
        let dot = if section.is_empty() { "" } else { "." };
        let text = format!("is given here{place}; keep one of them");
        self.problem(span, &format!("{section}{dot}{name}"), text);
    }

    fn problem(&mut self, span: &Range<usize>, key: &str, text: String) {
        let origin = Some(self.origin(span));
        self.problems.push(Problem { origin, key: key.to_owned(), text });
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File(self.path.clone(), self.line(span))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        1 + memchr::memchr_iter(b'\n', before).count()
    }
}

/// Returns the key of a line of a file, or its section in brackets; never a value, which may be a secret.
fn named(line: &str) -> &str {
    let line = line.trim_start();
    let end = if line.starts_with('[') { ['#', '\n'] } else { ['=', '#'] };
    line.split(end).next().unwrap_or_default().trim_end()
}

/// The value as the environment would have it, or how a value of this form is written.
fn text(form: Form, value: &DeValue<'_>) -> Result<String, &'static str> {
    match (form, value) {
        (Form::List, DeValue::Array(items)) => {
            let items: Option<Vec<_>> = items.iter().map(|item| item.get_ref().as_str()).collect();
            items.map(|items| items.join(",")).ok_or(WRITE_LIST)
        }
        (Form::List, _) => Err(WRITE_LIST),
        (Form::Integer, DeValue::Integer(number)) => {
            // A number beyond i128 is out of every range anyway; its text is refused as none.
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            Ok(decimal.map_or(number.as_str().to_owned(), |number| number.to_string()))
        }
        (Form::Integer, _) => Err("write a whole number without quotes"),
        (Form::Time, DeValue::Datetime(at)) => Ok(at.to_string()),
        (_, DeValue::String(text)) => Ok(text.to_string()),
        _ => Err("write a text in quotes"),
    }
}

const WRITE_LIST: &str = "write a list of texts, such as [\"127.0.0.1:8094\"]";

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
