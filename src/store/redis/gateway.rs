//! Access to the servers: once this node agrees with the cluster-wide settings, a command goes to the server of its slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, ScriptInvocation, cmd};
use redis_link::{Connection, Lane, Lanes, Redis, Server, SettingsError, slot};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::keys::{Keys, PartitionKeys, Place, Process, Scope};
use super::scripts::{SHARED, Source, scripts};
use super::settings::{Agreement, Compared, Key, Shared, Standing};
use super::{Settings, fault, lock};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition, Partitions};
use crate::store::{Bucket, OutputName, Page, Result, StoreError, closed_minutes};

/// The minimum time between two checks of the servers' memory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The time the servers count as full after one has rejected a write: longer than the retry interval of a recorder.
const REFUSED_LATELY: Duration = Duration::from_secs(3);

/// The connection for recording, which is separate so that a large batch does not delay claims.
pub(super) const RECORDING: Lane = Lane(0);
pub(super) const DRAINING: Lane = Lane(1);
/// The connection for readers, so that they do not delay other commands. Commands are resent if the connection is lost.
pub(super) const READING: Lane = Lane(2);
const LANES: Lanes = Lanes { watched: 2, others: 1 };
pub(super) const ANY: u64 = 0;

const PAGE_BYTES: usize = 128 << 10;

scripts! {
    PAGE ReadPage = SHARED + "page.lua"(source counts) => (command first bytes_max);
}

/// The time and result of the last check of the servers' memory.
type Looked = (Instant, Result<Option<String>>);

pub(super) enum Command<'a> {
    One(Cmd),
    Many(Pipeline),
    Script(ScriptInvocation<'a>),
}

impl From<Cmd> for Command<'_> {
    fn from(command: Cmd) -> Self {
        Self::One(command)
    }
}

impl From<Pipeline> for Command<'_> {
    fn from(pipeline: Pipeline) -> Self {
        Self::Many(pipeline)
    }
}

impl<'a> From<ScriptInvocation<'a>> for Command<'a> {
    fn from(script: ScriptInvocation<'a>) -> Self {
        Self::Script(script)
    }
}

impl Command<'_> {
    pub(super) async fn run<T: FromRedisValue>(
        self,
        connection: &mut Connection,
    ) -> Result<T, RedisError> {
        match self {
            Self::One(command) => command.query_async(connection).await,
            Self::Many(pipeline) => pipeline.query_async(connection).await,
            Self::Script(script) => script.invoke_async(connection).await,
        }
    }
}

/// A partition, or a minute or an output in it, and how to reach its server.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) partition: Partition,
    pub(super) place: Place<'a>,
    pub(super) lane: Lane,
    /// The store generation in which commands may run, or [`ANY`]. In any other generation, they fail.
    pub(super) generation: u64,
}

impl<'a> At<'a> {
    pub(super) fn minute(self, minute: Minute) -> Self {
        Self { place: self.place.minute(minute), ..self }
    }

    pub(super) fn of(self, output: impl Into<Option<&'a OutputName>>) -> Self {
        Self { place: self.place.of(output), ..self }
    }

    pub(super) const fn bound_to(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    pub(super) fn bucket(&self) -> Bucket {
        let minute = self.place.minute.unwrap_or(Minute::MIN);
        Bucket { partition: self.partition, minute }
    }

    pub(super) fn key(&self, name: &str) -> String {
        self.place.key(Scope::Minute, name)
    }

    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        command: impl Into<Command<'_>>,
    ) -> Result<T> {
        let command = command.into();
        self.run(async |connection: &mut Connection| command.run(connection).await).await
    }

    /// Like [`ask`](Self::ask), but for more than one command.
    pub(super) async fn run<T, F>(&self, command: F) -> Result<T>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        self.gateway.agree().await?;
        let server = self.gateway.redis.server(self.gateway.keys(self.partition).slot).await?;
        self.gateway.run_on(&server, self.lane, self.generation, command).await
    }

    /// Reads a page of a hash (HSCAN) or a set (SSCAN). If a key of counts is given, returns each member with its counts.
    pub(super) async fn page<T: FromRedisValue>(
        &self,
        command: &str,
        (source, counts): (&str, Option<&str>),
        first: u64,
    ) -> Result<Page<T>> {
        let script = ReadPage { source, counts, command, first, bytes_max: PAGE_BYTES };
        let (next, items): (u64, Vec<T>) = self.ask(script.at(&Place::default())).await?;
        Ok(Page { items, next: (next != 0).then_some(next) })
    }
}

#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) redis: Redis,
    pub(super) agreement: Agreement,
    pub(super) keys: Keys,
    pub(super) partitions: Partitions,
    pub(super) process: Process,
    /// The generation of the server with the cluster-wide settings when this node last agreed; 0 if it does not agree.
    agreed: AtomicU64,
    /// Whether the last check looked at the servers on [`RECORDING`].
    looked_on_recording: AtomicBool,
    /// Locked while the settings are being compared.
    agreeing: Mutex<()>,
    /// The minute from which all other nodes divide minutes into a different number of partitions, and the diagnosis.
    outdated: std::sync::Mutex<Option<(Minute, Diagnosis)>>,
    looked: Mutex<Option<Looked>>,
    /// The last time that a server rejected a write because it was out of memory, and the error.
    refused: std::sync::Mutex<Option<(Instant, StoreError)>>,
}

impl Gateway {
    pub(super) fn new(settings: &Settings, node: String) -> Result<Self, SettingsError> {
        let keys = Keys::new(&settings.prefix, &settings.partitions);
        Ok(Self {
            redis: Redis::new(settings.redis.clone(), LANES, Arc::new(fault::check))?,
            agreement: Agreement::new(
                keys.settings(),
                &settings.partitions,
                settings.layout,
                settings.retention,
            ),
            keys,
            partitions: settings.partitions.clone(),
            process: Process {
                node,
                retention: settings.retention,
                listed_minutes: closed_minutes(settings.retention)
                    + settings.partitions.longest_window(),
                counts_max: settings.counts_max / u64::from(settings.partitions.count()),
            },
            agreed: AtomicU64::new(0),
            looked_on_recording: AtomicBool::new(false),
            agreeing: Mutex::new(()),
            outdated: std::sync::Mutex::default(),
            looked: Mutex::new(None),
            refused: std::sync::Mutex::default(),
        })
    }

    pub(super) fn keys(&self, partition: Partition) -> &PartitionKeys {
        self.keys.partition(partition)
    }

    pub(super) fn at(&self, partition: Partition, lane: Lane) -> At<'_> {
        let place = self.keys(partition).place(&self.process);
        At { gateway: self, partition, place, lane, generation: ANY }
    }

    pub(super) fn generation(&self, partition: Partition) -> u64 {
        self.redis.generation(self.keys(partition).slot)
    }

    /// Notes that the server of this partition has lost acknowledged events. Returns [`StoreError::Forgot`].
    pub(super) fn forgot(&self, partition: Partition) -> StoreError {
        self.redis.forgot(self.keys(partition).slot);
        StoreError::Forgot
    }

    pub(super) fn warnings(&self) -> Vec<Diagnosis> {
        let servers = self.redis.servers().into_iter();
        let forgetting = servers.filter(|server| server.forgets()).map(|server| {
            let why = "a restart would lose all writes since the last snapshot";
            Diagnosis::new(Cause::RedisForgets, why).at(server)
        });
        forgetting.chain(self.outdated_from(Minute::MAX)).collect()
    }

    /// Returns why this node must not record events of a minute, or None if it may.
    pub(super) fn outdated_from(&self, minute: Minute) -> Option<Diagnosis> {
        let outdated = lock(&self.outdated);
        outdated.as_ref().filter(|(from, _)| *from <= minute).map(|(_, found)| found.clone())
    }

    /// Remembers the fingerprint key in these settings, and the minute from which this node's settings are outdated.
    fn learn(&self, shared: &Shared) {
        self.agreement.learn_fingerprint_key(shared);
        self.agreement.learn_rollups(shared);
        let outdated = match self.agreement.standing(shared) {
            Standing::Until(from) => Some((from, self.agreement.outdated(from, shared))),
            Standing::Same | Standing::Apart => None,
        };
        *lock(&self.outdated) = outdated;
    }

    pub(super) async fn fingerprint_key(&self) -> Result<Key> {
        self.agree().await?;
        self.agreement
            .fingerprint_key()
            .ok_or_else(|| StoreError::unavailable("Redis has no fingerprint key"))
    }

    /// Checks that all servers respond, have their data and have room.
    pub(super) async fn check(&self) -> Result<()> {
        self.agree().await?;
        // Behind a proxy, the two connections may lead to different servers.
        let [looking, other] = if self.looked_on_recording.fetch_not(Ordering::Relaxed) {
            [DRAINING, RECORDING]
        } else {
            [RECORDING, DRAINING]
        };
        let has_room = async |server: Arc<Server>| {
            // Redis rejects a PING while it rejects all writes because it cannot save.
            let ping = self.ask_server::<()>(&server, other, ANY, cmd("PING"));
            let (looked, ping) = join(self.redis.look(&server, looking), ping).await;
            ping?;
            fault::check_room(&looked?).map_err(|fault| StoreError::from(fault.at(&server)))
        };
        // All at once, because waiting for each reply in turn is most of what an idle node costs. No request is abandoned after
        // an error, because each may be the one that finds that a server has lost its data.
        let rooms = join_all(self.redis.servers().into_iter().map(has_room)).await;
        rooms.into_iter().collect::<Result<()>>()?;
        // A server below its limit may still have rejected a write, because a large batch itself takes memory.
        match &*lock(&self.refused) {
            Some((at, error)) if at.elapsed() < REFUSED_LATELY => Err(error.clone()),
            _ => Ok(()),
        }
    }

    pub(super) async fn shortage(&self) -> Result<Option<String>> {
        let mut looked = self.looked.lock().await;
        if let Some((at, shortage)) = &*looked
            && at.elapsed() < LOOK_INTERVAL
        {
            return shortage.clone();
        }
        let look = async {
            self.agree().await?;
            for server in self.redis.servers() {
                let memory: String = self.read(&server, cmd("INFO").arg("memory").take()).await?;
                let shortage = fault::shortage(&memory);
                if shortage.is_some() {
                    return Ok(shortage);
                }
            }
            Ok::<_, StoreError>(None)
        };
        let shortage = look.await;
        *looked = Some((Instant::now(), shortage.clone()));
        shortage
    }

    pub(super) async fn difference(&self) -> Result<Option<Diagnosis>> {
        let shared = self.shared().await?;
        self.learn(&shared);
        if self.agreement.difference(&shared, Compared::Kept).is_some() {
            // Every call is rejected until the settings agree again.
            self.agreed.store(0, Ordering::Release);
        }
        Ok(self.agreement.difference(&shared, Compared::All))
    }

    /// Returns the cluster-wide settings in Redis, whether or not this node agrees with them.
    pub(super) async fn shared(&self) -> Result<Shared> {
        self.operate(&self.agreement.key, Cmd::hgetall(&self.agreement.key)).await
    }

    /// Runs a command for an operator on the server of this key, whether or not the settings agree.
    pub(super) async fn operate<T: FromRedisValue>(
        &self,
        key: &str,
        command: impl Into<Command<'_>>,
    ) -> Result<T> {
        let server = self.redis.server(slot(key.as_bytes())).await?;
        self.ask_server(&server, DRAINING, ANY, command).await
    }

    /// Runs a reader's command on a server, whether or not the settings agree.
    pub(super) async fn read<T: FromRedisValue>(&self, server: &Server, command: Cmd) -> Result<T> {
        self.ask_server(server, READING, ANY, command).await
    }

    async fn ask_server<T: FromRedisValue>(
        &self,
        server: &Server,
        lane: Lane,
        generation: u64,
        command: impl Into<Command<'_>>,
    ) -> Result<T> {
        let command = command.into();
        let run = async |connection: &mut Connection| command.run(connection).await;
        self.run_on(server, lane, generation, run).await
    }

    /// Runs a command on a server, and remembers an out-of-memory error. Only commands of readers may be sent twice.
    async fn run_on<T, F>(
        &self,
        server: &Server,
        lane: Lane,
        generation: u64,
        command: F,
    ) -> Result<T>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let answer = self.redis.run_on(server, lane, generation, command);
        answer.await.map_err(|fault| {
            let error = StoreError::from(fault);
            if matches!(error, StoreError::Full(_)) {
                *lock(&self.refused) = Some((Instant::now(), error.clone()));
            }
            error
        })
    }

    /// Fails unless this node agrees with the cluster-wide settings. Compares again when a different server may hold them. A
    /// node that has agreed before does not wait for that server, and only has to agree on how events are stored.
    async fn agree(&self) -> Result<()> {
        let slot = slot(self.agreement.key.as_bytes());
        let agreed = self.agreed.load(Ordering::Acquire);
        if agreed != 0 && agreed == self.redis.generation(slot) {
            return Ok(());
        }
        let again = self.agree_again(slot, agreed != 0).await;
        match &again {
            Ok(()) => {}
            Err(StoreError::Refused(_)) => self.agreed.store(0, Ordering::Release),
            Err(_) => {
                self.redis.suspect();
                if self.agreed.load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
            }
        }
        again
    }

    async fn agree_again(&self, slot: u16, has_agreed: bool) -> Result<()> {
        let server = self.redis.server(slot).await?;
        // Connects before waiting for the lock, so that without a connection, all callers fail at the same time.
        self.run_on(&server, DRAINING, ANY, async |_: &mut Connection| Ok(())).await?;
        let _turn = match self.agreeing.try_lock() {
            Ok(turn) => turn,
            Err(_) if has_agreed => return Ok(()),
            Err(_) => self.agreeing.lock().await,
        };
        let generation = self.redis.generation(slot);
        if self.agreed.load(Ordering::Acquire) == generation {
            return Ok(());
        }
        let read = || {
            let read = Cmd::hgetall(&self.agreement.key);
            self.ask_server::<Shared>(&server, DRAINING, generation, read)
        };
        let mut shared = read().await?;
        if let Some(proposal) = self.agreement.proposal(&shared) {
            match self.ask_server::<()>(&server, DRAINING, generation, proposal).await {
                Err(StoreError::Full(_)) if !shared.is_empty() => {}
                proposed => {
                    proposed?;
                    shared = read().await?;
                }
            }
        }
        let compared = if has_agreed { Compared::Kept } else { Compared::All };
        self.agreement.check(&shared, compared)?;
        self.learn(&shared);
        self.agreed.store(generation, Ordering::Release);
        Ok(())
    }
}
