//! What is wrong, and what to do: [`Diagnosis`], the one form in which every part of the program says it, and the [`Cause`]s that there are.
//!
//! `catalogue.rs` is the table of causes, `loss.rs` that of what may be lost; the reasons to reject a line stand in
//! `event/rejection.rs`. `eds status`, the page, `/readyz`, `eds check --connect`, the log, and by tests the tables in
//! `docs/` and the alerts have their words from there.

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

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something is lost, or waits until somebody does something.
    Critical,
    /// Somebody should look at it.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// Something that is wrong. Displays as one sentence, the remedy at its end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Diagnosis {
    /// The cause, from which the other texts come as far as nobody knows better.
    #[serde(flatten)]
    pub cause: Cause,
    /// Of whom it is; empty: of whoever says it.
    pub r#where: String,
    /// What is wrong.
    pub what: Cow<'static, str>,
    /// The evidence.
    pub why: String,
    /// What to do.
    pub remedy: Cow<'static, str>,
}

impl Diagnosis {
    /// A diagnosis in the words of the catalogue, with this evidence.
    pub fn new(cause: Cause, why: impl Into<String>) -> Self {
        Self {
            cause,
            r#where: String::new(),
            what: cause.what().into(),
            why: why.into(),
            remedy: cause.remedy().into(),
        }
    }

    /// The same of this server, node or output.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.r#where = place.to_string();
        self
    }

    /// The same with the numbers in what is wrong.
    #[must_use]
    pub fn what(mut self, what: impl Into<Cow<'static, str>>) -> Self {
        self.what = what.into();
        self
    }

    /// The same with a remedy for this very case.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The same with the name that is meant in the place of `NAME` in the remedy.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let remedy = self.remedy.replace("NAME", name);
        self.remedy(remedy)
    }

    /// All but the remedy.
    #[must_use]
    pub fn head(&self) -> String {
        let why = match &*self.why {
            "" => String::new(),
            why => format!("({why})"),
        };
        sentence(&[("", &self.r#where), (": ", &self.what), (" ", &why)])
    }

    /// Of whom it is, the evidence and the remedy, for those who say themselves what is wrong.
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

/// Every finding that there may be, with each remedy.
pub fn remedies() -> impl Iterator<Item = (&'static str, &'static str)> {
    let causes = Cause::ALL.iter().map(|it| (it.id(), it.remedy()));
    let losses = LossCause::ALL.iter().map(|it| (it.cause().id(), it.remedy()));
    let rejections = Rejection::ALL.iter();
    let rejections = rejections.map(|it| (Cause::RejectsLines.id(), it.remedy()));
    causes.chain(losses).chain(rejections)
}

/// The texts that are not empty, each but the first with what stands before it.
fn sentence(parts: &[(&str, &str)]) -> String {
    let parts = parts.iter().filter(|(_, text)| !text.is_empty());
    parts.fold(String::new(), |all, (before, text)| match &*all {
        "" => (*text).to_owned(),
        all => format!("{all}{before}{text}"),
    })
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Cause", 2)?;
        fields.serialize_field("id", self.id())?;
        fields.serialize_field("severity", self.severity().word())?;
        fields.end()
    }
}
