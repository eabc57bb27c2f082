//! `eds demo` shows the service in action without any setup.

use std::fs::{self, File};

use testing::process;

use crate::prelude::*;
use crate::seed::COUNTS;

#[test]
fn demo_prints_the_counts_of_two_minutes_and_their_window() {
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
        Some((key.to_owned(), value.split([' ', ',']).next()?.parse().ok()?))
    };
    let mut numbers: Vec<(String, u64)> = output.lines().filter_map(number).collect();
    let both = |suffix: &'static str, (series, unique, cumulative): (&str, u64, u64)| {
        let [of_users, of_events] =
            ["unique", "cumulative"].map(|kind| format!("{kind}_user_event{suffix},{series}"));
        [(of_users, unique), (of_events, cumulative)]
    };
    // The first series has another event of the same user in the next minute.
    let again = (COUNTS[0].0, 1, 1);
    let window = COUNTS
        .map(|(series, users, events)| (series, users, events + u64::from(series == again.0)));
    let minutes = COUNTS.into_iter().chain([again]).flat_map(|counts| both("", counts));
    let mut expected: Vec<_> =
        minutes.chain(window.into_iter().flat_map(|counts| both("_5m", counts))).collect();
    numbers.sort();
    expected.sort();
    assert_eq!(numbers, expected, "{output}");
}
