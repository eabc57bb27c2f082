//! From texts to typed values, gathering every problem on the way.
//!
//! A value that is wrong is reported once, and something stands in for it, so that reading goes on and finds the other
//! problems too. What is read is used only when in the end there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::keys::{KEYS, Key, output};
use super::kind::{File, Read, SecretText};
use super::problem::Problem;
use super::values::{Effective, Origin, Value};
use crate::secret::Secret;

/// What the outputs are called together among what must be alike.
pub const OUTPUTS: &str = "outputs";

/// A secret or PEM file is small; a larger one is another file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the values of keys.
pub(super) struct Reader<'a> {
    values: &'a Effective,
    problems: Vec<Problem>,
    /// Keys, and the outputs of which they are wrong.
    wrong: BTreeSet<(usize, &'static str)>,
    /// What was read, in the canonical form, of each output.
    read: BTreeMap<(usize, &'static str), String>,
    /// The `[[output]]` of which the keys are read.
    output: usize,
    /// Whether the secrets of the output are needed.
    pub(super) sends: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(values: &'a Effective, problems: Vec<Problem>, sends: bool) -> Self {
        let keys = || KEYS.iter().map(|key| key.path);
        let places =
            (0..values.outputs().max(1)).flat_map(|output| keys().map(move |key| (output, key)));
        let is_refused = |&(output, key): &(usize, &'static str)| {
            values.value(key, output).is_some_and(|value| value.is_refused)
        };
        Self {
            values,
            problems,
            wrong: places.filter(is_refused).collect(),
            read: BTreeMap::new(),
            output: 0,
            sends,
        }
    }

    /// How many outputs there are.
    pub(super) fn outputs(&self) -> usize {
        self.values.outputs().max(1)
    }

    /// From now on the keys of outputs are those of the so-many-eth.
    pub(super) fn turn_to_output(&mut self, output: usize) {
        self.output = output;
    }

    /// The output of which this key is; the first for all that are of none.
    fn place(&self, path: &'static str) -> (usize, &'static str) {
        let is_of_output = path.starts_with("output.");
        (if is_of_output { self.output } else { 0 }, path)
    }

    /// The file that was read.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.values.file.clone()
    }

    /// All problems found.
    pub(super) fn finish(self) -> Vec<Problem> {
        self.problems
    }

    /// The paths of all keys that were read.
    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.read.keys().map(|(_, path)| *path)
    }

    /// The keys that all nodes must have alike, each with its value in the canonical form; empty for those that were not
    /// read, since nothing in force has a use for them. Those of the outputs are one, in an order of its own.
    pub(super) fn alike(&self) -> Vec<(&'static str, String)> {
        let read = |output, path| self.read.get(&(output, path)).cloned().unwrap_or_default();
        let alike = KEYS.iter().copied().filter(|key| key.alike);
        let (of_outputs, others): (Vec<&Key>, Vec<&Key>) =
            alike.partition(|key| key.section() == "output");
        let written = |output| {
            let [name, url] = [output::name.path, output::url.path].map(|path| read(output, path));
            let rest = of_outputs.iter().filter(|key| !["name", "url"].contains(&key.name()));
            let rest = rest.map(|key| (key.name(), read(output, key.path)));
            let rest = rest.filter(|(_, value)| !value.is_empty());
            rest.fold(format!("{name} {url}"), |text, (name, value)| {
                format!("{text} {name}={value}")
            })
        };
        let mut outputs: Vec<_> = (0..self.outputs()).map(written).collect();
        outputs.sort_unstable();
        let others = others.into_iter().map(|key| (key.path, read(0, key.path)));
        others.chain([(OUTPUTS, outputs.join("; "))]).collect()
    }

    /// Reads a value. After a problem it is the default of its type.
    pub(super) fn read<K: Read>(&mut self, key: &'static Key<K>) -> K::Value {
        let text = self.text(key.path);
        let place = self.place(key.path);
        self.read.insert(place, key.kind.canonical(text));
        if !self.wrong.contains(&place) {
            match key.kind.read(text) {
                Ok(value) => return value,
                Err(text) => self.wrong(key.path, &text),
            }
        }
        K::Value::default()
    }

    /// A size that is a length in memory.
    pub(super) fn length<K: Read<Value = u64>>(&mut self, key: &'static Key<K>) -> usize {
        usize::try_from(self.read(key)).unwrap_or(usize::MAX)
    }

    /// A text that may be left out.
    pub(super) fn optional<K: Read<Value = String>>(
        &mut self,
        key: &'static Key<K>,
    ) -> Option<String> {
        Some(self.read(key)).filter(|text| !text.is_empty())
    }

    /// A text that this output cannot do without.
    pub(super) fn required<K: Read<Value = String>>(
        &mut self,
        key: &'static Key<K>,
        reason: &str,
    ) -> String {
        let text = self.read(key);
        let problem = format!("is not set, but {reason}; set it");
        self.together(&[key.path], !text.is_empty(), &problem);
        text
    }

    /// A secret, from the environment or from a file.
    pub(super) fn secret(
        &mut self,
        key: &'static Key<SecretText>,
        file_key: &'static Key<File>,
    ) -> Option<Secret> {
        match (self.optional(key), self.read(file_key)) {
            (Some(_), Some(_)) => {
                let problem = format!("is set, and so is {}; keep one of them", file_key.path);
                self.wrong(key.path, &problem);
                None
            }
            (Some(secret), None) => Some(Secret::new(&secret)),
            (None, Some(file)) => self.or_report(file_key.path, secret_in(&file)),
            (None, None) => None,
        }
    }

    /// The bytes of a PEM file.
    pub(super) fn pem(&mut self, key: &'static Key<File>) -> Option<Vec<u8>> {
        let file = self.read(key)?;
        self.or_report(key.path, pem_in(&file))
    }

    fn or_report<T>(&mut self, path: &'static str, read: Result<T, String>) -> Option<T> {
        read.map_err(|text| self.wrong(path, &text)).ok()
    }

    /// Requires something of several keys together, unless one of them was found wrong; the first is the one to blame.
    pub(super) fn together(&mut self, paths: &[&'static str], holds: bool, text: &str) {
        if let ([blamed, ..], false) = (paths, holds)
            && paths.iter().all(|path| !self.wrong.contains(&self.place(path)))
        {
            self.wrong(blamed, text);
        }
    }

    /// The text in force; empty where there is nothing.
    pub(super) fn text(&self, path: &str) -> &'a str {
        self.value(path).map_or("", |value| &value.text)
    }

    /// Whether everyone on this host can see the value of this key.
    pub(super) fn is_of_a_flag(&self, path: &str) -> bool {
        let value = self.value(path);
        value.is_some_and(|value| matches!(value.origin, Origin::Flag(_)))
    }

    fn value(&self, path: &str) -> Option<&'a Value> {
        self.values.value(path, self.output)
    }

    /// Reports that the value of this key is wrong. The origin goes with it, but a default is nobody's doing.
    pub(super) fn wrong(&mut self, path: &'static str, text: &str) {
        let place = self.place(path);
        self.wrong.insert(place);
        let origin = self.value(path).map(|value| value.origin.clone());
        let is_of_several = path.starts_with("output.") && self.outputs() > 1;
        self.problems.push(Problem {
            origin: origin.filter(|origin| *origin != Origin::Default),
            key: if is_of_several {
                format!("{path} of {:?}", self.text(output::name.path))
            } else {
                path.to_owned()
            },
            text: text.to_owned(),
        });
    }
}

fn secret_in(file: &Path) -> Result<Secret, String> {
    let text = String::from_utf8(bytes_in(file)?).unwrap_or_default();
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains(char::is_control) {
        let hint = "write only the secret into it";
        return Err(format!("{} does not hold one line of text; {hint}", file.display()));
    }
    Ok(Secret::new(line))
}

fn pem_in(file: &Path) -> Result<Vec<u8>, String> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let bytes = bytes_in(file)?;
    if !bytes.windows(BEGIN.len()).any(|window| window == BEGIN) {
        let hint = "it should hold a line -----BEGIN …-----";
        return Err(format!("{} is not a PEM file; {hint}", file.display()));
    }
    Ok(bytes)
}

fn bytes_in(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file);
    let file = file.display();
    match opened.and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
        Ok(count) if count as u64 <= FILE_BYTES_MAX => Ok(bytes),
        Ok(_) => Err(format!("{file} is larger than 1MiB; name the right file")),
        Err(error) => {
            let hint = "name a file that the service's user may read";
            Err(format!("{file} cannot be read: {error}; {hint}"))
        }
    }
}
