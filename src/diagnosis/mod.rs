//! [`Diagnosis`]: a finding with its evidence and remedy. Tests compare the texts with `docs/` and `dashboards/`.

mod catalogue;
mod loss;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use serde::ser::{Serialize, SerializeStruct, Serializer};

pub use self::catalogue::{ACKNOWLEDGE, Cause};
pub use self::loss::{ByCause, LossCause};
use crate::event::Rejection;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Data has been lost, or is waiting for an operator.
    Critical,
    /// An operator should check the problem.
    Warning,
    /// No action is needed.
    Note,
}

impl Severity {
    /// Returns the name of this severity in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// A finding. Its `Display` output is a sentence that ends with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Diagnosis {
    /// The cause, which determines the severity, the description of the problem and the default remedy.
    #[serde(flatten)]
    pub cause: Cause,
    /// The affected server, node or output; empty if it is the reporting process.
    pub r#where: String,
    /// The evidence for this finding, such as an error message or a number.
    pub why: String,
    /// The operator's remedy for the problem.
    pub remedy: Cow<'static, str>,
}

impl Diagnosis {
    /// Creates a diagnosis with the texts from the catalogue and this evidence.
    pub fn new(cause: Cause, why: impl Into<String>) -> Self {
        Self { cause, r#where: String::new(), why: why.into(), remedy: cause.remedy().into() }
    }

    /// Sets the affected server, node or output.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.r#where = place.to_string();
        self
    }

    /// Sets a more specific remedy than the one from the catalogue.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Replaces the placeholder `NAME` in the remedy with the name of an output.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let remedy = self.remedy.replace("NAME", name);
        self.remedy(remedy)
    }

    /// Returns the sentence without the remedy.
    #[must_use]
    pub fn head(&self) -> String {
        let why = if self.why.is_empty() { String::new() } else { format!("({})", self.why) };
        sentence(&[("", &self.r#where), (": ", self.cause.what()), (" ", &why)])
    }

    /// Returns the place, evidence and remedy, for a text that already states the problem.
    #[must_use]
    pub fn reason(&self) -> String {
        sentence(&[("", &self.r#where), (": ", &self.why), ("; ", &self.remedy)])
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&[("", &self.head()), ("; ", &self.remedy)]))
    }
}

/// Returns the name of every possible finding, with each of its remedies.
pub fn remedies() -> impl Iterator<Item = (&'static str, &'static str)> {
    let causes = Cause::ALL.iter().map(|cause| (cause.id(), cause.remedy()));
    let losses = LossCause::ALL.iter().map(|loss| (loss.cause().id(), loss.remedy()));
    let rejections = Rejection::ALL.iter();
    let rejections = rejections.map(|reason| (Cause::RejectsLines.id(), reason.remedy()));
    causes.chain(losses).chain(rejections)
}

fn sentence(parts: &[(&str, &str)]) -> String {
    let parts = parts.iter().filter(|(_, text)| !text.is_empty());
    parts.fold(String::new(), |all, (separator, text)| match &*all {
        "" => (*text).to_owned(),
        all => format!("{all}{separator}{text}"),
    })
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Cause", 3)?;
        fields.serialize_field("id", self.id())?;
        fields.serialize_field("severity", self.severity().word())?;
        fields.serialize_field("what", self.what())?;
        fields.end()
    }
}
