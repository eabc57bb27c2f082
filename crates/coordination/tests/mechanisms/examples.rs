//! Runs the example, in memory and with a Redis server.

use std::process::Command;

use crate::site::Site;

fn check(url: Option<&str>) {
    let tests = std::env::current_exe().unwrap();
    // `cargo test` also builds examples.
    let example = tests.ancestors().nth(2).unwrap().join("examples/mechanisms");
    let output = Command::new(&example).args(url).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{errors}");
    // Returns the numbers in the line that begins with `name`.
    let numbers_of = |name: &str| -> Vec<u32> {
        let mut lines = printed.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let line = line.unwrap_or_else(|| panic!("no line for {name}:\n{printed}"));
        line.split(' ').filter_map(|number| number.parse().ok()).collect()
    };
    assert_eq!((numbers_of("AtomicReplace"), numbers_of("ComputeOnce")), (vec![2], vec![1]));
    let early = numbers_of("early refresh");
    // An overloaded machine may miss a refresh.
    assert!(early[0] > 0 && early[1] < early[0], "{early:?}");
}

#[test]
fn example_runs_in_memory() {
    check(None);
}

#[test]
fn example_runs_on_redis() {
    check(Some(&Site::redis().url()));
}
