//! Servers for the tests: each test starts its own, on a free port, and fails when that does not work.
#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

pub(crate) mod eventually;
pub(crate) mod http_client;
pub(crate) mod http_proxy;
pub(crate) mod influxdb;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod node;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod read_back;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
pub(crate) mod redis_proxy;
pub(crate) mod redis_sentinel;
pub(crate) mod scripted;
pub(crate) mod tcp_proxy;
pub(crate) mod tls;
pub(crate) mod truth;
pub(crate) mod udp_socket;
pub(crate) mod victoria_metrics;
