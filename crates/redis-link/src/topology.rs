//! Which server keeps which slot: one server, the master that the sentinels name, or the masters of a Redis Cluster.
//!
//! The map is looked up again when a server failed or said that it is not responsible, by one caller at a time
//! and not more often than [`REFRESH_INTERVAL`]; all others go on with the map there is. A server is known by a
//! number that no other has; so whoever remembers what a slot's server confirmed sees when it is another one.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::link::Link;
use crate::server::Server;
use crate::settings::{Address, Endpoint, Settings, SettingsError};
use crate::{Check, Fault, FaultKind, Lanes};

/// The least time between two looks at the map.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
const LAST_SLOT: u16 = 16383;

/// Ranges of slots, both ends included, and their servers.
type Map = Vec<(u16, u16, Arc<Server>)>;

/// Which server keeps which slot.
pub(crate) struct Topology {
    settings: Settings,
    lanes: Lanes,
    check: Check,
    map: RwLock<Arc<Map>>,
    stale: AtomicBool,
    refreshed: Mutex<Option<(Instant, Fault)>>,
    servers_made: AtomicU64,
    looks: AtomicUsize,
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology")
            .field("settings", &self.settings)
            .field("map", &self.map)
            .finish_non_exhaustive()
    }
}

impl Topology {
    pub(crate) fn new(
        settings: Settings,
        lanes: Lanes,
        check: Check,
    ) -> Result<Self, SettingsError> {
        let topology = Self {
            settings,
            lanes,
            check,
            map: RwLock::default(),
            stale: AtomicBool::new(true),
            refreshed: Mutex::new(None),
            servers_made: AtomicU64::new(0),
            looks: AtomicUsize::new(0),
        };
        let one = match &topology.settings.address {
            Address::Tcp { host, port } => Endpoint::Tcp(host.clone(), *port),
            Address::Unix(path) => Endpoint::Unix(path.clone()),
            Address::Cluster { .. } | Address::Sentinel { .. } => {
                // Made for the checks only: what cannot work is said at the start.
                topology.settings.client(&Endpoint::Tcp("localhost".to_owned(), 1))?;
                return Ok(topology);
            }
        };
        let server = topology.make_server(one)?;
        topology.set_map(vec![(0, LAST_SLOT, server)]);
        Ok(topology)
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_map(&self, map: Map) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        self.stale.store(false, Ordering::Release);
    }

    /// The server that keeps this slot, as far as is known.
    fn known(&self, slot: u16) -> Option<Arc<Server>> {
        let map = self.map();
        let (.., server) = map.iter().find(|(from, to, _)| (*from..=*to).contains(&slot))?;
        Some(Arc::clone(server))
    }

    /// See [`Server::generation`]; 0 while no server is known.
    pub(crate) fn generation(&self, slot: u16) -> u64 {
        self.known(slot).map_or(0, |server| server.generation())
    }

    /// The server of this slot lacks what it confirmed: its generation is another one.
    pub(crate) fn forgot(&self, slot: u16) {
        if let Some(server) = self.known(slot) {
            server.forgot();
        }
    }

    /// All servers that are known.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        let mut servers: Vec<Arc<Server>> = Vec::new();
        for (.., server) in self.map().iter() {
            if !servers.iter().any(|known| Arc::ptr_eq(known, server)) {
                servers.push(Arc::clone(server));
            }
        }
        servers
    }

    /// The map may be wrong: look again before the next command.
    pub(crate) fn suspect(&self) {
        if matches!(self.settings.address, Address::Cluster { .. } | Address::Sentinel { .. }) {
            self.stale.store(true, Ordering::Release);
        }
    }

    /// Whether it is to be looked again.
    pub(crate) fn is_suspect(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    pub(crate) const fn address(&self) -> &Address {
        &self.settings.address
    }

    pub(crate) const fn answers_within(&self) -> Duration {
        self.settings.timeouts.response
    }

    /// The server that keeps this slot.
    pub(crate) async fn server(&self, slot: u16) -> Result<Arc<Server>, Fault> {
        if self.stale.load(Ordering::Acquire) {
            let known = self.known(slot);
            // One looks; the others go on with what is known, or wait if nothing is.
            match (self.refreshed.try_lock(), known) {
                (Ok(mut refreshed), known) => {
                    if let Err(error) = self.refresh(&mut refreshed).await {
                        return known.ok_or(error);
                    }
                }
                (Err(_), Some(server)) => return Ok(server),
                (Err(_), None) => self.refresh(&mut *self.refreshed.lock().await).await?,
            }
        }
        self.known(slot).ok_or_else(|| {
            self.suspect();
            Fault::unavailable(format!(
                "{}: nobody keeps slot {slot}; see `CLUSTER SLOTS`",
                self.settings.address
            ))
        })
    }

    async fn refresh(&self, refreshed: &mut Option<(Instant, Fault)>) -> Result<(), Fault> {
        if !self.stale.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some((at, error)) = refreshed
            && at.elapsed() < REFRESH_INTERVAL
        {
            return Err(error.clone());
        }
        let looked = self.look().await;
        let error = match &looked {
            Ok(_) => Fault::unavailable(format!("{} was just looked at", self.settings.address)),
            Err(error) => error.clone(),
        };
        *refreshed = Some((Instant::now(), error));
        let ranges = looked?;
        let mut map = Map::new();
        for (from, to, endpoint) in ranges {
            let known = self.servers().into_iter().chain(map.iter().map(|(.., s)| Arc::clone(s)));
            let server = match known.into_iter().find(|server| *server.endpoint() == endpoint) {
                Some(server) => server,
                None => self.make_server(endpoint).map_err(|error| {
                    Fault::unavailable(format!("a server cannot be used: {error}"))
                })?,
            };
            map.push((from, to, server));
        }
        self.set_map(map);
        Ok(())
    }

    fn make_server(&self, endpoint: Endpoint) -> Result<Arc<Server>, SettingsError> {
        let client = self.settings.client(&endpoint)?;
        let link = |_| {
            let check = Arc::clone(&self.check);
            Arc::new(Link::new(client.clone(), &self.settings, check))
        };
        let lanes = self.lanes.watched + self.lanes.others;
        let links = (0..lanes.max(1)).map(link).collect();
        let number = self.servers_made.fetch_add(1, Ordering::Relaxed);
        let server = Server::new(number, endpoint, links, self.lanes.watched);
        Ok(Arc::new(server))
    }

    /// Asks those who know, one after the other, until one answers. Another one is the first each time: who is cut
    /// off from the others goes on answering what was true before.
    async fn look(&self) -> Result<Vec<(u16, u16, Endpoint)>, Fault> {
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        let mut failure = Fault::unavailable("nobody to ask".to_owned());
        match &self.settings.address {
            Address::Cluster { nodes } => {
                let mut servers = self.servers();
                let first = look % servers.len().max(1);
                servers.rotate_left(first);
                // One that does not answer costs a time-out.
                servers.sort_by_key(|server| !server.is_connected());
                let mut asked: Vec<Endpoint> =
                    servers.iter().map(|server| server.endpoint().clone()).collect();
                for (host, port) in nodes {
                    let endpoint = Endpoint::Tcp(host.clone(), *port);
                    if !asked.contains(&endpoint) {
                        asked.push(endpoint);
                    }
                }
                for endpoint in asked {
                    match self.ask_cluster(&endpoint).await {
                        Ok(ranges) => return Ok(ranges),
                        Err(error) => failure = error,
                    }
                }
            }
            Address::Sentinel { sentinels, name } => {
                let mut silent = None;
                for (host, port) in sentinels
                    .iter()
                    .cycle()
                    .skip(look % sentinels.len().max(1))
                    .take(sentinels.len())
                {
                    let endpoint = Endpoint::Tcp(host.clone(), *port);
                    match self.ask_sentinel(&endpoint, name).await {
                        Ok(master) => return Ok(vec![(0, LAST_SLOT, master)]),
                        Err(error) if error.is_refusal() => failure = error,
                        Err(error) => silent = Some(error),
                    }
                }
                // The name is refused only when every sentinel does so.
                failure = silent.unwrap_or(failure);
            }
            Address::Tcp { .. } | Address::Unix(_) => {}
        }
        Err(failure)
    }

    async fn ask_cluster(&self, endpoint: &Endpoint) -> Result<Vec<(u16, u16, Endpoint)>, Fault> {
        let client = self.settings.client(endpoint).map_err(|error| unusable(endpoint, &error))?;
        let answer: Vec<Vec<Value>> =
            self.ask(&client, redis::cmd("CLUSTER").arg("SLOTS"))
                .await
                .map_err(|error| error.at(&format_args!("Redis at {endpoint}")))?;
        let ranges: Option<Vec<_>> =
            answer.into_iter().map(|range| read_range(range, endpoint)).collect();
        match ranges {
            Some(ranges) if !ranges.is_empty() => Ok(ranges),
            _ => Err(Fault::unavailable(format!("{endpoint} knows of no slots"))),
        }
    }

    async fn ask_sentinel(&self, endpoint: &Endpoint, name: &str) -> Result<Endpoint, Fault> {
        let client =
            self.settings.sentinel(endpoint).map_err(|error| unusable(endpoint, &error))?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(name);
        let asked = self.ask(&client, &command).await;
        let answer: Option<(String, u16)> =
            asked.map_err(|error| error.at(&format_args!("the sentinel at {endpoint}")))?;
        answer.map(|(host, port)| Endpoint::Tcp(host, port)).ok_or_else(|| {
            let reason = format!("the sentinel {endpoint} knows no master named {name}");
            Fault::new(FaultKind::MasterName, reason)
        })
    }

    async fn ask<T: FromRedisValue>(
        &self,
        client: &Client,
        command: &redis::Cmd,
    ) -> Result<T, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.timeouts.connect))
            .set_response_timeout(Some(self.settings.timeouts.response));
        let asked = async {
            let mut connection: MultiplexedConnection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            command.query_async(&mut connection).await
        };
        asked.await.map_err(|error| Fault::of_greeting(&error, client))
    }
}

fn unusable(endpoint: &Endpoint, error: &SettingsError) -> Fault {
    Fault::unavailable(format!("{endpoint} cannot be asked: {error}"))
}

/// A range of `CLUSTER SLOTS`: first slot, last slot, then the master's and the replicas' host, port and more. A
/// master that does not know its own name is the one that was asked.
fn read_range(range: Vec<Value>, asked: &Endpoint) -> Option<(u16, u16, Endpoint)> {
    let mut parts = range.into_iter();
    let from = redis::from_redis_value(parts.next()?).ok()?;
    let to = redis::from_redis_value(parts.next()?).ok()?;
    let Value::Array(master) = parts.next()? else {
        return None;
    };
    let mut master = master.into_iter();
    let host: Option<String> = redis::from_redis_value(master.next()?).ok()?;
    let port: u16 = redis::from_redis_value(master.next()?).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    let host = host.or_else(|| match asked {
        Endpoint::Tcp(host, _) => Some(host.clone()),
        Endpoint::Unix(_) => None,
    })?;
    Some((from, to, Endpoint::Tcp(host, port)))
}
