//! End-to-end tests of the real binary against real servers, which every test starts for itself.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation must fail the test"
)]

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod activation;
mod away;
mod caps;
mod cluster;
mod connect;
mod connections;
mod count;
mod coverage;
mod cut_off;
mod demo;
mod escaping;
mod failover;
mod forgets;
mod full;
mod hang;
mod healthy;
mod hostile;
mod http_access;
mod http_input;
mod idle;
mod kills;
mod losses;
mod messages;
mod minutes;
mod outage;
mod output_faults;
mod outputs;
mod partitions;
mod power_cut;
mod problems;
mod quarantine;
mod queries;
mod questions;
mod redis_faults;
mod refused;
mod rejected_lines;
mod relay;
mod relay_loops;
mod relay_passthrough;
mod relay_status;
mod remedies;
mod remote_write;
mod rollups;
mod scraped;
mod secrets;
mod seed;
mod send;
mod sentinel;
mod settings;
mod signals;
mod site;
mod skew;
mod slow_link;
mod spool;
mod statsd;
mod status;
mod status_watch;
mod stops;
mod support_itself;
mod telemetry;
mod terminal;
mod tls;
mod unix;
mod upgrade;
mod versions;
mod whole_picture;
mod zeros;

mod prelude {
    pub(crate) use testing::prelude::*;

    pub(crate) use crate::site::{DATABASE, Site};
    pub(crate) use crate::support::load::Sender;
    pub(crate) use crate::support::node::{Node, count, eds, has_logs, wait_count};
}
