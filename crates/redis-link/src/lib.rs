//! Connections to Redis: one server, the master that Redis Sentinel names, or the masters of a Redis Cluster; in the clear, by
//! TLS or by a Unix socket.
//!
//! [`Redis`] runs commands on the server of a slot. It adds to the crate `redis` what a service needs that must not hang and
//! must not forget:
//!
//! - **Every wait is bounded**: connecting, each answer, a peer that vanishes. While a server is away one caller
//!   tries to connect, after a pause that grows, and all others fail at once.
//! - **Generations.** A number changes whenever a server may have forgotten what it confirmed: with a lost connection, another
//!   server, another replication id. Who remembers what is stored compares it, and stores it again.
//! - **Lanes.** A server has several connections, so that a large command on one does not delay another.
//! - **One [`Fault`]** says in one short line what an error means and of which server, and of which [kind](FaultKind) it is.
//! - **What a user checks** on each new connection is handed in.
//!
//! - **Turns.** Large commands wait for each other, so that each is answered in time over a slow way, too.
//! - **Idle connections.** That the other side has ended one is found out only in use. A command that [may be carried out
//!   twice](Attempts::Two) is then sent once more, over a new connection.
//!
//! Nothing else is sent twice: a command that failed may have been carried out, and only its caller knows whether it may be
//! again, see [`Redis::may_repeat`].

mod fault;
mod flight;
mod link;
mod server;
mod settings;
mod topology;
mod url;

use std::sync::Arc;

use ::redis::{Client, RedisError};
use tokio::time::Instant;

pub use self::fault::{Fault, FaultKind, find_tls, on_one_line};
pub use self::link::Connection;
pub use self::server::Server;
pub use self::settings::{
    Address, Credentials, Dial, Endpoint, Settings, SettingsError, Stream, Timeouts, Tls,
};
use self::topology::Topology;
pub use self::url::{URL_FORMS, UrlError, without_secrets};

/// Looks whether a server may be used, by its answer to INFO; called with every new connection, since that may lead to another
/// server than the last.
pub type Check = Arc<dyn Fn(&str) -> Result<(), Fault> + Send + Sync>;

/// One of the connections to each server, by its number from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(pub usize);

/// How many connections there are to each server.
#[derive(Debug, Clone, Copy)]
pub struct Lanes {
    /// The first ones: when one of these breaks the generation changes, and the server's replication id is looked at before
    /// commands, once a second at most.
    pub watched: usize,
    /// Those that follow, made when they are first used.
    pub others: usize,
}

/// How often a command is sent at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// It may not be carried out twice.
    One,
    /// It reads, or changes nothing the second time. If its connection was lost it is sent once more, except on a watched lane, whose
    /// connections are looked at before use: there another connection is another generation.
    Two,
}

/// Connections to Redis. See the [crate].
#[derive(Debug)]
pub struct Redis {
    topology: Topology,
    watched: usize,
}

impl Redis {
    /// Connections by these settings. Connects with the first command.
    pub fn new(settings: Settings, lanes: Lanes, check: Check) -> Result<Self, SettingsError> {
        Ok(Self { topology: Topology::new(settings, lanes, check)?, watched: lanes.watched })
    }

    /// The server that keeps a slot.
    pub async fn server(&self, slot: u16) -> Result<Arc<Server>, Fault> {
        self.topology.server(slot).await
    }

    /// All servers that are known.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.topology.servers()
    }

    /// A number that changes when the server of this slot may have forgotten what it confirmed; 0 while no server is known.
    #[must_use]
    pub fn generation(&self, slot: u16) -> u64 {
        self.topology.generation(slot)
    }

    /// The server of this slot lacks what it confirmed: its generation becomes another one.
    pub fn forgot(&self, slot: u16) {
        self.topology.forgot(slot);
    }

    /// The map of servers may be wrong: it is looked up again before the next command.
    pub fn suspect(&self) {
        self.topology.suspect();
    }

    /// Where the servers are, for the log, without secrets.
    #[must_use]
    pub fn describe(&self) -> String {
        self.topology.address().to_string()
    }

    /// A client for one of the servers, another one for each number as far as there are more: for connections of which there
    /// is one for all slots, as for messages.
    pub async fn client(&self, number: usize) -> Result<Client, Fault> {
        let any = self.server(0).await?;
        let servers = self.servers();
        let server = servers.get(number % servers.len().max(1)).unwrap_or(&any);
        Ok(server.client().clone())
    }

    /// Runs a command whose keys are in this slot, and that may be carried out twice.
    pub async fn run<T, F>(&self, slot: u16, lane: Lane, command: F) -> Result<T, Fault>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let server = self.server(slot).await?;
        self.run_on(&server, lane, 0, Attempts::Two, command).await
    }

    /// Whether a command that failed, and that may be carried out twice, is worth to be sent again: when another server may
    /// have become responsible for its slot, and no longer than an answer may take after it was `begun`. Waits until that
    /// server is looked for again.
    pub async fn may_repeat(&self, fault: &Fault, begun: Instant) -> bool {
        let may = fault.kind != FaultKind::Full
            && !fault.is_refusal()
            && self.topology.is_suspect()
            && begun.elapsed() < self.topology.answers_within();
        if may {
            tokio::time::sleep(topology::REFRESH_INTERVAL).await;
        }
        may
    }

    /// Runs a command on this server if its generation still is this one, or any if it is 0.
    pub async fn run_on<T, F>(
        &self,
        server: &Server,
        lane: Lane,
        generation: u64,
        attempts: Attempts,
        command: F,
    ) -> Result<T, Fault>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let mut connection = self.connection(server, lane).await?;
        if attempts == Attempts::Two && lane.0 >= self.watched {
            connection.repeats_by = Some(Arc::clone(server.link(lane)));
        }
        // The connection is at hand and never made again by itself, so this holds for the command, too.
        if generation != 0 && server.generation() != generation {
            return Err(Fault::unavailable("connected again since it was last asked").at(server));
        }
        command(&mut connection).await.map_err(|error| {
            if fault::may_have_moved(&error) {
                self.suspect();
            }
            server.link(lane).failed(&connection, &error)
        })
    }

    /// A connection of the lane, to a server that has its data where the lane is watched.
    async fn connection(&self, server: &Server, lane: Lane) -> Result<Connection, Fault> {
        let link = server.link(lane);
        let connection = link.connection().await;
        let mut connection = connection.inspect_err(|_| self.suspect())?;
        if lane.0 >= self.watched || !link.is_time_to_look() {
            return Ok(connection);
        }
        connection.repeats_by = Some(Arc::clone(link));
        let looked = server.has_its_data(&mut connection).await;
        connection.repeats_by = None;
        if !looked.map_err(|error| link.failed(&connection, &error))? {
            let reason = "its replication id changed: it may lack what it confirmed";
            tracing::warn!("Redis at {}: {reason}", server.endpoint());
            return Err(Fault::unavailable(reason).at(server));
        }
        Ok(connection)
    }
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it, modulo 16384, as the Redis Cluster specification has it.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let from = key.iter().position(|&byte| byte == b'{')? + 1;
        let length = key[from..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[from..from + length])
    };
    let crc = tag().unwrap_or(key).iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16384
}

/// A field of an answer to INFO.
#[must_use]
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"bar{foo}{zap}"), 12182);
        assert_eq!(slot(b"foo{}{bar}"), 8363);
    }
}
