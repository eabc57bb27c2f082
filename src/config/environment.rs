//! The environment: `EDS_SECTION__KEY`, and `EDS_NODE`.
//!
//! A variable that begins with `EDS_` and names no key is an error, for it was surely meant to.

use std::ffi::OsString;

use super::keys::{KEYS, Key, VARIABLE_PREFIX};
use super::problem::{Problem, nearest_variable};
use super::source::{Origin, Raw, Settings};

pub(super) fn read(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    settings: &mut Settings,
    problems: &mut Vec<Problem>,
) {
    let ours = environment.into_iter().filter_map(|(name, value)| {
        let name = name.to_string_lossy().into_owned();
        name.starts_with(VARIABLE_PREFIX).then_some((name, value))
    });
    let mut ours: Vec<(String, OsString)> = ours.collect();
    // The system gives them in no order; the problems have one.
    ours.sort();
    for (name, value) in ours {
        let problem = |key: &str, text: String| Problem {
            origin: Some(Origin::Environment(name.clone())),
            key: key.to_owned(),
            text,
        };
        let Some(path) = KEYS
            .iter()
            .find(|key| key.variable() == name)
            .map(Key::path)
        else {
            let text = format!("unknown key; did you mean {}?", nearest_variable(&name));
            problems.push(problem("", text));
            continue;
        };
        if let (Some(key), Some(value)) = (Key::find(&path), value.to_str()) {
            settings.set(
                &path,
                Raw::from_text(key.kind, value),
                Origin::Environment(name),
            );
        } else {
            settings.spoil(&path);
            problems.push(problem(&path, "is not UTF-8; write it in UTF-8".to_owned()));
        }
    }
}
