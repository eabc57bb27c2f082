//! What `eds check` prints: the values in force and where each came from, as a file that is valid itself.

use std::fmt::Write;

use super::kind::Kind;
use super::source::{Raw, Setting, Settings};
use super::url;
use crate::secret::HIDDEN;

/// The values in force.
#[derive(Debug, Clone)]
pub struct Effective(pub(super) Settings);

impl Effective {
    /// TOML with one key a line and its origin behind it. Secrets are comments that say `[hidden]`. With
    /// `explain`, what each key is for stands above it.
    #[must_use]
    pub fn to_toml(&self, explain: bool) -> String {
        let mut text = String::new();
        let mut section = "";
        for setting in self.0.iter() {
            if setting.key.section != section {
                section = setting.key.section;
                let _ = write!(text, "\n[{section}]\n");
            }
            if explain {
                let _ = writeln!(text, "# {}", setting.key.doc);
            }
            let (line, note) = line(setting);
            let _ = writeln!(text, "{line:<LINE_WIDTH$} # {}{note}", setting.origin);
        }
        text
    }
}

/// Most lines are shorter, so that the origins form a column.
const LINE_WIDTH: usize = 40;

fn line(setting: &Setting) -> (String, &'static str) {
    let name = setting.key.name;
    let quoted = |text: &str| toml::Value::from(text).to_string();
    match (&setting.raw, setting.key.kind) {
        (Raw::One(text), Kind::SecretText { .. }) => {
            let shown = if text.is_empty() { "not set" } else { HIDDEN };
            (format!("# {name}: {shown}"), "")
        }
        (Raw::One(text), Kind::StoreUrl | Kind::OutputUrl) => {
            let (url, hidden) = url::without_password(text);
            (
                format!("{name} = {}", quoted(&url)),
                if hidden {
                    "; its password is hidden"
                } else {
                    ""
                },
            )
        }
        (Raw::One(text), Kind::Integer { .. }) => (format!("{name} = {text}"), ""),
        (Raw::One(text), _) => (format!("{name} = {}", quoted(text)), ""),
        (Raw::List(items), _) => {
            let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
            (format!("{name} = [{}]", items.join(", ")), "")
        }
    }
}
