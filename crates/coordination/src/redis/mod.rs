//! The arbiter that many processes share: Redis 7.0 or newer, one server, one behind Sentinel, or a cluster.
//!
//! Each operation is one Lua script on the keys of one name, by the clock of the server that has them.

mod wake_ups;

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue, Script, ScriptInvocation, ToRedisArgs};
pub use redis_link::Timeouts;
use redis_link::{
    Connection, Fault, FaultKind, Lane, Lanes, Redis, Settings, SettingsError, UrlError,
    info_field, on_one_line,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{
    Answer, Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX, micros,
};
use super::event::{Event, Hook};
use super::keeper;
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// All commands go over one connection to each server, except those of the thread that renews leases: a connection belongs
/// to the runtime that made it.
const LANES: Lanes = Lanes { watched: 0, others: 2 };

/// The most items that one script takes, so that it does not hold up the server for long.
const PIECE_ITEMS: usize = 5000;
/// The most bytes that one script takes. A single item may be larger.
const PIECE_BYTES: usize = 1 << 20;
/// The time for which the token of a writer outlives its list.
const TOKEN_KEPT_MS: u64 = 600_000;
/// The time to live of a piece that its writer does not continue.
const STAGED_MS: u64 = 60_000;

macro_rules! scripts {
    ($($name:ident = $flags:literal $file:literal;)*) => {$(
        static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!("#!lua", $flags, "\n", include_str!($file)))
        });
    )*};
}

// Operations that end something, or hold it for longer, run also when Redis is over its memory limit: they add no key, and a
// lock that cannot be released helps no caller. Operations that begin or keep something do not.
scripts! {
    BEGINS = "" "name.lua";
    ENDS = " flags=allow-oom" "name.lua";
    READS = " flags=no-writes" "name.lua";
    WRITES_LIST = "" "list.lua";
    COMMITS_LIST = " flags=allow-oom" "list.lua";
}

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
    redis: Arc<Redis>,
    timeouts: Timeouts,
    wakes: Arc<Wakes>,
    /// The task that receives wake-ups. It begins with the first listener.
    hearing: OnceLock<AbortOnDropHandle<()>>,
    hook: Hook,
}

impl RedisArbiter {
    /// In this Redis. Connects with the first call.
    pub fn new(settings: Settings, prefix: &str) -> Result<Self, AddressError> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(AddressError::Prefix(prefix.to_owned()));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            timeouts: settings.timeouts,
            redis: Arc::new(Redis::new(settings, LANES, Arc::new(check))?),
            wakes: Arc::default(),
            hearing: OnceLock::new(),
            hook: Hook::default(),
        })
    }

    /// By an address: `redis://…`, `rediss://…` and `unix://…` as everywhere, `redis+cluster://host:port,host:port` and
    /// `redis+sentinel://host:port,host:port/name`, both of which may have `user:password@` before the first host.
    pub fn open(address: &str, prefix: &str, timeouts: Timeouts) -> Result<Self, AddressError> {
        Self::new(Settings { timeouts, ..address.parse()? }, prefix)
    }

    /// Calls `hook` with each event of locks and values in this process. It must not block.
    #[must_use]
    pub fn observed_by(self, hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        Self { hook: Hook::new(hook), ..self }
    }

    /// All keys of a name have one hash tag, `{prefix:kind:name}` or up to the first closing brace of the name, so that they are in
    /// one slot of a Redis Cluster and a script may use them together.
    fn key(&self, name: &Name, what: &str) -> String {
        format!("{{{}:{}}}:{what}", self.prefix, name.as_str())
    }

    /// Runs an operation of `name.lua`.
    async fn run<T: FromRedisValue>(
        &self,
        script: &'static Script,
        name: &Name,
        operation: &str,
        arguments: impl ToRedisArgs + Send,
    ) -> Answer<T> {
        let mut invocation = script.prepare_invoke();
        for key in ["lock", "queue", "present", "entry"] {
            invocation.key(self.key(name, key));
        }
        invocation.arg(operation).arg(self.key(name, "wake")).arg(arguments);
        self.send(self.slot(name), Request::Script(invocation)).await
    }

    /// Runs an operation of `list.lua` for a writer.
    async fn write_list(
        &self,
        script: &'static Script,
        name: &Name,
        by: &Holder,
        arguments: impl ToRedisArgs + Send,
    ) -> Answer<bool> {
        let mut invocation = script.prepare_invoke();
        invocation.key(self.key(name, "list")).key(self.key(name, "writer"));
        for key in ["staged", "committed"] {
            invocation.key(self.key(name, &format!("{}:{key}", by.as_str())));
        }
        invocation.arg(arguments);
        match self.send(self.slot(name), Request::Script(invocation)).await? {
            -1 => Err(ArbiterError::Unavailable(
                "the pieces of the list are gone: the writer was too slow, or the master changed"
                    .to_owned(),
            )),
            done => Ok(done == 1),
        }
    }

    fn slot(&self, name: &Name) -> u16 {
        redis_link::slot(self.key(name, "").as_bytes())
    }

    /// Sends what may be carried out twice to the server of this slot. Only a server that lacks a script is sent its text.
    async fn send<T: FromRedisValue>(&self, slot: u16, what: Request) -> Answer<T> {
        let (begun, what) = (Instant::now(), Arc::new(what));
        let lane = Lane(usize::from(keeper::is_here()));
        loop {
            let what = Arc::clone(&what);
            let send = async move |connection: &mut Connection| match &*what {
                Request::Script(script) => script.invoke_async(connection).await,
                Request::Command(command) => command.query_async(connection).await,
            };
            match self.redis.run(slot, lane, send).await {
                Err(fault) if self.redis.may_repeat(&fault, begun).await => {}
                answer => return Ok(answer?),
            }
        }
    }
}

enum Request {
    Script(ScriptInvocation<'static>),
    Command(Cmd),
}

#[async_trait]
impl Arbiter for RedisArbiter {
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Answer<Locking> {
        let arguments = (holder.as_str(), micros(ttl), presence.map_or(0, micros), WAITING_MAX);
        let reply = Reply(self.run(&BEGINS, name, "lock", arguments).await?);
        match reply.kind() {
            b"granted" => Ok(Locking::Granted(Token::new(reply.number(1)?))),
            b"busy" => Ok(Locking::Busy(Duration::from_micros(reply.number(1)?))),
            b"crowded" => Ok(Locking::Crowded),
            _ => Err(reply.strange()),
        }
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Answer<bool> {
        self.run(&ENDS, name, "renew", (token.number(), micros(ttl))).await
    }

    async fn unlock(&self, name: &Name, token: Token) -> Answer<bool> {
        self.run(&ENDS, name, "unlock", token.number()).await
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Answer<()> {
        self.run(&ENDS, name, "leave", holder.as_str()).await
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        let reply = Reply(self.run(&READS, name, "peek", None::<u64>).await?);
        if reply.kind() == b"none" {
            return Ok(None);
        }
        reply.entry().map(Some)
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Answer<Beginning> {
        let arguments = (holder.as_str(), micros(ttl), text(outdated));
        let reply = Reply(self.run(&BEGINS, name, "begin", arguments).await?);
        match reply.kind() {
            b"value" => Ok(Beginning::Value(reply.entry()?)),
            b"failed" => {
                Ok(Beginning::Failed(String::from_utf8_lossy(reply.field(1)?).into_owned()))
            }
            b"granted" => Ok(Beginning::Granted(Token::new(reply.number(1)?))),
            b"busy" => Ok(Beginning::Busy(Duration::from_micros(reply.number(1)?))),
            _ => Err(reply.strange()),
        }
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Answer<bool> {
        let arguments = (token.number(), value, micros(cost), micros(ttl));
        self.run(&BEGINS, name, "publish", arguments).await
    }

    async fn fail(&self, name: &Name, token: Token, message: &str, ttl: Duration) -> Answer<bool> {
        self.run(&BEGINS, name, "fail", (token.number(), message, micros(ttl))).await
    }

    async fn invalidate(&self, name: &Name) -> Answer<bool> {
        self.run(&ENDS, name, "invalidate", None::<u64>).await
    }

    /// From the arguments of one script, or in pieces under a name of the writer's own that then takes the place of the list.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool> {
        let ttl_ms = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let (writer, token, kept_ms) = (Holder::random(), text(token), ttl_ms + TOKEN_KEPT_MS);
        let pieces = pieces(items);
        if pieces.len() <= 1 {
            let arguments = ("replace", token, kept_ms, ttl_ms, items);
            return self.write_list(&WRITES_LIST, name, &writer, arguments).await;
        }
        let mut staged = 0;
        for piece in pieces {
            let arguments = ("stage", staged, STAGED_MS, piece);
            self.write_list(&WRITES_LIST, name, &writer, arguments).await?;
            staged += piece.len();
        }
        let arguments = ("commit", token, kept_ms, ttl_ms, staged, STAGED_MS);
        self.write_list(&COMMITS_LIST, name, &writer, arguments).await
    }

    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>> {
        let read = Cmd::lrange(self.key(name, "list"), 0, -1);
        self.send(self.slot(name), Request::Command(read)).await
    }

    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
        self.hearing.get_or_init(|| {
            let (redis, wakes) = (Arc::clone(&self.redis), Arc::clone(&self.wakes));
            let hearing = wake_ups::hear(redis, self.timeouts, wakes, self.prefix.clone());
            AbortOnDropHandle::new(tokio::spawn(hearing))
        });
        let channel = self.key(name, "wake");
        self.wakes.listen(match holder {
            Some(holder) => format!("{channel}:{}", holder.as_str()),
            None => channel,
        })
    }

    fn observe(&self, name: &Name, event: &Event) {
        self.hook.call(name, event);
    }
}

/// No token is an empty text.
fn text(token: Option<Token>) -> String {
    token.map(|token| token.to_string()).unwrap_or_default()
}

fn pieces<'a, 'b>(items: &'b [&'a [u8]]) -> Vec<&'b [&'a [u8]]> {
    let mut pieces = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        if index > first && (index - first == PIECE_ITEMS || bytes + item.len() > PIECE_BYTES) {
            pieces.push(&items[first..index]);
            (first, bytes) = (index, 0);
        }
        bytes += item.len();
    }
    if first < items.len() {
        pieces.push(&items[first..]);
    }
    pieces
}

/// An answer of `name.lua`: its kind, and its fields from index 1 on.
struct Reply(Vec<Vec<u8>>);

impl Reply {
    fn kind(&self) -> &[u8] {
        self.0.first().map_or(&[], Vec::as_slice)
    }

    fn field(&self, index: usize) -> Answer<&[u8]> {
        self.0.get(index).map(Vec::as_slice).ok_or_else(|| self.strange())
    }

    fn number(&self, index: usize) -> Answer<u64> {
        let number = std::str::from_utf8(self.field(index)?).ok().and_then(|it| it.parse().ok());
        number.ok_or_else(|| self.strange())
    }

    fn entry(&self) -> Answer<Entry> {
        Ok(Entry {
            value: self.field(1)?.into(),
            token: Token::new(self.number(2)?),
            cost: Duration::from_micros(self.number(3)?),
            written_us: self.number(4)?,
            expires_us: self.number(5)?,
            now_us: self.number(6)?,
        })
    }

    fn strange(&self) -> ArbiterError {
        let kind = String::from_utf8_lossy(self.kind());
        let kind = on_one_line(&kind);
        ArbiterError::Refused(format!("a script answered what is not understood: {kind}"))
    }
}

impl From<Fault> for ArbiterError {
    fn from(fault: Fault) -> Self {
        let message = fault.to_string();
        match fault.kind {
            FaultKind::Full => Self::Full(message),
            _ if fault.is_refusal() => Self::Refused(message),
            _ => Self::Unavailable(message),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_lose_nothing() {
        let large = vec![0; PIECE_BYTES];
        for items in [vec![], vec![b"a".as_slice(); 12_001], vec![&large, b"a", &large, &large]] {
            let pieces = pieces(&items);
            assert_eq!(pieces.concat(), items);
            for piece in pieces {
                let bytes: usize = piece.iter().map(|item| item.len()).sum();
                assert!(piece.len() <= PIECE_ITEMS && (bytes <= PIECE_BYTES || piece.len() == 1));
            }
        }
    }

    #[test]
    fn the_keys_of_a_name_share_a_hash_tag() {
        let settings = "redis://127.0.0.1:1".parse().unwrap();
        let arbiter = RedisArbiter::new(settings, "app").unwrap();
        let key = |name, what| arbiter.key(&Name::of_mutex(name).unwrap(), what);
        assert_eq!(key("a", "lock"), "{app:mutex:a}:lock");
        // A brace in the name makes the tag shorter for all keys alike, and never empty.
        assert_eq!(key("}x{", "lock"), "{app:mutex:}x{}:lock");
    }
}
