//! How many descriptors the process may have open, and how many of them are left for HTTP.
//!
//! A connection that anybody may open never takes the descriptor of a socket, of a segment on disk, of Redis or of the
//! output. systemd sets the limit (`LimitNOFILE=` in `eds.service`); a process cannot raise it beyond that.

use redis_link::Address;

use crate::config::{Config, Store};
use crate::http::CONNECTIONS_MAX;
use crate::telemetry::open_files_max;

/// The standard streams, the runtime, signals, the log, the listening socket, the output: some 12. The rest is for the
/// look-up of a name, the files of a reload, and whatever a library opens for a moment.
const BASE: usize = 32;
/// The lock, the directory, a segment that is written and those that are read.
const SPOOL: usize = 8;
/// To record, to drain, to read, to share lists and to hear of them; twice, since a connection that broke may linger while
/// the next is made.
const PER_SERVER: usize = 10;
/// The masters that a Redis Cluster may have beside those that are named.
const UNNAMED_MASTERS: usize = 16;
/// However small the limit is, /healthz must answer.
const CONNECTIONS_MIN: usize = 4;

/// The most HTTP connections that leave enough for all else. Says so when the limit is too small for the usual.
pub(super) fn left_for_http(config: &Config) -> usize {
    let needed = needed(config);
    let Some(limit) = open_files_max() else {
        return CONNECTIONS_MAX;
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let left = limit.saturating_sub(needed).min(CONNECTIONS_MAX);
    if left < CONNECTIONS_MAX {
        tracing::warn!(
            limit,
            needed,
            connections = left.max(CONNECTIONS_MIN),
            "the process may open few files: sockets, spool, Redis and output need some, and HTTP gets only what is left; \
             raise LimitNOFILE= in eds.service or `ulimit -n` to {} at least",
            needed + CONNECTIONS_MAX
        );
    }
    left.max(CONNECTIONS_MIN)
}

fn needed(config: &Config) -> usize {
    let servers = match &config.store {
        Store::Memory { .. } => 0,
        Store::Redis(settings) => match &settings.redis.address {
            Address::Cluster { nodes } => nodes.len() + UNNAMED_MASTERS,
            Address::Sentinel { sentinels, .. } => sentinels.len() + 1,
            Address::Tcp { .. } | Address::Unix(_) => 1,
        },
    };
    let service = &config.service;
    let spool = service.spool.as_ref().map_or(0, |_| SPOOL);
    BASE + service.listen.len() * service.threads + spool + servers * PER_SERVER
}
