//! The arbiter that many processes share: Redis 7.0 or newer, one server or a cluster.
//!
//! Each operation is one Lua script on the keys of one thing, by the clock of the server that has them. `link` is
//! the way there, `switchboard` hears the wake-ups.

mod keys;
mod link;
mod lists;
mod reply;
mod scripts;
mod switchboard;

use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use redis::cluster::ClusterClientBuilder;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::keys::Keys;
use self::link::{Link, Target};
use self::reply::Answer;
use self::scripts::{Arguments, Source};
use self::switchboard::Switchboard;
use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX};
use super::memory::micros;
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// How often the client of a cluster tries a command again by itself. All commands may be sent twice.
const CLUSTER_RETRIES: u32 = 5;

/// How long to wait for Redis.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection, name resolution and TLS included.
    pub connect: Duration,
    /// For each answer.
    pub response: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(2),
        }
    }
}

/// A prefix or an address that leads to no Redis.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The prefix is empty or has a brace, which would be taken for a hash tag.
    #[error("the prefix of the keys is `{0}`, but it must have a character and no brace")]
    Prefix(String),
    /// The address is not understood.
    #[error("Redis cannot be at this address: {0}")]
    Address(#[from] RedisError),
}

/// Locks, values and lists in Redis, shared by all processes with the same prefix. Belongs to the runtime of its first
/// call.
#[derive(Debug)]
pub struct RedisArbiter {
    prefix: String,
    link: Link,
    wakes: Arc<Wakes>,
    clients: Vec<Client>,
    timeouts: Timeouts,
    listening: Once,
    stopping: DropGuard,
    description: String,
}

impl RedisArbiter {
    /// On one server. Connects with the first call.
    pub fn server(client: Client, prefix: &str, timeouts: Timeouts) -> Result<Self, AddressError> {
        let target = Target::Server(Box::new(client.clone()));
        Self::new(target, vec![client], prefix, timeouts)
    }

    /// On a cluster, which is found by any of these nodes. Connects with the first call.
    pub fn cluster(
        nodes: Vec<ConnectionInfo>,
        prefix: &str,
        timeouts: Timeouts,
    ) -> Result<Self, AddressError> {
        let clients = nodes.iter().cloned().map(Client::open);
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let cluster = ClusterClientBuilder::new(nodes)
            .connection_timeout(timeouts.connect)
            .response_timeout(timeouts.response)
            .retries(CLUSTER_RETRIES)
            .build()?;
        Self::new(
            Target::Cluster(Box::new(cluster)),
            clients,
            prefix,
            timeouts,
        )
    }

    /// By an address: `redis://…` and `rediss://…` as everywhere, or `redis+cluster://host:port,host:port`, which
    /// may have `user:password@` before the first host for all of them.
    pub fn open(address: &str, prefix: &str, timeouts: Timeouts) -> Result<Self, AddressError> {
        let Some(rest) = address.strip_prefix("redis+cluster://") else {
            return Self::server(Client::open(address)?, prefix, timeouts);
        };
        let (credentials, hosts) = rest.rsplit_once('@').unzip();
        let credentials = credentials.map(|it| format!("{it}@")).unwrap_or_default();
        let nodes = hosts
            .unwrap_or(rest)
            .trim_end_matches('/')
            .split(',')
            .map(|host| format!("redis://{credentials}{host}").into_connection_info())
            .collect::<Result<Vec<_>, _>>()?;
        Self::cluster(nodes, prefix, timeouts)
    }

    fn new(
        target: Target,
        clients: Vec<Client>,
        prefix: &str,
        timeouts: Timeouts,
    ) -> Result<Self, AddressError> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(AddressError::Prefix(prefix.to_owned()));
        }
        let nodes = clients
            .iter()
            .map(|client| client.get_connection_info().addr().to_string());
        Ok(Self {
            prefix: prefix.to_owned(),
            link: Link::new(target, timeouts),
            wakes: Wakes::new(false),
            description: format!("Redis at {}", nodes.collect::<Vec<_>>().join(", ")),
            clients,
            timeouts,
            listening: Once::new(),
            stopping: CancellationToken::new().drop_guard(),
        })
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
        let arguments = Arguments::keys([keys.lock()])
            .number(token.number())
            .number(micros(ttl));
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
        words: &str,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let keys = self.keys(name);
        let arguments = Arguments::keys([keys.lock(), keys.entry()])
            .number(token.number())
            .text(&keys.channel())
            .text(words)
            .number(micros(ttl));
        self.is_done(&scripts::FAIL, &arguments).await
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
    ) -> Result<(), ArbiterError> {
        lists::replace(&self.link, &self.keys(name), items, ttl).await
    }

    async fn list(&self, name: &Name) -> Result<Vec<Vec<u8>>, ArbiterError> {
        lists::read(&self.link, &self.keys(name)).await
    }

    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
        self.listening.call_once(|| {
            let switchboard = Switchboard {
                clients: self.clients.clone(),
                timeouts: self.timeouts,
                wakes: Arc::clone(&self.wakes),
                stopping: self.stopping.token().clone(),
            };
            tokio::spawn(switchboard.run());
        });
        self.wakes.listen(self.keys(name).channel_of(holder))
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
