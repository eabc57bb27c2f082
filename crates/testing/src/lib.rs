//! Servers for the tests. Each test starts its own servers on free ports, and fails if a server does not start.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "read only by tests"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]

pub mod chromium;
pub mod clock;
pub mod eventually;
pub mod http;
pub mod http_proxy;
pub mod influxdb;
pub mod load;
pub mod log;
pub mod lua_redis;
pub mod metrics;
pub mod points;
pub mod ports;
pub mod prelude;
pub mod process;
pub mod prometheus;
pub mod read_back;
pub mod redis;
pub mod redis_cluster;
pub mod redis_proxy;
pub mod redis_sentinel;
pub mod scripted;
pub mod tcp_proxy;
pub mod tls;
pub mod udp_socket;
pub mod victoria_metrics;

/// Asserts that a text contains each of these parts.
#[track_caller]
pub fn assert_contains(text: &str, all: impl IntoIterator<Item: AsRef<str>>) {
    for words in all {
        let words = words.as_ref();
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}
