//! The reported version, and which storage formats a node and commands accept.

use event_data_service::store::redis::FORMATS;
use event_data_service::{BUILD, COMMIT, VERSION};

use serde_json::json;

use crate::prelude::*;

#[test]
fn node_reports_its_version_and_commit() {
    let output = eds().arg("--version").output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, format!("eds {VERSION} ({COMMIT})\n"));
    let output = eds().args(["--version", "--json"]).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["version"], &said["commit"]), (&VERSION.into(), &COMMIT.into()));
    assert_eq!(said["layouts"], json!(["sets", "log"]));
    assert_eq!(said["formats"], json!({ "oldest": FORMATS.start(), "newest": FORMATS.end() }));
    let node = Node::start("one", &[]);
    let labels = [("version", VERSION), ("commit", COMMIT)];
    assert_eq!(node.metrics().count_of("eds_build_info", &labels), 1);
    let started = eventually("the start is logged", SOON, || {
        let log = node.log();
        let started = log.lines().find(|line| line.contains(" started "));
        started.map(ToOwned::to_owned).ok_or(log.clone())
    });
    for label in [format!("version=\"{VERSION}\""), format!("commit=\"{COMMIT}\"")] {
        assert!(started.contains(&label), "{started}");
    }
}

#[test]
fn unknown_format_is_refused_with_both_formats_and_the_writer() {
    let site = Site::start();
    let mut node = site.start_node("one", &[]);
    // Once a node has recorded an event, its startup check, which exits on a newer format, is over.
    node.send(b"event_type=login value=ann");
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 1);
    let stands = |field| site.redis.query::<String>(&["HGET", "eds:settings", field]);
    assert_eq!(stands("format"), FORMATS.end().to_string());
    assert_eq!(stands("format_by"), BUILD);

    let newer = (FORMATS.end() + 1).to_string();
    let by = "9.9.9 (0123456789)";
    let write = ["HSET", "eds:settings", "format", &newer, "format_by", by];
    site.redis.query::<u64>(&write);
    let words = [
        format!("format {newer}, written by {by}"),
        format!("{BUILD}, reads format {}", FORMATS.end()),
    ];
    eventually("the running node reports the format", SOON, || {
        let answer = node.get("/readyz").unwrap();
        let all = words.iter().all(|words| answer.body.contains(words));
        when(answer.status == 503 && all, answer.body)
    });
    assert_eq!(node.terminate().code(), Some(0));
    node.launch();
    assert_eq!(node.wait_for_exit(SOON).code(), Some(1));
    for command in [["settings", "apply"], ["quarantine", "list"]] {
        let output = node.says(&command, 1, "");
        assert!(words.iter().all(|words| output.contains(words)), "{output}");
    }
    assert_eq!(stands("format"), newer);
}
