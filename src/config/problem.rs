//! What is wrong with a configuration, as a message to whoever has to fix it.

use std::fmt::{self, Write as _};

use super::keys::Key;
use super::values::Origin;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the value came from; `None` when nothing gave one.
    pub origin: Option<Origin>,
    /// The key, such as `flush.grace`; empty when no key is to blame.
    pub key: String,
    /// What is wrong, and what to write instead.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        // A name of the file may hold anything; a problem is one line all the same, and a terminal obeys nothing in it.
        for character in self.text.chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, found in one go. Displays as one problem a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// Puts the problems in the order in which one fixes them: the file's by line, then the environment's, then
    /// the flags', then those of keys that nothing set.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match &problem.origin {
            Some(Origin::File(_, line)) => (0, *line),
            Some(Origin::Environment(_)) => (1, 0),
            Some(Origin::Flag(_)) => (2, 0),
            Some(Origin::Default | Origin::HostName) | None => (3, 0),
        });
        Self(problems)
    }

    /// The problems. There is at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// The path of the key among these that was most likely meant by this name in this section. A right name in the wrong
/// section is taken for a slip of the section.
pub(super) fn nearest_key(
    keys: impl Iterator<Item = &'static Key>,
    section: &str,
    name: &str,
) -> &'static str {
    let nearest = keys.min_by_key(|key| {
        let sections =
            strsim::damerau_levenshtein(section, key.section()).min(SECTION_DISTANCE_MAX);
        strsim::damerau_levenshtein(name, key.name()) + sections
    });
    nearest.map_or("", |key| key.path)
}

/// Even a section that is wholly another weighs no more than this many wrong letters in the name.
const SECTION_DISTANCE_MAX: usize = 2;

/// The section that was most likely meant.
pub(super) fn nearest_section(
    keys: impl Iterator<Item = &'static Key>,
    name: &str,
) -> &'static str {
    let sections = keys.map(Key::section).filter(|section| !section.is_empty());
    sections.min_by_key(|section| strsim::damerau_levenshtein(name, section)).unwrap_or_default()
}

/// The variable that was most likely meant.
pub(super) fn nearest_variable(keys: impl Iterator<Item = &'static Key>, name: &str) -> String {
    keys.map(Key::variable)
        .min_by_key(|variable| strsim::damerau_levenshtein(name, variable))
        .unwrap_or_default()
}
