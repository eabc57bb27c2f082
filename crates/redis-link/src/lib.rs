#![doc = include_str!("../README.md")]

mod fault;
mod flight;
mod link;
mod secret;
mod server;
mod settings;
mod topology;
mod url;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::{Client, RedisError};
use tokio::sync::Mutex;
use tokio::time::Instant;

pub use self::fault::{Fault, FaultKind, find_tls, on_one_line};
pub use self::link::Connection;
use self::link::Link;
pub use self::secret::{HIDDEN, Secret};
pub use self::server::Server;
pub use self::settings::{
    Address, Credentials, Dial, Endpoint, Settings, SettingsError, Timeouts, Tls,
};
use self::topology::{LAST_SLOT, Slots};
pub use self::url::{URL_FORMS, UrlError, without_secrets};

const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// Checks an INFO reply, and returns a fault if the server must not be used. Called for every new connection.
pub type Check = Arc<dyn Fn(&str) -> Result<(), Fault> + Send + Sync>;

/// The index of one of the connections to a server, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(pub usize);

/// How many connections are made to each server.
#[derive(Debug, Clone, Copy)]
pub struct Lanes {
    /// The number of watched lanes, which are the first ones. The server's generation changes if the connection of a watched
    /// lane is lost, or if [`Redis::look`] finds a new replication ID. A command on a watched lane looks first if the last
    /// look that was answered is 2 s old.
    pub watched: usize,
    /// The number of other lanes. If one of them is lost, the generation stays the same.
    pub others: usize,
}

/// The connections to all servers of an address; see the [crate].
pub struct Redis {
    settings: Arc<Settings>,
    lanes: Lanes,
    check: Check,
    map: RwLock<Arc<Slots<Arc<Server>>>>,
    servers: AtomicU64,
    is_stale: AtomicBool,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    times: usize,
    last: Option<(Instant, Fault)>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Redis {
    /// Returns connections to the address in `settings`, to be established on first use. Fails if a certificate is invalid.
    pub fn new(settings: Settings, lanes: Lanes, check: Check) -> Result<Self, SettingsError> {
        let endpoint = settings.address.server().cloned();
        // Reports an invalid certificate now, because a client is made for each connection.
        let any = Endpoint::Tcp("localhost".to_owned(), 1);
        settings.client(endpoint.as_ref().unwrap_or(&any))?;
        let redis = Self {
            settings: Arc::new(settings),
            lanes,
            check,
            map: RwLock::default(),
            servers: AtomicU64::new(0),
            is_stale: AtomicBool::new(true),
            asked: Mutex::default(),
        };
        if let Some(endpoint) = endpoint {
            redis.set_map(vec![(0..=LAST_SLOT, redis.make_server(endpoint))]);
        }
        Ok(redis)
    }

    fn make_server(&self, endpoint: Endpoint) -> Arc<Server> {
        let number = 1 + self.servers.fetch_add(1, Ordering::Relaxed);
        Arc::new(Server::new(number, endpoint, &self.settings, self.lanes, &self.check))
    }

    fn map(&self) -> Arc<Slots<Arc<Server>>> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_map(&self, map: Slots<Arc<Server>>) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        self.is_stale.store(false, Ordering::Release);
    }

    fn known(&self, slot: u16) -> Option<Arc<Server>> {
        let map = self.map();
        let (_, server) = map.iter().find(|(slots, _)| slots.contains(&slot))?;
        Some(Arc::clone(server))
    }

    /// Returns the server that owns a slot, requesting the map of servers if needed. Fails if the slot has no known server.
    pub async fn server(&self, slot: u16) -> Result<Arc<Server>, Fault> {
        if self.is_suspect() {
            // One caller requests the map. The others use the known server or, if there is none, wait for the new map.
            match (self.asked.try_lock(), self.known(slot)) {
                (Ok(mut asked), known) => {
                    if let Err(fault) = self.refresh(&mut asked).await {
                        return known.ok_or(fault);
                    }
                }
                (Err(_), Some(server)) => return Ok(server),
                (Err(_), None) => self.refresh(&mut *self.asked.lock().await).await?,
            }
        }
        self.known(slot).ok_or_else(|| {
            self.suspect();
            let address = &self.settings.address;
            Fault::unavailable(format!(
                "{address}: no master serves slot {slot}; check `CLUSTER SLOTS`"
            ))
        })
    }

    async fn refresh(&self, asked: &mut Asked) -> Result<(), Fault> {
        if !self.is_suspect() {
            return Ok(());
        }
        if let Some((at, fault)) = &asked.last
            && at.elapsed() < REFRESH_INTERVAL
        {
            return Err(fault.clone());
        }
        let found = topology::find(&self.settings, asked.times, self.servers()).await;
        asked.times = asked.times.wrapping_add(1);
        let fault = match &found {
            Ok(_) => Fault::unavailable(format!(
                "{} was queried less than 250 ms ago",
                self.settings.address
            )),
            Err(fault) => fault.clone(),
        };
        asked.last = Some((Instant::now(), fault));
        let mut servers = self.servers();
        let mut map = Slots::new();
        for (slots, endpoint) in found? {
            let known = servers.iter().find(|server| *server.endpoint() == endpoint);
            let server = if let Some(known) = known {
                Arc::clone(known)
            } else {
                let made = self.make_server(endpoint);
                servers.push(Arc::clone(&made));
                made
            };
            map.push((slots, server));
        }
        self.set_map(map);
        Ok(())
    }

    /// Returns the servers in the known map, each of them once.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<Server>> {
        let mut servers: Vec<Arc<Server>> = Vec::new();
        for (_, server) in self.map().iter() {
            if !servers.iter().any(|known| Arc::ptr_eq(known, server)) {
                servers.push(Arc::clone(server));
            }
        }
        servers
    }

    /// Returns the generation of the server that owns this slot: a number that changes when the server may have lost
    /// acknowledged data. Returns 0 if no server is known for the slot.
    #[must_use]
    pub fn generation(&self, slot: u16) -> u64 {
        self.known(slot).map_or(0, |server| server.generation())
    }

    /// Changes the generation of the server that owns this slot. To be called when the server has lost acknowledged data.
    pub fn forgot(&self, slot: u16) {
        if let Some(server) = self.known(slot) {
            server.forgot();
        }
    }

    /// Marks the map of servers as outdated, so that the next command requests it again. A single server has no map.
    pub fn suspect(&self) {
        if self.settings.address.server().is_none() {
            self.is_stale.store(true, Ordering::Release);
        }
    }

    fn is_suspect(&self) -> bool {
        self.is_stale.load(Ordering::Acquire)
    }

    /// Returns the address without secrets, for log lines.
    #[must_use]
    pub fn describe(&self) -> String {
        self.settings.address.to_string()
    }

    /// Returns a client for connections that are not bound to a slot, to server `number` modulo the number of known servers.
    pub async fn client(&self, number: usize) -> Result<Client, Fault> {
        let any = self.server(0).await?;
        let servers = self.servers();
        let server = servers.get(number % servers.len().max(1)).unwrap_or(&any);
        let client = self.settings.client(server.endpoint());
        client.map_err(|error| Fault::unavailable(error.to_string()).at(server))
    }

    /// Runs an idempotent command on the server that owns this slot. Retries until the timeout if the slot may have moved.
    pub async fn run<T, F>(
        &self,
        slot: u16,
        lane: Lane,
        command: impl Fn() -> F,
    ) -> Result<T, Fault>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let begun = Instant::now();
        loop {
            let running = async {
                let server = self.server(slot).await?;
                self.run_on(&server, lane, 0, command()).await
            };
            match running.await {
                Err(fault)
                    if fault.kind != FaultKind::Full
                        && !fault.is_refusal()
                        && self.is_suspect()
                        && begun.elapsed() < self.settings.timeouts.response =>
                {
                    tokio::time::sleep(REFRESH_INTERVAL).await;
                }
                answer => return answer,
            }
        }
    }

    /// Runs a command on this server. Fails without running it if the server is no longer in this generation, unless
    /// `generation` is 0. On a lane that is not watched, the command must be idempotent, because it may be resent.
    pub async fn run_on<T, F>(
        &self,
        server: &Server,
        lane: Lane,
        generation: u64,
        command: F,
    ) -> Result<T, Fault>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let mut connection = self.connection(server, lane).await?;
        if lane.0 >= self.lanes.watched {
            connection.repeats_by = Some(Arc::clone(server.link(lane)));
        }
        // The connection of a watched lane is not replaced during a command, so the command runs in this generation.
        if generation != 0 && server.generation() != generation {
            return Err(Fault::unavailable(
                "the connection was replaced in the meantime, so acknowledged data may have been lost",
            )
            .at(server));
        }
        let done = command(&mut connection).await;
        done.map_err(|error| self.failed(server.link(lane), &connection, &error))
    }

    fn failed(&self, link: &Link, connection: &Connection, error: &RedisError) -> Fault {
        if fault::may_have_moved(error) {
            self.suspect();
        }
        link.failed(connection, error)
    }

    /// Returns the connection of a lane. On a watched lane, looks at the server first if nobody has recently.
    async fn connection(&self, server: &Server, lane: Lane) -> Result<Connection, Fault> {
        if lane.0 < self.lanes.watched
            && let Some(_turn) = server.turn_to_look()
        {
            self.look(server, lane).await?;
        }
        server.link(lane).connection().await.inspect_err(|_| self.suspect())
    }

    /// Returns a server's INFO reply with the sections `memory`, `persistence` and `replication`. Fails if the replication ID
    /// is not that of the last look.
    pub async fn look(&self, server: &Server, lane: Lane) -> Result<String, Fault> {
        let link = server.link(lane);
        let mut connection = link.connection().await.inspect_err(|_| self.suspect())?;
        connection.repeats_by = Some(Arc::clone(link));
        let looked = server.look(&mut connection).await;
        let looked = looked.map_err(|error| self.failed(link, &connection, &error));
        let (info, has_its_data) = looked?;
        if !has_its_data {
            let reason = "its replication ID changed, so acknowledged data may have been lost";
            tracing::warn!("{server}: {reason}");
            return Err(Fault::unavailable(reason).at(server));
        }
        Ok(info)
    }
}

/// Returns the Redis Cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key, modulo 16384.
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
    crc % (LAST_SLOT + 1)
}

/// Returns the value of a field of an INFO reply; None if the reply has no such field.
#[must_use]
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns a fault if the INFO reply shows that the server is still loading its data, and so rejects most other commands.
fn check_loaded(info: &str) -> Result<(), Fault> {
    match info_field(info, "loading").unwrap_or("0") {
        "0" => Ok(()),
        _ => Err(Fault::new(FaultKind::Loading, "the server is loading its data")),
    }
}

/// A [`Check`] for callers that store data: fails if the server is a replica, is loading its data or may evict keys.
pub fn check(info: &str) -> Result<(), Fault> {
    let field = |name, default| info_field(info, name).unwrap_or(default);
    if field("role", "master") == "slave" {
        return Err(Fault::new(FaultKind::Replica, "the server is a replica"));
    }
    check_loaded(info)?;
    match field("maxmemory_policy", "noeviction") {
        "noeviction" => Ok(()),
        policy => Err(Fault::new(
            FaultKind::Evicts,
            format!("Redis may evict keys: maxmemory-policy is {policy} instead of noeviction"),
        )),
    }
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
