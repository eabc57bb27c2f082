//! [`Server`]: a Redis server, the connections to it, and whether it may have lost data that it acknowledged.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::RedisError;

use crate::link::{Connection, Link};
use crate::settings::{Endpoint, Settings};
use crate::{Check, Lane, Lanes, info_field};

/// A Redis server and the connections to it. `Display` shows its endpoint.
pub struct Server {
    /// A number that no other server has, so that different servers have different generations. Counted from 1.
    number: u64,
    endpoint: Endpoint,
    links: Vec<Arc<Link>>,
    watched: usize,
    replication_id: Mutex<Option<String>>,
    replaced: AtomicU64,
    forgets: AtomicBool,
}

impl Server {
    pub(crate) fn new(
        number: u64,
        endpoint: Endpoint,
        settings: &Arc<Settings>,
        lanes: Lanes,
        check: &Check,
    ) -> Self {
        let link = |_| Arc::new(Link::new(&endpoint, settings, check));
        let links = (0..(lanes.watched + lanes.others).max(1)).map(link).collect();
        Self {
            number,
            endpoint,
            links,
            watched: lanes.watched,
            replication_id: Mutex::new(None),
            replaced: AtomicU64::new(0),
            forgets: AtomicBool::new(false),
        }
    }

    /// Returns the endpoint at which the server is reached.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn link(&self, lane: Lane) -> &Arc<Link> {
        &self.links[lane.0.min(self.links.len() - 1)]
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.links.iter().any(|link| link.is_connected())
    }

    /// Returns a nonzero number that changes when this server may have lost acknowledged data, and that no other server has.
    pub(crate) fn generation(&self) -> u64 {
        let losses: u64 = self.links.iter().take(self.watched).map(|link| link.losses()).sum();
        (self.number << 32) + losses + self.replaced.load(Ordering::Acquire)
    }

    /// Returns whether the append-only file was disabled at the last check. If so, a crash loses recent data.
    #[must_use]
    pub fn forgets(&self) -> bool {
        self.forgets.load(Ordering::Relaxed)
    }

    pub(crate) fn forgot(&self) {
        self.replaced.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether the replication ID is the same as at the last check; if not, changes the generation. The ID changes
    /// when a server becomes a replica, even briefly, which replaces its data while clients stay connected.
    pub(crate) async fn has_its_data(
        &self,
        connection: &mut Connection,
    ) -> Result<bool, RedisError> {
        let info = redis::cmd("INFO").arg("replication").arg("persistence").take();
        let info: String = info.query_async(connection).await?;
        let forgets = info_field(&info, "aof_enabled") == Some("0");
        self.forgets.store(forgets, Ordering::Relaxed);
        let Some(id) = info_field(&info, "master_replid") else {
            return Ok(true);
        };
        let mut known = self.replication_id.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = known.replace(id.to_owned()).is_none_or(|before| before == id);
        drop(known);
        if !is_same {
            self.forgot();
        }
        Ok(is_same)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis at {}", self.endpoint)
    }
}
