//! From raw values to typed ones, gathering every problem on the way.
//!
//! A value that is wrong is reported once, and its default stands in for it, so that reading goes on and finds
//! the other problems too. What is read is used only when in the end there is none.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;

use super::kind::{self, Kind};
use super::problem::Problem;
use super::source::{Origin, Raw, Settings};
use crate::secret::{Pem, Secret};

/// A secret or PEM file is small; a larger one is another file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads values by the path of their key, such as `flush.grace`.
pub(super) struct Reader<'a> {
    settings: &'a Settings,
    problems: Vec<Problem>,
    wrong: BTreeSet<String>,
    asked: BTreeSet<String>,
    /// Whether the secrets of the output are needed.
    pub(super) sends: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(settings: &'a Settings, problems: Vec<Problem>, sends: bool) -> Self {
        let unsound = settings.iter().filter(|setting| setting.unsound);
        let wrong = unsound.map(|setting| setting.key.path()).collect();
        Self {
            settings,
            problems,
            wrong,
            asked: BTreeSet::new(),
            sends,
        }
    }

    /// All problems found, and the paths of all keys that were read.
    pub(super) fn finish(self) -> (Vec<Problem>, BTreeSet<String>) {
        (self.problems, self.asked)
    }

    /// Reads a value of any kind. After a problem it is the default.
    pub(super) fn read<T: Default>(
        &mut self,
        path: &str,
        parse: fn(Kind, &Raw) -> Result<T, String>,
    ) -> T {
        self.asked.insert(path.to_owned());
        let Some(setting) = self.settings.get(path) else {
            self.wrong(
                path,
                "is read, but not in the table of keys; please report this",
            );
            return T::default();
        };
        let kind = setting.key.kind;
        if !self.wrong.contains(path) {
            match parse(kind, &setting.raw) {
                Ok(value) => return value,
                Err(text) => self.wrong(path, &text),
            }
        }
        parse(kind, &Raw::from_text(kind, setting.key.default)).unwrap_or_default()
    }

    pub(super) fn text(&mut self, path: &str) -> String {
        self.read(path, kind::text)
    }

    /// A text that may be left out.
    pub(super) fn optional(&mut self, path: &str) -> Option<String> {
        Some(self.text(path)).filter(|text| !text.is_empty())
    }

    /// A text that this output cannot do without.
    pub(super) fn required(&mut self, path: &str, reason: &str) -> String {
        let text = self.text(path);
        if text.is_empty() && self.sound(&[path]) {
            self.wrong(path, &format!("is not set, but {reason}; set it"));
        }
        text
    }

    /// A whole number that counts things.
    pub(super) fn count(&mut self, path: &str) -> usize {
        let number = self.read(path, kind::integer);
        usize::try_from(number).unwrap_or(usize::MAX)
    }

    /// One of the words, as what it stands for.
    pub(super) fn choice<T: Copy>(
        &mut self,
        path: &str,
        meanings: &[(&str, T)],
        otherwise: T,
    ) -> T {
        let word = self.read(path, kind::choice);
        let meaning = meanings.iter().find(|(known, _)| *known == word);
        if meaning.is_none() {
            self.wrong(
                path,
                &format!("{word:?} has no meaning yet; please report this"),
            );
        }
        meaning.map_or(otherwise, |(_, meaning)| *meaning)
    }

    /// A secret, from the environment or from a file.
    pub(super) fn secret(&mut self, path: &str, file_path: &str) -> Option<Secret> {
        let secret = self.optional(path);
        let file = self.read(file_path, kind::path);
        match (secret, file) {
            (Some(_), Some(_)) => {
                self.wrong(
                    path,
                    &format!("is set, and so is {file_path}; keep one of them"),
                );
                None
            }
            (Some(secret), None) => Some(Secret::new(&secret)),
            (None, Some(file)) => {
                let bytes = self.file(file_path, &file)?;
                let text = String::from_utf8(bytes).ok();
                let text = text
                    .as_deref()
                    .map(|text| text.strip_suffix('\n').unwrap_or(text));
                let text = text.map(|text| text.strip_suffix('\r').unwrap_or(text));
                match text {
                    Some(text) if !text.is_empty() && !text.contains(char::is_control) => {
                        Some(Secret::new(text))
                    }
                    _ => {
                        let text = format!(
                            "{} does not hold one line of text; write only the secret into it",
                            file.display()
                        );
                        self.wrong(file_path, &text);
                        None
                    }
                }
            }
            (None, None) => None,
        }
    }

    /// A PEM file.
    pub(super) fn pem(&mut self, path: &str) -> Option<Pem> {
        let file = self.read(path, kind::path)?;
        let bytes = self.file(path, &file)?;
        if !bytes
            .windows(PEM_BEGIN.len())
            .any(|window| window == PEM_BEGIN)
        {
            self.wrong(
                path,
                &format!(
                    "{} is no PEM file; it should hold a line -----BEGIN …-----",
                    file.display()
                ),
            );
            return None;
        }
        Some(Pem { path: file, bytes })
    }

    fn file(&mut self, path: &str, file: &PathBuf) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(file);
        match opened.and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Ok(count) if count as u64 <= FILE_BYTES_MAX => Some(bytes),
            Ok(_) => {
                self.wrong(
                    path,
                    &format!(
                        "{} is larger than 1MiB; name the right file",
                        file.display()
                    ),
                );
                None
            }
            Err(error) => {
                let mend = "name a file that the service's user may read";
                self.wrong(
                    path,
                    &format!("{} cannot be read: {error}; {mend}", file.display()),
                );
                None
            }
        }
    }

    /// Whether none of these keys was found wrong, so that they may be held against each other.
    pub(super) fn sound(&self, paths: &[&str]) -> bool {
        paths.iter().all(|path| !self.wrong.contains(*path))
    }

    /// Requires something of several keys together; the first is the one to blame.
    pub(super) fn together(&mut self, paths: &[&str], holds: bool, text: &str) {
        if let ([blamed, ..], false) = (paths, holds)
            && self.sound(paths)
        {
            self.wrong(blamed, text);
        }
    }

    /// Whether somebody set this key to something.
    pub(super) fn is_given(&self, path: &str) -> bool {
        let setting = self.settings.get(path);
        setting.is_some_and(|setting| setting.raw.one().is_ok_and(|text| !text.is_empty()))
    }

    /// Where the value of this key comes from.
    pub(super) fn origin(&self, path: &str) -> Option<&'a Origin> {
        self.settings.get(path).map(|setting| &setting.origin)
    }

    /// Reports that the value of this key is wrong. The origin goes with it, but a default is nobody's doing.
    pub(super) fn wrong(&mut self, path: &str, text: &str) {
        self.wrong.insert(path.to_owned());
        let origin = self
            .origin(path)
            .filter(|origin| **origin != Origin::Default)
            .cloned();
        self.problems.push(Problem {
            origin,
            key: path.to_owned(),
            text: text.to_owned(),
        });
    }
}

const PEM_BEGIN: &[u8] = b"-----BEGIN ";
