//! A node of this build, and who sends to it; [`testing`] has everything that needs no node.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

pub(crate) mod load;
pub(crate) mod node;
