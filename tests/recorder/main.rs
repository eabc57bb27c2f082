//! Recorders with a store that is replaced, and with caps.

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
