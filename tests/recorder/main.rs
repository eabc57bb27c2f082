//! Tests recorders with caps, and with a store that fails or is replaced.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod caps;
mod outages;
mod replaced;
mod setup;
mod store;
