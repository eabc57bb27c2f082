//! `eds demo` shows the service at once, without any installation.

use std::fs::{self, File};

use testing::process;

use crate::prelude::*;

#[test]
fn the_demo_prints_the_six_numbers_of_the_seed() {
    let directory = TempDir::new().unwrap();
    let stdout = directory.path().join("stdout");
    let mut demo = eds()
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).unwrap())
        .spawn()
        .unwrap();
    let status = process::wait(&mut demo, SOON);
    let said = fs::read_to_string(stdout).unwrap();
    assert!(status.success(), "{status}\n{said}");

    let number = |line: &str| {
        let (key, value) = line.split_once(" value=")?;
        let key =
            key.get(key.find("unique_user_event").or(key.find("cumulative_user_event"))?..)?;
        Some((key.to_owned(), value.split(' ').next()?.parse().ok()?))
    };
    let numbers: Vec<(String, u64)> = said.lines().filter_map(number).collect();
    let expected = [
        ("event_type=http-5xx,product=productA", [1, 2]),
        ("event_type=os_error,product=productA", [1, 1]),
        ("event_type=browser_error,product=productB", [2, 2]),
    ];
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|(series, [unique, cumulative])| {
            [
                (format!("unique_user_event,{series}"), *unique),
                (format!("cumulative_user_event,{series}"), *cumulative),
            ]
        })
        .collect();
    assert_eq!(numbers, expected, "{said}");
}
