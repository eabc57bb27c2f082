//! Which version runs.

use event_data_service::{COMMIT, VERSION};

use crate::support::node::{Node, eds};

#[test]
fn a_node_tells_its_version_and_commit() {
    let output = eds().arg("--version").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("eds {VERSION} ({COMMIT})\n"));
    let node = Node::start("one", &[]);
    let labels = [("version", VERSION), ("commit", COMMIT)];
    assert_eq!(node.metrics().count_of("eds_build_info", &labels), 1);
    let log = node.log();
    let started = log.lines().find(|line| line.contains(" started ")).unwrap();
    for said in [
        format!("version=\"{VERSION}\""),
        format!("commit=\"{COMMIT}\""),
    ] {
        assert!(started.contains(&said), "{started}");
    }
}
