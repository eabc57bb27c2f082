//! Torture test with real nodes and servers and overlapping random faults. The counts must be exact in both databases.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests panic on failure"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "torture uses a part of this")]
mod support;

#[path = "../end_to_end/site.rs"]
#[allow(dead_code, reason = "torture uses a part of this")]
mod site;

mod fault;
mod phase;
mod store;
mod verdict;
mod world;

use phase::torture;
use store::Kind;
use testing::prelude::*;

/// The duration in a normal test run. The phase that is running at that time is completed.
const SHORT: Duration = Duration::from_secs(20);
const SHORTER: Duration = Duration::from_secs(8);

#[track_caller]
fn short(kind: Kind, lasts: Duration, name: &str) {
    let seed = testing::load::seed();
    let again = format!("EDS_TEST_SEED={seed} cargo test --test torture -- --exact {name}");
    torture(kind, lasts, seed, &again);
}

#[test]
fn short_torture_is_exact() {
    short(Kind::Server, SHORT, "short_torture_is_exact");
}

#[test]
fn short_torture_of_a_cluster_is_exact() {
    let name = "short_torture_of_a_cluster_is_exact";
    short(Kind::Cluster, SHORTER, name);
}

#[test]
fn short_torture_with_sentinels_is_exact() {
    let name = "short_torture_with_sentinels_is_exact";
    short(Kind::Sentinel, SHORTER, name);
}

#[test]
fn script_distinguishes_misuse_from_failure() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/torture");
    for misuse in [
        &[][..],
        &["--minutes"],
        &["--minutes", "0"],
        &["--minutes", "-1"],
        &["--minutes", "1.5"],
        &["--minutes", "1", "--seed", "x"],
        &["--minutes", "1", "--seed", "18446744073709551616"],
        &["--hours", "1"],
        &["--minutes", "1", "--redis"],
        &["--minutes", "1", "--redis", "proxy"],
    ] {
        let output = Command::new(script).args(misuse).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{misuse:?}: {words}");
        assert!(words.contains("usage:"), "{misuse:?}: {words}");
    }
}

/// Runs for as long as requested. `scripts/torture` sets `TORTURE_MINUTES`, `TORTURE_SEED` and `TORTURE_REDIS`.
#[test]
#[ignore = "takes as long as requested; run scripts/torture --minutes N"]
fn long_torture_is_exact() {
    let variable = |name| {
        let value = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        value.parse().unwrap_or_else(|_| panic!("{name} is not an integer"))
    };
    let (minutes, seed): (u64, u64) = (variable("TORTURE_MINUTES"), variable("TORTURE_SEED"));
    let redis = std::env::var("TORTURE_REDIS").unwrap_or_else(|_| "server".to_owned());
    let kind = match redis.as_str() {
        "server" => Kind::Server,
        "forgetful" => Kind::Forgetful,
        "cluster" => Kind::Cluster,
        "sentinel" => Kind::Sentinel,
        other => {
            panic!("TORTURE_REDIS must be server, forgetful, cluster or sentinel, not {other}")
        }
    };
    let again = format!("scripts/torture --minutes {minutes} --seed {seed} --redis {redis}");
    torture(kind, Duration::from_secs(60 * minutes), seed, &again);
}
