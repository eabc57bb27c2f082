//! The arbiter that many processes share: Redis 7.0 or newer, one server, one behind Sentinel, or a cluster.
//!
//! Each operation is one Lua script on the keys of one name, by the clock of the server that has them. `link` sends
//! them, `switchboard` listens for wake-ups.

mod keys;
mod link;
mod lists;
mod reply;
mod scripts;
mod switchboard;

use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use redis_link::{
    Fault, FaultKind, Lane, Lanes, Redis, Settings, SettingsError, UrlError, info_field,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::keys::Keys;
use self::link::Link;
use self::reply::Answer;
use self::scripts::{Arguments, Source};
use self::switchboard::Switchboard;
use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX};
use super::event::{Event, Hook};
use super::keeper;
use super::memory::micros;
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// All commands go over one connection to each server, but for those of the thread that renews leases: a connection belongs
/// to the runtime that made it.
const LANES: Lanes = Lanes { watched: 0, others: 2 };

fn lane() -> Lane {
    Lane(usize::from(keeper::is_here()))
}

pub use redis_link::Timeouts;

/// A prefix or an address that leads to no Redis.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The prefix is empty or has a brace, which would be taken for a hash tag.
    #[error("the prefix of the keys is `{0}`, but it must have a character and no brace")]
    Prefix(String),
    /// The address is not understood.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The address cannot be used.
    #[error("Redis cannot be at this address: {0}")]
    Address(#[from] SettingsError),
}

/// Locks, values and lists in Redis, shared by all processes with the same prefix. Belongs to the runtime of its first
/// call.
#[derive(Debug)]
pub struct RedisArbiter {
    prefix: String,
    link: Link,
    wakes: Arc<Wakes>,
    timeouts: Timeouts,
    listening: Once,
    stopping: DropGuard,
    hook: Hook,
}

impl RedisArbiter {
    /// In this Redis. Connects with the first call.
    pub fn new(settings: Settings, prefix: &str) -> Result<Self, AddressError> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(AddressError::Prefix(prefix.to_owned()));
        }
        let timeouts = settings.timeouts;
        Ok(Self {
            prefix: prefix.to_owned(),
            link: Link(Arc::new(Redis::new(settings, LANES, Arc::new(check))?)),
            wakes: Wakes::new(false),
            timeouts,
            listening: Once::new(),
            stopping: CancellationToken::new().drop_guard(),
            hook: Hook::default(),
        })
    }

    /// By an address: `redis://…`, `rediss://…` and `unix://…` as everywhere, `redis+cluster://host:port,host:port` and
    /// `redis+sentinel://host:port,host:port/name`, both of which may have `user:password@` before the first host.
    pub fn open(address: &str, prefix: &str, timeouts: Timeouts) -> Result<Self, AddressError> {
        let settings: Settings = address.parse()?;
        let settings = Settings { timeouts, ..settings };
        Self::new(settings, prefix)
    }

    /// Calls `hook` with what happens to locks and values in this process. It must not block.
    #[must_use]
    pub fn observed_by(self, hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook);
        Self { hook, ..self }
    }

    fn keys(&self, name: &Name) -> Keys {
        Keys::new(&self.prefix, name)
    }

    async fn is_done(&self, script: &Source, arguments: &Arguments) -> Result<bool, ArbiterError> {
        self.link.run(script, arguments).await
    }
}

#[async_trait]
impl Arbiter for RedisArbiter {
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Result<Locking, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.queue(), keys.present()])
            .text(holder.as_str())
            .number(micros(ttl))
            .number(presence.map_or(0, micros))
            .number(WAITING_MAX as u64)
            .text(&keys.channel());
        let answer: Answer = self.link.run(&scripts::LOCK, &arguments).await?;
        reply::locking(&answer)
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock()]).number(token.number()).number(micros(ttl));
        self.is_done(&scripts::RENEW, &arguments).await
    }

    async fn unlock(&self, name: &Name, token: Token) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.queue(), keys.present()])
            .number(token.number())
            .text(&keys.channel());
        self.is_done(&scripts::UNLOCK, &arguments).await
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Result<(), ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.queue(), keys.present()])
            .text(holder.as_str())
            .text(&keys.channel());
        self.link.run(&scripts::LEAVE, &arguments).await
    }

    async fn peek(&self, name: &Name) -> Result<Option<Entry>, ArbiterError> {
        let arguments = Arguments::keys([self.keys(name).entry()]);
        reply::peeked(self.link.run(&scripts::PEEK, &arguments).await?)
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Result<Beginning, ArbiterError> {
        let keys = self.keys(name);
        let outdated = outdated.map(|token| token.to_string()).unwrap_or_default();
        let arguments = Arguments::keys([keys.lock(), keys.entry()])
            .text(holder.as_str())
            .number(micros(ttl))
            .text(&outdated);
        reply::beginning(self.link.run(&scripts::BEGIN, &arguments).await?)
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.entry()])
            .number(token.number())
            .text(&keys.channel())
            .bytes(value)
            .number(micros(cost))
            .number(micros(ttl));
        self.is_done(&scripts::PUBLISH, &arguments).await
    }

    async fn fail(
        &self,
        name: &Name,
        token: Token,
        message: &str,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.entry()])
            .number(token.number())
            .text(&keys.channel())
            .text(message)
            .number(micros(ttl));
        self.is_done(&scripts::FAIL, &arguments).await
    }

    async fn invalidate(&self, name: &Name) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.entry()]).text(&keys.channel());
        self.is_done(&scripts::INVALIDATE, &arguments).await
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Result<bool, ArbiterError> {
        lists::replace(&self.link, &self.keys(name), items, ttl, token).await
    }

    async fn list(&self, name: &Name) -> Result<Vec<Vec<u8>>, ArbiterError> {
        lists::read(&self.link, &self.keys(name)).await
    }

    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
        self.listening.call_once(|| {
            let switchboard = Switchboard {
                redis: Arc::clone(&self.link.0),
                timeouts: self.timeouts,
                wakes: Arc::clone(&self.wakes),
                stopping: self.stopping.token().clone(),
            };
            tokio::spawn(switchboard.run());
        });
        self.wakes.listen(self.keys(name).channel_of(holder))
    }

    fn observe(&self, name: &Name, event: &Event) {
        self.hook.call(name, event);
    }

    fn describe(&self) -> String {
        self.link.0.describe()
    }
}

/// Whether a server can be used, from its answer to INFO.
fn check(info: &str) -> Result<(), Fault> {
    match (info_field(info, "role"), info_field(info, "loading")) {
        (Some("slave"), _) => Err(Fault::unavailable("the server is a replica")),
        (_, None | Some("0")) => Ok(()),
        _ => Err(Fault::unavailable("the server is loading its data")),
    }?;
    match info_field(info, "maxmemory_policy") {
        None | Some("noeviction") => Ok(()),
        Some(policy) => Err(Fault::new(
            FaultKind::Evicts,
            format!(
                "Redis may evict locks that are held (maxmemory-policy {policy}); run CONFIG SET maxmemory-policy noeviction, and write \
                 it into redis.conf"
            ),
        )),
    }
}
