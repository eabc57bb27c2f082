//! The mechanisms of coordination, each over memory, a real Redis and a real Redis Cluster of three masters, and
//! among several processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics if anything is wrong"
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
