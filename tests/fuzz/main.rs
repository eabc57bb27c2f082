//! What comes from outside, made up at random and by what a fuzzer learns: nothing panics, and what is taken keeps
//! the promises of its module.
//!
//! `cargo test` plays the corpus of each target (`__fuzz__/<target>/corpus`) and random inputs for a second;
//! CONTRIBUTING.md says how a real fuzzer goes on for hours.
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

/// How long each target makes up inputs under `cargo test`.
const RANDOM_INPUTS_FOR: Duration = Duration::from_secs(1);
