//! [`Server`]: a server, the connections to it, and whether it still has what it confirmed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::{Client, RedisError};

use crate::link::Connection;
use crate::link::Link;
use crate::settings::Endpoint;
use crate::{Lane, info_field};

/// A server, and the connections to it. It displays as where it is.
#[derive(Debug)]
pub struct Server {
    number: u64,
    endpoint: Endpoint,
    /// One for each lane.
    links: Vec<Arc<Link>>,
    /// How many of them are watched, from the first on.
    watched: usize,
    /// Its replication id, when it was last looked at. Never held while anything is waited for.
    replication_id: Mutex<Option<String>>,
    /// How often it had other data than before.
    replaced: AtomicU64,
    /// Whether it has no append-only file, as far as is known.
    forgets: AtomicBool,
}

impl Server {
    /// The number is one that no other has.
    pub(crate) fn new(
        number: u64,
        endpoint: Endpoint,
        links: Vec<Arc<Link>>,
        watched: usize,
    ) -> Self {
        Self {
            number,
            endpoint,
            links,
            watched,
            replication_id: Mutex::new(None),
            replaced: AtomicU64::new(0),
            forgets: AtomicBool::new(false),
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn link(&self, lane: Lane) -> &Arc<Link> {
        &self.links[lane.0.min(self.links.len() - 1)]
    }

    pub(crate) fn client(&self) -> &Client {
        self.links[0].client()
    }

    /// Whether there is a connection to it, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.links.iter().any(|link| link.is_connected())
    }

    /// Another number whenever the server is another one, or may have forgotten what it confirmed. Never 0.
    pub(crate) fn generation(&self) -> u64 {
        let watched = self.links.iter().take(self.watched);
        let losses: u64 = watched.map(|link| link.losses()).sum();
        ((self.number + 1) << 32) + losses + self.replaced.load(Ordering::Acquire)
    }

    /// Whether it has no append-only file, as far as is known: when it ends it forgets what it confirmed since its last snapshot.
    #[must_use]
    pub fn forgets(&self) -> bool {
        self.forgets.load(Ordering::Relaxed)
    }

    /// It lacks what it confirmed.
    pub(crate) fn forgot(&self) {
        self.replaced.fetch_add(1, Ordering::AcqRel);
    }

    /// Looks whether the server has the data that it had. One that is made the replica of another, for
    /// however short a time, has the other's data from then on, and its clients stay connected.
    pub(crate) async fn has_its_data(
        &self,
        connection: &mut Connection,
    ) -> Result<bool, RedisError> {
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .arg("persistence")
            .query_async(connection)
            .await?;
        let forgets = info_field(&info, "aof_enabled") == Some("0");
        self.forgets.store(forgets, Ordering::Relaxed);
        let Some(id) = info_field(&info, "master_replid") else {
            return Ok(true);
        };
        let known = self.replication_id.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        let before = known.replace(id.to_owned());
        drop(known);
        let same = before.is_none_or(|before| before == id);
        if !same {
            self.forgot();
        }
        Ok(same)
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redis at {}", self.endpoint)
    }
}
