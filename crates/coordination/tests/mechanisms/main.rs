//! Tests all mechanisms in memory, with a real Redis server, with a real Redis Cluster, and with several processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests panic on failure"
)]

mod site;

mod chaos;
mod clocked;
mod compute_once;
mod documents;
mod early_refresh;
mod events;
mod evictions;
mod examples;
mod failovers;
mod fallbacks;
mod faulty;
mod flights;
mod lifetimes;
mod model;
mod mutex;
mod processes;
mod reference;
mod replace;
mod worker;
