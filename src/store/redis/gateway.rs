//! The way to the servers: a command goes to the server of its slot, over one of three connections, once all nodes
//! are known to agree on how the sets are kept.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{FromRedisValue, RedisError};
use redis_link::{Attempts, Connection, Lane, Lanes, Redis, Server, SettingsError, slot};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Settings;
use super::agreement::{Agreement, Compared};
use super::division::{Shared, Standing};
use super::fault;
use super::fingerprint::Key;
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;
use crate::store::StoreError;

/// How often the servers' memory is looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a server counts as full after it refused something: longer than a recorder waits before it tries again.
const REFUSED_LATELY: Duration = Duration::from_secs(3);
/// Of its own, so that a large batch does not delay a claim.
pub(super) const RECORDING: Lane = Lane(0);
/// All that drains.
pub(super) const DRAINING: Lane = Lane(1);
/// Of its own, so that nobody who looks delays either. Made when somebody looks; what is lost with it was not confirmed.
pub(super) const READING: Lane = Lane(2);
const LANES: Lanes = Lanes { watched: 2, others: 1 };

/// When it was looked whether memory is short, and what was seen.
type Looked = (Instant, Result<Option<String>, StoreError>);

/// The way to the servers.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) redis: Redis,
    pub(super) agreement: Agreement,
    /// The generation of the server with the settings when these were last found to agree; 0 before that.
    agreed: AtomicU64,
    /// Held by the one who looks whether they do.
    agreeing: Mutex<()>,
    /// From which minute on all others divide the minutes otherwise than this node, and that in words.
    outdated: std::sync::Mutex<Option<(Minute, Diagnosis)>>,
    /// What [`shortage`](Self::shortage) last saw, and when.
    looked: Mutex<Option<Looked>>,
    /// When a server last refused something because its memory was used up.
    refused: std::sync::Mutex<Option<(Instant, StoreError)>>,
}

impl Gateway {
    pub(super) fn new(settings: &Settings, agreement: Agreement) -> Result<Self, SettingsError> {
        Ok(Self {
            redis: Redis::new(settings.redis.clone(), LANES, Arc::new(fault::check))?,
            agreement,
            agreed: AtomicU64::new(0),
            agreeing: Mutex::new(()),
            outdated: std::sync::Mutex::default(),
            looked: Mutex::new(None),
            refused: std::sync::Mutex::default(),
        })
    }

    /// A number that changes when the server of this slot may have forgotten what it confirmed; 0 while no
    /// server is known.
    pub(super) fn generation(&self, slot: u16) -> u64 {
        self.redis.generation(slot)
    }

    /// The server of this slot lacks what it confirmed.
    pub(super) fn forgot(&self, slot: u16) {
        self.redis.forgot(slot);
    }

    /// What is wrong with how servers keep their data, and with this node's division of minutes.
    pub(super) fn warnings(&self) -> Vec<Diagnosis> {
        let servers = self.redis.servers().into_iter();
        let forgetting = servers.filter(|server| server.forgets()).map(|server| {
            let why = "when it ends it forgets what it confirmed since its last snapshot";
            Diagnosis::new(Cause::RedisForgets, why).at(server)
        });
        forgetting.chain(self.outdated_from(Minute::MAX)).collect()
    }

    /// Why this node may not record events of a minute.
    pub(super) fn outdated_from(&self, minute: Minute) -> Option<Diagnosis> {
        let outdated = self.outdated.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = outdated.as_ref().filter(|(from, _)| *from <= minute)?;
        Some(found.clone())
    }

    /// Remembers from when on this node is outdated.
    fn learn(&self, shared: &Shared) {
        self.agreement.learn_fingerprint_key(shared);
        let outdated = match self.agreement.standing(shared) {
            Standing::Until(from) => Some((from, self.agreement.outdated(from, shared))),
            Standing::Same | Standing::Apart => None,
        };
        *self.outdated.lock().unwrap_or_else(PoisonError::into_inner) = outdated;
    }

    /// What all nodes make fingerprints with.
    pub(super) async fn fingerprint_key(&self) -> Result<Key, StoreError> {
        self.agree().await?;
        self.agreement
            .fingerprint_key()
            .ok_or_else(|| StoreError::unavailable("no key of fingerprints stands in Redis"))
    }

    /// Where the servers are, in words, without secrets.
    pub(super) fn describe(&self) -> String {
        self.redis.describe()
    }

    /// Looks whether this node agrees with all others, all servers that are known answer on the connections that
    /// events need, and have room for them.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        self.agree().await?;
        let difference = self.difference().await?;
        difference.map_or(Ok(()), |found| Err(StoreError::Refused(found)))?;
        for server in self.redis.servers() {
            let ping = async |connection: &mut Connection| {
                redis::cmd("PING").query_async::<()>(connection).await
            };
            self.run_on(&server, RECORDING, 0, Attempts::One, ping).await?;
            fault::check_room(&self.memory(&server, DRAINING).await?)
                .map_err(|fault| fault.at(&server))?;
        }
        // What is recorded in one go takes memory, too: it may be refused while a little is left.
        match &*self.refused() {
            Some((at, error)) if at.elapsed() < REFUSED_LATELY => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn refused(&self) -> MutexGuard<'_, Option<(Instant, StoreError)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a server reports of its memory.
    async fn memory(&self, server: &Server, lane: Lane) -> Result<String, StoreError> {
        let info = async |connection: &mut Connection| {
            let info = redis::cmd("INFO").arg("memory").take();
            info.query_async::<String>(connection).await
        };
        self.run_on(server, lane, 0, Attempts::Two, info).await
    }

    /// Which server has hardly any memory left, in words.
    pub(super) async fn shortage(&self) -> Result<Option<String>, StoreError> {
        let mut looked = self.looked.lock().await;
        match &*looked {
            Some((at, shortage)) if at.elapsed() < LOOK_INTERVAL => shortage.clone(),
            _ => {
                let shortage = self.look_for_shortage().await;
                *looked = Some((Instant::now(), shortage.clone()));
                shortage
            }
        }
    }

    async fn look_for_shortage(&self) -> Result<Option<String>, StoreError> {
        self.agree().await?;
        for server in self.redis.servers() {
            let info = self.memory(&server, READING).await?;
            if let Some(shortage) = fault::shortage(&info) {
                return Ok(Some(shortage));
            }
        }
        Ok(None)
    }

    /// How this node's settings differ now from those of all nodes, with both values and what to do.
    pub(super) async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
        let shared = self.shared().await?;
        self.learn(&shared);
        if self.agreement.difference(&shared, Compared::Kept).is_some() {
            // From now on everything is refused, until they agree again.
            self.agreed.store(0, Ordering::Release);
        }
        Ok(self.agreement.difference(&shared, Compared::All))
    }

    /// The settings that stand in Redis, whether or not this node agrees with them.
    pub(super) async fn shared(&self) -> Result<Shared, StoreError> {
        let read = redis::Cmd::hgetall(&self.agreement.key);
        self.operate(slot(self.agreement.key.as_bytes()), read).await
    }

    /// Runs a command for an operator, whether or not this process agrees with the nodes.
    pub(super) async fn operate<T: FromRedisValue>(
        &self,
        slot: u16,
        command: redis::Cmd,
    ) -> Result<T, StoreError> {
        let server = self.redis.server(slot).await?;
        let run = async |connection: &mut Connection| command.query_async(connection).await;
        self.run_on(&server, DRAINING, 0, Attempts::One, run).await
    }

    /// Runs a command whose keys are in this slot.
    pub(super) async fn run<T, F>(
        &self,
        slot: u16,
        lane: Lane,
        attempts: Attempts,
        command: F,
    ) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        self.run_in(0, slot, lane, attempts, command).await
    }

    /// The same if the generation still is this one, or any if it is 0.
    pub(super) async fn run_in<T, F>(
        &self,
        generation: u64,
        slot: u16,
        lane: Lane,
        attempts: Attempts,
        command: F,
    ) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        self.agree().await?;
        let server = self.redis.server(slot).await?;
        self.run_on(&server, lane, generation, attempts, command).await
    }

    /// The same on this server, whether or not the nodes agree.
    pub(super) async fn run_on<T, F>(
        &self,
        server: &Server,
        lane: Lane,
        generation: u64,
        attempts: Attempts,
        command: F,
    ) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let answer = self.redis.run_on(server, lane, generation, attempts, command);
        answer.await.map_err(|fault| {
            let error = StoreError::from(fault);
            if matches!(error, StoreError::Full(_)) {
                *self.refused() = Some((Instant::now(), error.clone()));
            }
            error
        })
    }

    /// Looks whether all nodes agree, again whenever the server with the settings may be another one. A node
    /// that agreed before does not wait for it: the other servers of a cluster go on while that one is away. Nor does
    /// it have to agree in more than how the sets are kept: it goes on recording while the settings are changed.
    async fn agree(&self) -> Result<(), StoreError> {
        let slot = redis_link::slot(self.agreement.key.as_bytes());
        let has_agreed = || self.agreed.load(Ordering::Acquire) != 0;
        let agrees_now =
            || has_agreed() && self.agreed.load(Ordering::Acquire) == self.redis.generation(slot);
        if agrees_now() {
            return Ok(());
        }
        match self.agree_again(slot, has_agreed()).await {
            Ok(()) => Ok(()),
            Err(error @ StoreError::Refused(_)) => {
                self.agreed.store(0, Ordering::Release);
                Err(error)
            }
            Err(error) => {
                self.redis.suspect();
                if has_agreed() { Ok(()) } else { Err(error) }
            }
        }
    }

    async fn agree_again(&self, slot: u16, has_agreed: bool) -> Result<(), StoreError> {
        let server = self.redis.server(slot).await?;
        // Before the turn is taken: when there is no connection, all fail at once and none waits for another.
        let connection = async |connection: &mut Connection| Ok(connection.clone());
        let mut connection = self.run_on(&server, DRAINING, 0, Attempts::One, connection).await?;
        let _turn = match self.agreeing.try_lock() {
            Ok(turn) => turn,
            Err(_) if has_agreed => return Ok(()),
            Err(_) => self.agreeing.lock().await,
        };
        let generation = self.redis.generation(slot);
        if self.agreed.load(Ordering::Acquire) != generation {
            let is_new = !has_agreed;
            let shared = self.agreement.check(&mut connection, is_new);
            let shared = shared.await.map_err(|error| error.at(&server))?;
            self.learn(&shared);
            self.agreed.store(generation, Ordering::Release);
        }
        Ok(())
    }
}
