//! Tests every parser with random and coverage-guided input. No parser may panic, and results must be valid.
//!
//! `cargo test` replays the corpus of each target and then uses random input. CONTRIBUTING.md explains how to run libFuzzer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests panic on failure"
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

/// How long `cargo test` runs each target with random input.
const RANDOM_INPUTS_FOR: Duration = Duration::from_secs(1);
