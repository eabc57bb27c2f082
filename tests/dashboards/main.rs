//! What a real node and a real relay write and report.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of this")]
mod support;

mod names;
mod self_metrics;
mod world;
