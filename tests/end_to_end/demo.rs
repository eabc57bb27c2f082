//! `eds demo` shows the service in action without any setup.

use std::fs::{self, File};

use testing::process;

use crate::prelude::*;
use crate::seed::COUNTS;

#[test]
fn demo_prints_its_six_counts() {
    let directory = TempDir::new().unwrap();
    let stdout = directory.path().join("stdout");
    let mut demo = eds()
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).unwrap())
        .spawn()
        .unwrap();
    let status = process::wait(&mut demo, SOON);
    let output = fs::read_to_string(stdout).unwrap();
    assert!(status.success(), "{status}\n{output}");

    let number = |line: &str| {
        let (key, value) = line.split_once(" value=")?;
        let key =
            key.get(key.find("unique_user_event").or(key.find("cumulative_user_event"))?..)?;
        Some((key.to_owned(), value.split(' ').next()?.parse().ok()?))
    };
    let numbers: BTreeMap<String, u64> = output.lines().filter_map(number).collect();
    let both = |(series, unique, cumulative)| {
        let [of_users, of_events] =
            ["unique", "cumulative"].map(|kind| format!("{kind}_user_event,{series}"));
        [(of_users, unique), (of_events, cumulative)]
    };
    assert_eq!(numbers, COUNTS.into_iter().flat_map(both).collect(), "{output}");
}
