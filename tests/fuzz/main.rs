//! Random and coverage-guided input for every parser: nothing panics, and accepted input keeps the promises of its
//! module.
//!
//! `cargo test` replays the corpus of each target (`__fuzz__/<target>/corpus`) and adds random input for a second;
//! CONTRIBUTING.md explains how to run libFuzzer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where something is not as it must be"
)]

mod config;
mod corpus;
mod datagram;
mod line;
mod points;
mod relay;
mod spelling;
mod spool;

use std::time::Duration;

/// The time for random input of each target under `cargo test`.
const RANDOM_INPUTS_FOR: Duration = Duration::from_secs(1);
