//! Looking at Redis as a whole, over a connection of its own that is made whatever state a server is in: a replica, one that evicts
//! or one of other settings has to be seen, too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::{FromRedisValue, RedisError, ScriptInvocation, cmd, pipe};
use async_trait::async_trait;
use chrono::Utc;
use futures_util::future::join_all;
use redis_link::{
    Attempts, Connection, Fault, Lane, Lanes, Redis, Server, SettingsError, info_field, slot,
};

use super::agreement::Compared;
use super::backlog::{ask_backlog, read_backlog};
use super::{RedisStore, fault, keys, scripts};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};
use crate::store::survey::{LOSS_KEPT, LOSSES_MAX, REPORT_BYTES_MAX, REPORT_KEPT, REPORTS_MAX};
use crate::store::{
    Coverage, Loss, LossRecord, Persistence, Reported, ServerFound, ServerSeen, StoreError, Survey,
    Surveyed,
};
use crate::text::beginning;

/// The losses of one command.
const LOSSES_AT_ONCE: usize = 100;
/// The one connection to each server.
const ONLY: Lane = Lane(0);
pub(super) const LANES: Lanes = Lanes { watched: 0, others: 1 };

/// Any server is looked at.
pub(super) fn any() -> redis_link::Check {
    std::sync::Arc::new(|_| Ok(()))
}

async fn see<T, F>(redis: &Redis, server: &Server, command: F) -> Result<T, StoreError>
where
    F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
{
    let run = async |connection: &mut Connection| match command(connection).await {
        // It is as good a connection as before, and nobody has to hear of it each time.
        Err(error) if error.code() == Some("READONLY") => Ok(Err(error)),
        answer => answer.map(Ok),
    };
    let answer = redis.run_on(server, ONLY, 0, Attempts::Two, run).await?;
    answer.map_err(|error| {
        redis.suspect();
        Fault::of(&error).at(server).into()
    })
}

async fn see_by<T: FromRedisValue>(
    redis: &Redis,
    slot: u16,
    script: ScriptInvocation<'_>,
) -> Result<T, StoreError> {
    let server = redis.server(slot).await?;
    let invoke = async move |connection: &mut Connection| script.invoke_async(connection).await;
    see(redis, &server, invoke).await
}

/// Keeps this among `all`, which are the nodes or the relays, in the place of this name; empty: nothing any more. Returns what was
/// there before.
async fn say(
    redis: &Redis,
    all: &str,
    name: &str,
    report: &str,
) -> Result<Option<String>, StoreError> {
    let kept_ms = u64::try_from(REPORT_KEPT.as_millis()).unwrap_or(u64::MAX);
    let mut script = scripts::REPORT.prepare_invoke();
    script.key(&[&format!("{all}:{name}"), all]);
    script.arg(name).arg(report).arg(kept_ms);
    see_by(redis, slot(all.as_bytes()), script).await
}

/// The same with the process that reports; returns whether another process reports under its name. Each of two processes of one name
/// that live overwrites what the other said, again and again; one that was started in the place of another finds it there
/// once, before it has said anything itself.
async fn say_as(
    redis: &Redis,
    all: &str,
    identity: &str,
    registered: &AtomicBool,
    report: &str,
) -> Result<bool, StoreError> {
    // With its version: whoever changes something for all sees by it who would not understand.
    let said = format!("{identity} {}\n{report}", crate::VERSION);
    let before = say(redis, all, name_of(identity), &said).await?;
    let was_there = registered.swap(true, Ordering::AcqRel);
    let is_other = |before: String| before.split([' ', '\n']).next() != Some(identity);
    Ok(was_there && before.is_some_and(is_other))
}

fn name_of(identity: &str) -> &str {
    identity.rsplit_once('#').map_or(identity, |(name, _)| name)
}

/// Returns what the processes among `all` said last.
async fn reports(redis: &Redis, all: &str) -> Result<Vec<Reported>, StoreError> {
    let mut script = scripts::REPORTS.prepare_invoke();
    script.key(all).arg(REPORTS_MAX).arg(REPORT_BYTES_MAX);
    let found: Vec<(Vec<u8>, i64, Vec<u8>)> = see_by(redis, slot(all.as_bytes()), script).await?;
    let read = |(name, ago_ms, said): (Vec<u8>, i64, Vec<u8>)| {
        let said = String::from_utf8_lossy(&said);
        let (head, text) = said.split_once('\n').unwrap_or((&said, ""));
        let (identity, version) = head.split_once(' ').unwrap_or((head, ""));
        Reported {
            name: String::from_utf8_lossy(&name).into_owned(),
            identity: identity.to_owned(),
            version: version.to_owned(),
            ago: Duration::from_millis(u64::try_from(ago_ms).unwrap_or(0)),
            text: text.to_owned(),
        }
    };
    Ok(found.into_iter().map(read).collect())
}

/// Where a relay reports itself, and what it lost, to those who look at the nodes. It does nothing else there.
#[derive(Debug)]
pub struct RelayRegister {
    redis: Redis,
    relays: String,
    losses: String,
    /// The name, and a number by chance.
    identity: String,
    /// Whether this relay has said that it lives.
    registered: AtomicBool,
}

impl RelayRegister {
    /// The register in this Redis, for the relay of this name. Connects with the first call.
    pub fn new(
        settings: redis_link::Settings,
        prefix: &str,
        name: &str,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            redis: Redis::new(settings, LANES, any())?,
            relays: keys::relays(prefix),
            losses: keys::losses(prefix),
            identity: format!("{name}#{:08x}", rand::random::<u32>()),
            registered: AtomicBool::new(false),
        })
    }

    /// Keeps what this relay says of itself for [`REPORT_KEPT`]. Returns whether another process does so under its name.
    pub async fn report(&self, report: &str) -> Result<bool, StoreError> {
        say_as(&self.redis, &self.relays, &self.identity, &self.registered, report).await
    }

    /// Takes the report back: the relay ends as it should.
    pub async fn withdraw(&self) -> Result<(), StoreError> {
        let name = name_of(&self.identity);
        say(&self.redis, &self.relays, name, "").await.map(drop)
    }
}

impl RedisStore {
    /// Marks these losses as acknowledged, as far as they were seen. For operators.
    pub async fn acknowledge_losses(&self, losses: &[Loss]) -> Result<(), StoreError> {
        let key = self.keys.losses();
        for some in losses.chunks(LOSSES_AT_ONCE) {
            let mut script = scripts::ACKNOWLEDGE_LOSSES.prepare_invoke();
            script.key(&key);
            for loss in some {
                script.arg(loss.key()).arg(loss.amount);
            }
            let () = see_by(&self.surveyed, slot(key.as_bytes()), script).await?;
        }
        Ok(())
    }

    async fn server(&self, server: &Server) -> Result<ServerFound, StoreError> {
        let looked = async |connection: &mut Connection| {
            let info: String = cmd("INFO").query_async(connection).await?;
            let asked_ms = Utc::now().timestamp_millis();
            let (seconds, micros): (i64, i64) = cmd("TIME").query_async(connection).await?;
            let here_ms = i64::midpoint(asked_ms, Utc::now().timestamp_millis());
            Ok((info, seconds * 1000 + micros / 1000 - here_ms))
        };
        let (info, clock_offset_ms) = see(&self.surveyed, server, looked).await?;
        let mut found = found(&info);
        found.clock_offset_ms = clock_offset_ms;
        found.refuses_writes = self.refuses_writes(server).await;
        Ok(found)
    }

    /// What a server says to a write that changes nothing: that key never has a time to live.
    async fn refuses_writes(&self, server: &Server) -> Option<Diagnosis> {
        let mut probed = None;
        for partition in self.partitions.iter() {
            let keys = self.keys(partition);
            let keeper = self.surveyed.server(keys.slot).await.ok()?;
            if keeper.endpoint() == server.endpoint() {
                probed = Some(&keys.division);
                break;
            }
        }
        let key = probed?;
        let write = async |connection: &mut Connection| {
            cmd("PERSIST").arg(key).exec_async(connection).await
        };
        let written = see(&self.surveyed, server, write).await;
        let found = Diagnosis::from(written.err()?);
        Some(match found.cause {
            Cause::RedisDown => Diagnosis::new(Cause::RedisReadOnly, found.why),
            _ => found,
        })
    }

    async fn seen(&self, minutes: &[Minute]) -> Result<BTreeMap<Minute, Coverage>, StoreError> {
        let of_partition = async |partition: Partition| -> Result<Vec<Coverage>, StoreError> {
            let keys = self.keys(partition);
            let mut pipeline = pipe();
            for minute in minutes {
                pipeline.hgetall(format!("{}coverage", keys.minute(*minute)));
            }
            let server = self.surveyed.server(keys.slot).await?;
            let ask =
                async move |connection: &mut Connection| pipeline.query_async(connection).await;
            let all: Vec<Vec<(String, u64)>> = see(&self.surveyed, &server, ask).await?;
            let all = all.into_iter();
            Ok(all.map(|processes| processes.into_iter().collect()).collect())
        };
        if minutes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut seen: BTreeMap<Minute, Coverage> = BTreeMap::new();
        for found in join_all(self.partitions.iter().map(of_partition)).await {
            for (minute, nodes) in minutes.iter().zip(found?) {
                let all = seen.entry(*minute).or_default();
                for (node, events) in nodes {
                    *all.entry(node).or_default() += events;
                }
            }
        }
        Ok(seen)
    }

    /// How the settings differ from those that stand in Redis.
    async fn differs(&self) -> Option<Diagnosis> {
        let key = &self.gateway.agreement.key;
        let server = self.surveyed.server(slot(key.as_bytes())).await.ok()?;
        let read = async |connection: &mut Connection| {
            ::redis::Cmd::hgetall(key).query_async(connection).await
        };
        let shared = see(&self.surveyed, &server, read).await.ok()?;
        self.gateway.agreement.difference(&shared, Compared::All)
    }
}

/// Takes these into the record of losses.
async fn lose(redis: &Redis, key: &str, losses: &[Loss]) -> Result<bool, StoreError> {
    let kept_ms = u64::try_from(LOSS_KEPT.as_millis()).unwrap_or(u64::MAX);
    for some in losses.chunks(LOSSES_AT_ONCE) {
        let mut script = scripts::LOSE.prepare_invoke();
        script.key(key).arg(LOSSES_MAX).arg(kept_ms);
        for loss in some {
            script.arg(loss.key()).arg(loss.amount);
        }
        let () = see_by(redis, slot(key.as_bytes()), script).await?;
    }
    Ok(true)
}

#[async_trait]
impl LossRecord for RelayRegister {
    fn identity(&self) -> &str {
        &self.identity
    }

    async fn lose(&self, losses: &[Loss]) -> Result<bool, StoreError> {
        lose(&self.redis, &self.losses, losses).await
    }
}

#[async_trait]
impl LossRecord for RedisStore {
    fn identity(&self) -> &str {
        &self.node
    }

    async fn lose(&self, losses: &[Loss]) -> Result<bool, StoreError> {
        lose(&self.surveyed, &self.keys.losses(), losses).await
    }

    async fn losses(&self) -> Result<Vec<Loss>, StoreError> {
        let key = self.keys.losses();
        let server = self.surveyed.server(slot(key.as_bytes())).await?;
        let read = async |connection: &mut Connection| {
            ::redis::Cmd::hgetall(&key).query_async(connection).await
        };
        let all: Vec<(Vec<u8>, Vec<u8>)> = see(&self.surveyed, &server, read).await?;
        let oldest_ms = Utc::now().timestamp_millis()
            - i64::try_from(LOSS_KEPT.as_millis()).unwrap_or(i64::MAX);
        let mut losses: Vec<_> =
            all.iter().filter_map(|(name, entry)| loss(name, entry, oldest_ms)).collect();
        losses.sort();
        Ok(losses)
    }
}

#[async_trait]
impl Survey for RedisStore {
    fn place(&self) -> String {
        self.surveyed.describe()
    }

    async fn report(&self, report: &str) -> Result<bool, StoreError> {
        let (nodes, registered) = (self.keys.nodes(), &self.registered);
        say_as(&self.surveyed, &nodes, &self.node, registered, report).await
    }

    async fn withdraw(&self) -> Result<(), StoreError> {
        let nodes = self.keys.nodes();
        say(&self.surveyed, &nodes, &self.name, "").await.map(drop)
    }

    async fn reports(&self) -> Result<Vec<Reported>, StoreError> {
        reports(&self.surveyed, &self.keys.nodes()).await
    }

    async fn survey(&self, minutes: &[Minute], old_before: Minute) -> Surveyed {
        if let Err(fault) = self.surveyed.server(0).await {
            return Surveyed::nothing(self.place(), &fault.into());
        }
        let servers = self.surveyed.servers();
        let servers = servers.iter().map(|server| async {
            let looked = self.server(server).await;
            ServerSeen {
                address: beginning(&server.endpoint().to_string(), 200),
                error: looked.as_ref().err().map(|error| error.clone().into()),
                found: looked.ok(),
            }
        });
        let servers = join_all(servers).await;
        let backlogs = join_all(self.partitions.iter().map(async |partition| {
            let keys = self.keys(partition);
            let ask = ask_backlog(keys, old_before);
            let answer = see_by(&self.surveyed, keys.slot, ask).await?;
            Ok(read_backlog(answer))
        }));
        let (nodes, relays) = (self.keys.nodes(), self.keys.relays());
        let (reports, relays, backlogs, seen, losses, difference) = futures_util::join!(
            reports(&self.surveyed, &nodes),
            reports(&self.surveyed, &relays),
            backlogs,
            self.seen(minutes),
            self.losses(),
            self.differs()
        );
        Surveyed {
            servers,
            reports,
            relays,
            backlogs: backlogs.into_iter().collect(),
            seen,
            losses,
            difference,
            counts_max: self.counts_max * u64::from(self.partitions.count()),
            in_logs: self.logs.is_some(),
        }
    }
}

/// A loss as it is in the record; `None`: it is too old, or nothing that a node writes.
fn loss(name: &[u8], entry: &[u8], oldest_ms: i64) -> Option<Loss> {
    let (name, entry) = (str::from_utf8(name).ok()?, str::from_utf8(entry).ok()?);
    let mut numbers = entry.split('|');
    let mut loss = Loss::of_key(name, numbers.next()?.parse().ok()?)?;
    loss.acknowledged = numbers.next()?.parse().ok()?;
    let grew_ms: i64 = numbers.next()?.parse().ok()?;
    // Of another version, or of a stranger, and shown to people.
    loss.cause = beginning(&loss.cause, 40);
    loss.process = beginning(&loss.process, 100);
    (grew_ms >= oldest_ms).then_some(loss)
}

/// What an answer to INFO says.
fn found(info: &str) -> ServerFound {
    let text = |name: &str| beginning(info_field(info, name).unwrap_or_default(), 40);
    let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
    let is_ok = |name: &str| matches!(info_field(info, name), None | Some("ok"));
    let version = match info_field(info, "valkey_version") {
        Some(_) => format!("Valkey {}", text("valkey_version")),
        None => format!("Redis {}", text("redis_version")),
    };
    ServerFound {
        version,
        role: text("role"),
        used_memory: fault::used(info),
        maxmemory: number("maxmemory"),
        policy: text("maxmemory_policy"),
        persistence: Persistence {
            aof: number("aof_enabled") == 1,
            unsaved_changes: number("rdb_changes_since_last_save"),
            last_save_ok: is_ok("rdb_last_bgsave_status") && is_ok("aof_last_write_status"),
        },
        clock_offset_ms: 0,
        refuses_writes: None,
        unfit: fault::check(info).err().map(Diagnosis::from),
    }
}
