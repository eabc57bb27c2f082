//! [`Server`]: a Redis server, the connections to it, and whether it may have lost data that it acknowledged.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisError;
use tokio::time::Instant;

use crate::link::{Connection, Link};
use crate::settings::{Endpoint, Settings};
use crate::{Check, Lane, Lanes, info_field};

/// The age of the last answered look from which commands look again.
const LOOK_AGE_MAX: Duration = Duration::from_secs(2);

/// A Redis server and the connections to it. `Display` shows its endpoint.
pub struct Server {
    /// A number that no other server has, so that different servers have different generations. Counted from 1.
    number: u64,
    endpoint: Endpoint,
    links: Vec<Arc<Link>>,
    watched: usize,
    looked: Mutex<Looked>,
    /// Locked while a command looks.
    looking: tokio::sync::Mutex<()>,
    replaced: AtomicU64,
    forgets: AtomicBool,
}

#[derive(Default)]
struct Looked {
    /// When the last look that was answered began.
    answered: Option<Instant>,
    replication_id: Option<String>,
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
            looked: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
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

    /// Returns whether the append-only file was disabled at the last look. If so, a crash loses recent data.
    #[must_use]
    pub fn forgets(&self) -> bool {
        self.forgets.load(Ordering::Relaxed)
    }

    pub(crate) fn forgot(&self) {
        self.replaced.fetch_add(1, Ordering::AcqRel);
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a guard if a command must look first. The others do not look until the guard is dropped.
    pub(crate) fn turn_to_look(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let is_old = self.looked().answered.is_none_or(|at| at.elapsed() >= LOOK_AGE_MAX);
        self.looking.try_lock().ok().filter(|_| is_old)
    }

    /// Returns an INFO reply, and whether the replication ID is the same as at the last look; if not, changes the generation.
    /// The ID changes when a server becomes a replica, even briefly, which replaces its data while clients stay connected.
    pub(crate) async fn look(
        &self,
        connection: &mut Connection,
    ) -> Result<(String, bool), RedisError> {
        let began = Instant::now();
        let info = redis::cmd("INFO").arg(&["memory", "persistence", "replication"]).take();
        let info: String = info.query_async(connection).await?;
        let forgets = info_field(&info, "aof_enabled") == Some("0");
        self.forgets.store(forgets, Ordering::Relaxed);
        let mut looked = self.looked();
        looked.answered = Some(began);
        let Some(id) = info_field(&info, "master_replid") else {
            return Ok((info, true));
        };
        let before = looked.replication_id.replace(id.to_owned());
        let is_same = before.is_none_or(|before| before == id);
        if !is_same {
            self.forgot();
        }
        drop(looked);
        Ok((info, is_same))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis at {}", self.endpoint)
    }
}
