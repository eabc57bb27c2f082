//! Which version runs, and which versions may share a Redis.

use event_data_service::store::redis::FORMATS;
use event_data_service::{BUILD, COMMIT, VERSION};

use crate::prelude::*;

#[test]
fn node_reports_its_version_and_commit() {
    let output = eds().arg("--version").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("eds {VERSION} ({COMMIT})\n"));
    let node = Node::start("one", &[]);
    let labels = [("version", VERSION), ("commit", COMMIT)];
    assert_eq!(node.metrics().count_of("eds_build_info", &labels), 1);
    let started = eventually("the log says that it started", SOON, || {
        let log = node.log();
        let started = log.lines().find(|line| line.contains(" started "));
        started.map(ToOwned::to_owned).ok_or(log.clone())
    });
    for said in [format!("version=\"{VERSION}\""), format!("commit=\"{COMMIT}\"")] {
        assert!(started.contains(&said), "{started}");
    }
}

#[test]
fn unknown_format_is_refused_with_both_formats_and_the_writer() {
    let site = Site::start();
    let mut node = site.start_node("one", &[]);
    // A node records after its check of the store, by which a newer format would end it.
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
    eventually("a node that runs says so", SOON, || {
        let answer = node.get("/readyz").unwrap();
        let all = words.iter().all(|words| answer.body.contains(words));
        when(answer.status == 503 && all, answer.body)
    });
    assert_eq!(node.terminate().code(), Some(0));
    node.launch();
    assert_eq!(node.wait_for_exit(SOON).code(), Some(1));
    for command in [["settings", "apply"], ["quarantine", "list"]] {
        let said = node.says(&command, 1, "");
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
    }
    assert_eq!(stands("format"), newer);
}
