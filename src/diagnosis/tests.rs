//! Tests that the catalogue is complete: each cause has a remedy, a row in the documents and code that reports it, and the
//! action of each alert is a remedy from the catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use serde_json::Value;

use super::{Cause, LossCause, Severity, remedies};
use crate::event::Rejection;

/// Causes that neither the log nor `/readyz` reports by name: only an observer of all processes or of Redis can see them,
/// they are thresholds of metrics, or the log has a separate text for each of their reasons.
const SEEN_FROM_OUTSIDE: &[Cause] = &[
    Cause::RedisFills,
    Cause::RedisCannotSave,
    Cause::NodeSilent,
    Cause::ForgottenDespiteAppendOnly,
    Cause::UnconfirmedDespiteAppendOnly,
    Cause::SpoolFills,
    Cause::RejectsLines,
    Cause::NodeLags,
    Cause::NodeLoses,
    Cause::Version,
    Cause::RelaySilent,
    Cause::RelayRejects,
    Cause::NoNode,
    Cause::QuarantineFull,
    Cause::Unsent,
];

/// The environment variable that makes the tests write the tables into the documents.
const UPDATE: &str = "UPDATE_DOCUMENTS";

fn path(relative: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn alerts() -> Vec<Value> {
    let text = fs::read_to_string(path("dashboards/alerts.yml")).unwrap();
    let file: Value = serde_yaml_ng::from_str(&text).unwrap();
    let groups = file["groups"].as_array().unwrap().clone();
    let rules = groups.into_iter().map(|group| group["rules"].clone());
    let rules = rules.flat_map(|rules| rules.as_array().cloned().unwrap());
    rules.filter(|rule| rule.get("alert").is_some()).collect()
}

/// Returns the names of the alerts for each finding.
fn alerts_of_findings() -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let findings = alert["annotations"]["finding"].as_str();
        for finding in findings.unwrap_or_default().split(", ") {
            all.entry(finding.to_owned()).or_default().insert(format!("`{name}`"));
        }
    }
    all
}

/// Asserts that a document contains this table between the marks with this name, or writes the table there if [`UPDATE`] is
/// set.
#[track_caller]
fn assert_documented(document: &str, name: &str, table: &str) {
    let text = fs::read_to_string(path(document)).unwrap();
    let (mark, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&mark).expect("the mark of the table");
    let (written, after) = rest.split_once(&end).expect("the mark of its end");
    if env::var_os(UPDATE).is_some() {
        fs::write(path(document), format!("{before}{mark}\n{table}\n{end}{after}")).unwrap();
    } else {
        let is_same = written.trim() == table.trim();
        assert!(is_same, "{document} is out of date; run this test with {UPDATE}=1");
    }
}

#[test]
fn every_cause_is_documented() {
    let mut table =
        "| finding | severity | what is wrong | what to do | alerts |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    let (alerts, mut before) = (alerts_of_findings(), "");
    let is_same = |a: &Cause, b: &Cause| (a.id(), a.what()) == (b.id(), b.what());
    for causes in Cause::ALL.chunk_by(is_same) {
        let (id, what) = (causes[0].id(), causes[0].what());
        let is_first = before != id;
        let alerts = alerts.get(id).filter(|_| is_first).into_iter().flatten();
        let alerts = alerts.map(String::as_str).collect::<Vec<_>>().join(", ");
        let word = causes[0].severity().word();
        let name = format!("<a id=\"{id}\"></a>`{id}` | {word}");
        let name = if is_first { &name } else { "|" };
        let remedies: Vec<_> = causes.iter().map(|cause| cause.remedy()).collect();
        let remedies = remedies.join("<br>");
        writeln!(table, "| {name} | {what} | {remedies} | {alerts} |").unwrap();
        before = id;
    }
    assert_documented("docs/monitoring.md", "findings", &table);
}

#[test]
fn every_loss_and_rejection_is_documented() {
    let mut table =
        "| cause | finding | what is lost | why | what to do |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for loss in LossCause::ALL {
        let (label, finding) = (loss.label(), loss.cause().id());
        let (what, why, remedy) = (loss.what(), loss.why(), loss.remedy());
        writeln!(table, "| `{label}` | `{finding}` | {what} | {why} | {remedy} |").unwrap();
    }
    assert_documented("docs/monitoring.md", "losses", &table);
    let mut table = "| reason | why | what to do |\n| --- | --- | --- |\n".to_owned();
    for reason in Rejection::ALL {
        let (label, remedy) = (reason.label(), reason.remedy());
        writeln!(table, "| `{label}` | {reason} | {remedy} |").unwrap();
    }
    assert_documented("docs/input.md", "rejections", &table);
}

#[test]
fn every_alert_has_a_finding_and_its_remedy() {
    let known: BTreeSet<_> = remedies().collect();
    for alert in alerts() {
        let (name, annotations) = (&alert["alert"], &alert["annotations"]);
        let text = |key: &str| annotations[key].as_str().unwrap_or_else(|| panic!("{name}: {key}"));
        let action = text("action").replace("{{ $labels.output }}", "NAME");
        for finding in text("finding").split(", ") {
            assert!(known.iter().any(|(id, _)| *id == finding), "{name}: no finding {finding}");
        }
        let (first, url) = (text("finding").split(", ").next().unwrap(), text("runbook_url"));
        let section = format!("{{{{ $externalLabels.docs_of_eds }}}}/monitoring.md#{first}");
        assert_eq!(url, section, "{name}");
        let is_remedy = |id: &str| known.contains(&(id, action.as_str()));
        let mut findings = text("finding").split(", ");
        assert!(findings.any(is_remedy), "{name}: this remedy is not in the catalogue: {action}");
    }
}

/// Adds the path and text of each Rust source file below a directory to `found`.
fn sources(directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path.display().to_string(), text));
        }
    }
}

#[test]
fn every_cause_has_a_remedy_and_is_reported() {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    files.retain(|(path, _)| !path.contains("src/diagnosis/") && !path.ends_with("tests.rs"));
    let lost: BTreeSet<_> = LossCause::ALL.into_iter().map(LossCause::cause).collect();
    for cause in Cause::ALL {
        assert!(!cause.remedy().is_empty() && !cause.what().is_empty(), "{cause:?}");
        // `Node::log_losses` and `status::findings` report all losses.
        if lost.contains(cause) {
            continue;
        }
        let name = format!("Cause::{cause:?}");
        let names = |text: &str| {
            let after = |at: usize| text[at + name.len()..].chars().next();
            let mut places = text.match_indices(&name);
            places.any(|(at, _)| !after(at).is_some_and(char::is_alphanumeric))
        };
        let tellers = files.iter().filter(|(_, text)| names(text));
        let tellers: Vec<&str> = tellers.map(|(path, _)| path.as_str()).collect();
        assert!(!tellers.is_empty(), "no file reports {cause:?}");
        let is_in = |part: &str| tellers.iter().any(|path| path.contains(part));
        // Store and output errors carry their diagnosis.
        let is_carried = is_in("/store/") || is_in("/output/");
        let by_status = is_carried || is_in("/status/") || is_in("/daemon/connect.rs");
        assert!(by_status, "neither eds status nor eds check reports {cause:?}: {tellers:?}");
        let is_process = |path: &&&str| !path.contains("/status/") || path.ends_with("reporter.rs");
        let by_process = is_carried || tellers.iter().filter(is_process).count() > 0;
        let is_note = cause.severity() == Severity::Note;
        let excused = SEEN_FROM_OUTSIDE.contains(cause);
        assert_ne!(by_process || is_note, excused, "log and /readyz, {cause:?}: {tellers:?}");
    }
}
