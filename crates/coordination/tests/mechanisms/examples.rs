//! The examples as a reader runs them, in memory and on a Redis: each shows the failure of the naive way, and its
//! absence with this crate.

use std::process::Command;

use crate::site::Site;

/// Runs an example; returns its output.
fn run(name: &str, url: Option<&str>) -> String {
    let tests = std::env::current_exe().unwrap();
    // `cargo test` builds examples, too.
    let example = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    let output = Command::new(&example).args(url).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {printed}\n{errors}");
    printed
}

/// The numbers of the line that begins so.
fn numbers(printed: &str, what: &str) -> Vec<u32> {
    let mut lines = printed.lines();
    let line = lines.find_map(|line| line.strip_prefix(&format!("{what}: ")));
    let line = line.unwrap_or_else(|| panic!("nothing about {what}:\n{printed}"));
    line.split(' ').filter_map(|it| it.parse().ok()).collect()
}

fn in_memory_and_on_redis(name: &str, check: impl Fn(&dyn Fn(&str) -> Vec<u32>)) {
    let site = Site::redis();
    for url in [None, Some(site.url())] {
        let printed = run(name, url.as_deref());
        check(&|what| numbers(&printed, what));
    }
}

#[test]
fn a_naive_lock_lets_two_in_and_a_mutex_one() {
    in_memory_and_on_redis("lock", |of| {
        assert!(of("naive")[0] > 1);
        assert_eq!(of("Mutex"), [1]);
    });
}

#[test]
fn naive_requests_compute_a_list_each_and_those_of_compute_once_one() {
    in_memory_and_on_redis("compute_once", |of| {
        assert_eq!((of("naive"), of("ComputeOnce")), (vec![5], vec![1]));
    });
}

#[test]
fn a_list_replaced_step_by_step_is_read_half_way_and_one_of_atomic_replace_is_not() {
    in_memory_and_on_redis("atomic_replace", |of| {
        assert!(of("naive")[0] > 1);
        assert_eq!(of("AtomicReplace"), [1]);
    });
}

#[test]
fn many_compute_a_hot_value_that_expired_and_one_refreshes_it_early() {
    in_memory_and_on_redis("early_refresh", |of| {
        let (naive, once, early) = (of("naive"), of("ComputeOnce"), of("refreshed early"));
        assert!(naive[0] > once[0] * 2, "{naive:?} {once:?}");
        assert_eq!((naive[1], once[1]), (0, 0));
        // Only those that find no value.
        assert!(early[1] > 0 && early[2] < once[2], "{early:?} {once:?}");
    });
}
