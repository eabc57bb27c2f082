//! The house is kept as ARCHITECTURE.md says: which module may use which, how long a file is, what a file says
//! of itself.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot read the sources fails"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules that a module may use, beside itself.
const MAY_USE: &[(&str, &[&str])] = &[
    ("event", &[]),
    ("secret", &[]),
    ("text", &[]),
    ("config", &["secret"]),
    ("send", &["event"]),
    ("store", &["event", "secret", "text"]),
    ("output", &["event", "secret", "text"]),
    ("node", &["event"]),
    ("telemetry", &["event", "node"]),
    ("spool", &["event", "node", "telemetry"]),
    ("ingest", &["event", "node", "spool", "store", "telemetry"]),
    ("flush", &["event", "node", "output", "store", "telemetry"]),
    ("http", &["event", "node", "store", "telemetry"]),
    ("quarantine", &["event", "store"]),
    (
        "daemon",
        &[
            "config",
            "event",
            "flush",
            "http",
            "ingest",
            "node",
            "output",
            "quarantine",
            "spool",
            "store",
            "telemetry",
        ],
    ),
    (
        "demo",
        &[
            "daemon", "event", "flush", "http", "ingest", "output", "store",
        ],
    ),
    (
        "cli",
        &["config", "daemon", "demo", "quarantine", "send", "text"],
    ),
];

/// A longer file does two things.
const LINES_MAX: usize = 360;

/// The sources of the package or of all crates, by their path from the top.
fn sources(of: &str) -> BTreeMap<PathBuf, String> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&top.join(of), &mut found);
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(top).unwrap().into(), text)
        })
        .collect()
}

fn all_sources() -> BTreeMap<PathBuf, String> {
    let mut all = sources("src");
    all.append(&mut sources("crates"));
    all
}

/// The top-level module that a file belongs to; `None` for the roots.
fn module(path: &Path) -> Option<String> {
    let first = path.iter().nth(1).unwrap().to_str().unwrap();
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(module, "lib" | "main")).then(|| module.to_owned())
}

/// The top-level modules that a line of code names by `crate::`.
fn uses(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    let end = |text: &str| {
        text.find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len())
    };
    code.split("crate::")
        .skip(1)
        .flat_map(|rest| {
            if let Some(list) = rest.strip_prefix('{') {
                let list = list.split('}').next().unwrap_or_default();
                list.split(',')
                    .map(str::trim)
                    .map(|item| &item[..end(item)])
                    .collect()
            } else {
                vec![&rest[..end(rest)]]
            }
        })
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn imports_run_downwards_only() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let Some(module) = module(&path) else {
            continue;
        };
        let (_, allowed) = MAY_USE
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module} is not in the table of {}", file!()));
        for (number, line) in text.lines().enumerate() {
            for used in uses(line) {
                let is_module = MAY_USE.iter().any(|(name, _)| *name == used);
                if is_module && used != module && !allowed.contains(&used) {
                    wrong.push(format!("{}:{}: {used}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports that the architecture does not have:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_module_is_in_the_code_map() {
    let map = include_str!("../ARCHITECTURE.md");
    for path in sources("src").keys() {
        if let Some(module) = module(path) {
            assert!(
                map.contains(&format!("`{module}`")),
                "{module} is not in ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_does_one_thing() {
    for (path, text) in all_sources() {
        assert!(
            text.starts_with("//! "),
            "{} does not say what it is",
            path.display()
        );
        let path_text = path.to_string_lossy();
        let is_test = ["/tests/", "tests.rs", "crates/testing/"]
            .iter()
            .any(|part| path_text.contains(part));
        let lines = text.lines().count();
        assert!(
            is_test || lines <= LINES_MAX,
            "{} has {lines} lines",
            path.display()
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    for (path, text) in all_sources() {
        for mark in ["TODO", "FIXME", "XXX", "todo!", "unimplemented!", "dbg!"] {
            assert!(!text.contains(mark), "{} has a {mark}", path.display());
        }
    }
}

/// What stands in the log is read by people: `Some("127.0.0.1:8095")` is Rust, `127.0.0.1:8095` an address.
#[test]
fn nothing_is_logged_as_rust_has_it() {
    let is_debug = |line: &str| {
        let names = |(_, rest): (usize, &str)| rest[1..].starts_with(|c: char| c.is_alphabetic());
        let fields = line.match_indices('?').map(|(at, _)| (at, &line[at..]));
        fields.filter(|field| names(*field)).any(|(at, _)| {
            let before = line[..at].trim_end();
            before.is_empty() || before.ends_with(['=', ',']) || before.ends_with("!(")
        })
    };
    assert!(is_debug("    ?level,") && is_debug("error!(workers = ?stalled, "));
    assert!(!is_debug("    .find(x)?.next();"));
    for (path, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(!is_debug(code), "{place} logs a field by `?`");
        }
    }
}
