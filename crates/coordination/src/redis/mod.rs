//! The arbiter for many processes, which stores its data in Redis 7.0 or newer: a single server, a master behind Sentinel,
//! or a cluster. Each operation is a Lua script that accesses the keys of one name and uses its server's clock.

mod wake_ups;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue, Script, ScriptInvocation, ToRedisArgs};
pub use redis_link::Timeouts;
use redis_link::{Connection, Fault, FaultKind, Lane, Lanes, Redis, Settings};
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{
    Answer, Arbiter, Beginning, Claim, Entry, Error, HANDED_OVER, Locking, Name, Place, Token,
    WAITING_MAX, micros,
};
use super::lease::is_keeper;
use super::settings::InvalidSetting;
use super::wakes::{Listener, Wakes};

/// Two connections per server: the thread that renews leases has its own, because a connection belongs to a runtime.
const LANES: Lanes = Lanes { watched: 0, others: 2 };

/// The maximum number of items that one script adds to a list, so that it does not block the server for long.
const PIECE_ITEMS: usize = 5000;
/// The maximum total size of the items that one script adds to a list, in bytes. A larger item is sent alone.
const PIECE_BYTES: usize = 1 << 20;
/// The time the token of a list's last writer is kept after the list has expired, in milliseconds.
const TOKEN_KEPT_MS: u64 = 600_000;
/// The time the pieces of a list are kept if their writer sends no more of them, in milliseconds.
const STAGED_MS: u64 = 60_000;

macro_rules! scripts {
    ($($name:ident = $flags:literal $file:literal;)*) => {$(
        static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!("#!lua", $flags, "\n", include_str!($file)))
        });
    )*};
}

// The operations in UNLOCKS and ENDS, which end or extend a lease, add no keys. They run even if Redis is out of memory.
scripts! {
    LOCKS = "" "mutex.lua";
    UNLOCKS = " flags=allow-oom" "mutex.lua";
    BEGINS = "" "value.lua";
    ENDS = " flags=allow-oom" "value.lua";
    READS = " flags=no-writes" "value.lua";
    WRITES_LIST = "" "list.lua";
}

/// Locks, values and lists in Redis, shared by all processes that use the same key prefix. Use it on one Tokio runtime only,
/// because its connections belong to the runtime of the first call.
#[derive(Debug)]
pub struct RedisArbiter {
    prefix: String,
    redis: Arc<Redis>,
    timeouts: Timeouts,
    wakes: Arc<Wakes>,
    hearing: OnceLock<AbortOnDropHandle<()>>,
}

impl RedisArbiter {
    /// Returns an arbiter that connects on the first call. Fails if a certificate is invalid, or if the key prefix is empty
    /// or contains braces, which Redis would interpret as a hash tag.
    pub fn new(settings: Settings, prefix: &str) -> Result<Self, InvalidSetting> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            let message = "must not be empty or contain braces";
            return Err(InvalidSetting(format!("the key prefix `{prefix}` {message}")));
        }
        let timeouts = settings.timeouts;
        let redis = Redis::new(settings, LANES, Arc::new(redis_link::check));
        Ok(Self {
            prefix: prefix.to_owned(),
            timeouts,
            redis: Arc::new(redis.map_err(|error| InvalidSetting(error.to_string()))?),
            wakes: Arc::default(),
            hearing: OnceLock::new(),
        })
    }

    /// Like [`new`](Self::new), but for a URL: `redis[s]://…`, `unix://…`, `redis+cluster://…` or `redis+sentinel://…`.
    pub fn open(address: &str, prefix: &str, timeouts: Timeouts) -> Result<Self, InvalidSetting> {
        let settings = address.parse::<Settings>();
        let settings = settings.map_err(|error| InvalidSetting(error.to_string()))?;
        Self::new(Settings { timeouts, ..settings }, prefix)
    }

    /// Returns the key of this kind for a name. All keys of a name share a hash tag, so they map to the same cluster slot.
    fn key(&self, name: &Name, kind: &str) -> String {
        format!("{{{}:{}}}:{kind}", self.prefix, name.as_str())
    }

    async fn run<T: FromRedisValue>(
        &self,
        script: &'static Script,
        name: &Name,
        operation: &str,
        arguments: impl ToRedisArgs + Send,
    ) -> Answer<T> {
        Ok(self.run_counted(script, name, operation, arguments).await?.0)
    }

    /// Returns the reply, and whether the script may have run more than once.
    async fn run_counted<T: FromRedisValue>(
        &self,
        script: &'static Script,
        name: &Name,
        operation: &str,
        arguments: impl ToRedisArgs + Send,
    ) -> Answer<(T, bool)> {
        let mut invocation = script.prepare_invoke();
        let keys: &[_] = if name.is_mutex() { &["holders"] } else { &["lock", "entry"] };
        for key in keys {
            invocation.key(self.key(name, key));
        }
        invocation.arg(operation).arg(self.key(name, "wake")).arg(arguments);
        self.send(self.slot(name), Request::Script(invocation)).await
    }

    async fn write_list(
        &self,
        name: &Name,
        writer: &str,
        arguments: impl ToRedisArgs + Send,
    ) -> Answer<bool> {
        let mut invocation = WRITES_LIST.prepare_invoke();
        invocation.key(self.key(name, "list")).key(self.key(name, "writer"));
        for key in ["staged", "committed"] {
            invocation.key(self.key(name, &format!("{writer}:{key}")));
        }
        invocation.arg(arguments);
        match self.send(self.slot(name), Request::Script(invocation)).await?.0 {
            -1 => Err(Error::Unavailable(
                "a part of the new list was lost, because writing it took too long or the master changed"
                    .to_owned(),
            )),
            done => Ok(done == 1),
        }
    }

    fn slot(&self, name: &Name) -> u16 {
        redis_link::slot(self.key(name, "").as_bytes())
    }

    /// Runs a script or a command on the server that owns this slot. A script is sent only if it is not cached there. Returns
    /// the reply, and whether the request was sent more than once.
    async fn send<T: FromRedisValue>(&self, slot: u16, request: Request) -> Answer<(T, bool)> {
        let shared = Arc::new((request, AtomicBool::new(false)));
        let send = || {
            let shared = Arc::clone(&shared);
            async move |connection: &mut Connection| {
                let (request, was_sent) = &*shared;
                let is_repeated = was_sent.swap(true, Ordering::Relaxed);
                let reply = match request {
                    Request::Script(script) => script.invoke_async(connection).await,
                    Request::Command(command) => command.query_async(connection).await,
                };
                reply.map(|reply| (reply, is_repeated || connection.was_replaced()))
            }
        };
        Ok(self.redis.run(slot, Lane(usize::from(is_keeper())), send).await?)
    }

    /// Returns the script for operations that need no room.
    fn ends(name: &Name) -> &'static Script {
        if name.is_mutex() { &UNLOCKS } else { &ENDS }
    }
}

enum Request {
    Script(ScriptInvocation<'static>),
    Command(Cmd),
}

#[async_trait]
impl Arbiter for RedisArbiter {
    async fn lock(&self, claim: &Claim, place: Place) -> Answer<Locking> {
        let Claim { name, holder, ttl } = claim;
        let lock = async |place| {
            let arguments = (holder, micros(*ttl), place, WAITING_MAX, micros(HANDED_OVER));
            self.run_counted(&LOCKS, name, "lock", arguments).await
        };
        let (mut reply, was_repeated): (Reply, _) = match place {
            Place::None => lock("none").await?,
            Place::Join => lock("join").await?,
            Place::Keep => lock("keep").await?,
        };
        if was_repeated && place == Place::Join {
            // The holder may have joined twice.
            reply = lock("keep").await?.0;
        }
        match (reply.0.as_str(), &reply.2[..]) {
            ("granted", [token]) => Ok(Locking::Granted(Token(*token))),
            ("queued", _) => Ok(Locking::Queued),
            ("busy", [us, token]) => Ok(Locking::Busy(Duration::from_micros(*us), Token(*token))),
            ("crowded", _) => Ok(Locking::Crowded),
            _ => Err(malformed(&reply)),
        }
    }

    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning> {
        let Claim { name, holder, ttl } = claim;
        let arguments = (holder, micros(*ttl), text(outdated));
        let reply: Reply = self.run(&BEGINS, name, "begin", arguments).await?;
        match (reply.0.as_str(), &reply.2[..]) {
            ("value", _) => Ok(Beginning::Value(entry(reply)?)),
            ("failed", _) => Ok(Beginning::Failed(String::from_utf8_lossy(&reply.1).into_owned())),
            ("granted", [token]) => Ok(Beginning::Granted(Token(*token))),
            ("busy", [wait_us]) => Ok(Beginning::Busy(Duration::from_micros(*wait_us))),
            _ => Err(malformed(&reply)),
        }
    }

    async fn renew(&self, claim: &Claim) -> Answer<bool> {
        let Claim { name, holder, ttl } = claim;
        self.run(Self::ends(name), name, "renew", (holder, micros(*ttl))).await
    }

    async fn release(&self, claim: &Claim) -> Answer<bool> {
        let Claim { name, holder, .. } = claim;
        self.run(Self::ends(name), name, "release", (holder, micros(HANDED_OVER))).await
    }

    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool> {
        let (output, cost) = match output {
            Ok((value, cost)) => (value, Some(micros(cost))),
            Err(message) => (message.as_bytes(), None),
        };
        let arguments = (&claim.holder, micros(ttl), output, cost);
        self.run(&BEGINS, &claim.name, "publish", arguments).await
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        let reply: Option<Reply> = self.run(&READS, name, "peek", None::<u64>).await?;
        reply.map(entry).transpose()
    }

    async fn invalidate(&self, name: &Name) -> Answer<bool> {
        self.run(&ENDS, name, "invalidate", None::<u64>).await
    }

    /// Sends a large list in pieces, staged under a key unique to this call, which the script for the last piece renames.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool> {
        let ttl_ms = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let writer = format!("{:032x}", rand::random::<u128>());
        let (token, kept_ms) = (text(token), ttl_ms + TOKEN_KEPT_MS);
        let mut pieces = pieces(items);
        let last = pieces.pop().unwrap_or_default();
        let mut staged = 0;
        for piece in pieces {
            let arguments = ("stage", staged, STAGED_MS, piece);
            self.write_list(name, &writer, arguments).await?;
            staged += piece.len();
        }
        let arguments = ("replace", staged, token, kept_ms, ttl_ms, STAGED_MS, last);
        self.write_list(name, &writer, arguments).await
    }

    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>> {
        let read = Cmd::lrange(self.key(name, "list"), 0, -1);
        Ok(self.send(self.slot(name), Request::Command(read)).await?.0)
    }

    fn listen(&self, name: &Name, holder: Option<&str>) -> Listener {
        self.hearing.get_or_init(|| {
            let (redis, wakes) = (Arc::clone(&self.redis), Arc::clone(&self.wakes));
            let hearing = wake_ups::hear(redis, self.timeouts, wakes, self.prefix.clone());
            AbortOnDropHandle::new(tokio::spawn(hearing))
        });
        let channel = self.key(name, "wake");
        self.wakes.listen(match holder {
            Some(holder) => format!("{channel}:{holder}"),
            None => channel,
        })
    }
}

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

/// A reply from `mutex.lua` or `value.lua`: its kind, a value or message, and numbers.
type Reply = (String, Vec<u8>, Vec<u64>);

fn entry(reply: Reply) -> Answer<Entry> {
    let [token, cost_us, written_us, expires_us, now_us] = reply.2[..] else {
        return Err(malformed(&reply));
    };
    let (token, cost) = (Token(token), Duration::from_micros(cost_us));
    Ok(Entry { value: reply.1.into(), token, cost, written_us, expires_us, now_us })
}

fn malformed(reply: &Reply) -> Error {
    Error::Unavailable(format!("malformed script reply: {:?} {:?}", reply.0, reply.2))
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let message = fault.to_string();
        match fault.kind {
            FaultKind::Full => Self::Full(message),
            _ if fault.is_refusal() => Self::Refused(message),
            _ => Self::Unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_complete() {
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
    fn keys_of_a_name_share_a_hash_tag() {
        let settings = "redis://127.0.0.1:1".parse().unwrap();
        let arbiter = RedisArbiter::new(settings, "app").unwrap();
        let key = |name, kind| arbiter.key(&Name::of_mutex(name).unwrap(), kind);
        assert_eq!(key("a", "lock"), "{app:mutex:a}:lock");
        // A brace in the name shortens the hash tag, but equally for all keys of the name, and never to an empty one.
        assert_eq!(key("}x{", "lock"), "{app:mutex:}x{}:lock");
    }
}
