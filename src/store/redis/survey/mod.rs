//! Surveys of Redis as a whole, the reports of nodes and relays, and the loss record. All of these use a separate
//! connection, which is made in any state of the server, so that operators can also see servers that nodes cannot use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::{Cmd, FromRedisValue, RedisError, ScriptInvocation, cmd, pipe};
use async_trait::async_trait;
use chrono::Utc;
use futures_util::future::join_all;
use redis_link::{Connection, Fault, Lane, Lanes, Redis, Server, SettingsError, info_field, slot};

use super::gateway::Command;
use super::keys::{self, Place, Scope};
use super::scripts::{SHARED, Source, scripts};
use super::settings::Compared;
use super::windows::size;
use super::{RedisStore, fault, millis};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};
use crate::store::Store as _;
use crate::store::survey::{
    LOSS_KEPT, LOSSES_MAX, OPEN_WINDOWS_MAX, REPORT_BYTES_MAX, REPORT_KEPT, REPORTS_MAX,
};
use crate::store::{
    Backlog, Bucket, Coverage, Loss, OutputBacklog, Persistence, Registry, Reported, Result,
    ServerFound, ServerSeen, Survey, Surveyed,
};
use crate::text::beginning;

scripts! {
    REPORT PutReport = SHARED + "report.lua"(node all) => (name report kept_ms);
    REPORTS Reports = SHARED + "reports.lua"(all) => (nodes_max bytes_max);
    LOSE Lose = SHARED + "lose.lua"(losses) => (entries_max kept_ms);
    ACKNOWLEDGE_LOSSES AcknowledgeLosses = "acknowledge_losses.lua"(losses) => ();
    BACKLOG AskBacklog = "backlog.lua"() Partition[minutes claims quarantine outputs] => (old_before);
}

const LOSSES_AT_ONCE: usize = 100;
const ONLY: Lane = Lane(0);
const LANES: Lanes = Lanes { watched: 0, others: 1 };

/// The output, the names of its minutes, the number of counts in its quarantine.
type OfOutput = (String, Vec<String>, u64);
/// The number of waiting minutes, how many are old, the first one, the minutes claimed for sealing, each output's backlog.
pub(super) type Waits = (u64, u64, Vec<String>, Vec<String>, Vec<OfOutput>);

pub(super) fn ask_backlog(place: &Place<'_>, old_before: Minute) -> ScriptInvocation<'static> {
    AskBacklog { old_before: old_before.epoch_minutes() }.at(place)
}

pub(super) fn read_backlog((waiting, old, mut names, claimed, of_outputs): Waits) -> Backlog {
    let count = claimed.len() as u64;
    // Claims are sorted by deadline, so the earliest minute may be anywhere in the list.
    let earliest = |names: &[String]| Minute::earliest(names.iter().map(String::as_str));
    names.extend(claimed);
    let of_output = |(output, unsent, quarantined): OfOutput| {
        let backlog =
            OutputBacklog { unsent: unsent.len() as u64, oldest: earliest(&unsent), quarantined };
        Some((output.parse().ok()?, backlog))
    };
    Backlog {
        waiting,
        old,
        claimed: count,
        oldest: earliest(&names),
        outputs: of_outputs.into_iter().filter_map(of_output).collect(),
    }
}

/// The reports and losses of a process (a node or a relay), for operators.
#[derive(Debug)]
pub struct Register {
    redis: Redis,
    /// The key that holds the names of all nodes, or of all relays.
    all: String,
    losses: String,
    /// The process's name and a random number, which distinguishes processes with the same name.
    identity: String,
    registered: AtomicBool,
}

impl Register {
    /// Creates the register for a process of this kind (`nodes` or `relays`) and name. Connects on the first call.
    pub fn new(
        settings: redis_link::Settings,
        prefix: &str,
        kind: &str,
        name: &str,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            redis: Redis::new(settings, LANES, Arc::new(|_| Ok(())))?,
            all: keys::of_all(prefix, kind),
            losses: keys::of_all(prefix, "losses"),
            identity: format!("{name}#{:08x}", rand::random::<u32>()),
            registered: AtomicBool::new(false),
        })
    }

    async fn see<T, F>(&self, server: &Server, command: F) -> Result<T>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let run = async |connection: &mut Connection| match command(connection).await {
            // A replica rejects writes, but its connection works, so do not replace the connection and log that each time.
            Err(error) if error.code() == Some("READONLY") => Ok(Err(error)),
            answer => answer.map(Ok),
        };
        let answer = self.redis.run_on(server, ONLY, 0, run).await?;
        answer.map_err(|error| {
            self.redis.suspect();
            Fault::of(&error).at(server).into()
        })
    }

    async fn ask<T: FromRedisValue>(
        &self,
        key: &str,
        command: impl Into<Command<'_>>,
    ) -> Result<T> {
        let command = command.into();
        self.run(key, async |connection: &mut Connection| command.run(connection).await).await
    }

    pub(super) async fn run<T, F>(&self, key: &str, command: F) -> Result<T>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let server = self.redis.server(slot(key.as_bytes())).await?;
        self.see(&server, command).await
    }

    /// Replaces the previous report under this name, or removes it if `report` is empty. Returns the previous report.
    async fn put(&self, report: &str) -> Result<Option<String>> {
        let name = self.identity.rsplit_once('#').map_or(&*self.identity, |(name, _)| name);
        let node = format!("{}:{name}", self.all);
        let script = PutReport { node, all: &self.all, name, report, kept_ms: millis(REPORT_KEPT) };
        self.ask(&self.all, script.at(&Place::default())).await
    }

    async fn reports_of(&self, all: &str) -> Result<Vec<Reported>> {
        let script = Reports { all, nodes_max: REPORTS_MAX, bytes_max: REPORT_BYTES_MAX };
        let found: Vec<(Vec<u8>, i64, Vec<u8>)> =
            self.ask(all, script.at(&Place::default())).await?;
        let read = |(name, ago_ms, report): (Vec<u8>, i64, Vec<u8>)| {
            let report = String::from_utf8_lossy(&report);
            let (head, text) = report.split_once('\n').unwrap_or((&report, ""));
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

    async fn send(
        &self,
        losses: &[Loss],
        script: impl Fn() -> ScriptInvocation<'static> + Send + Sync,
    ) -> Result<()> {
        for part in losses.chunks(LOSSES_AT_ONCE) {
            let mut script = script();
            for loss in part {
                script.arg(loss.key()).arg(loss.amount);
            }
            self.ask::<()>(&self.losses, script).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Registry for Register {
    fn identity(&self) -> &str {
        &self.identity
    }

    /// Two live processes with the same name keep finding each other's reports. A report found at startup does not count.
    async fn report(&self, report: &str) -> Result<bool> {
        // Includes the version, since a change of the cluster-wide settings is rejected while any node does not support it.
        let before = self.put(&format!("{} {}\n{report}", self.identity, crate::VERSION)).await?;
        let was_there = self.registered.swap(true, Ordering::AcqRel);
        let is_other =
            |before: String| before.split([' ', '\n']).next() != Some(self.identity.as_str());
        Ok(was_there && before.is_some_and(is_other))
    }

    async fn withdraw(&self) -> Result<()> {
        self.put("").await.map(drop)
    }

    async fn reports(&self) -> Result<Vec<Reported>> {
        self.reports_of(&self.all).await
    }

    async fn lose(&self, losses: &[Loss]) -> Result<bool> {
        let script = || {
            let losses = &self.losses;
            Lose { losses, entries_max: LOSSES_MAX, kept_ms: millis(LOSS_KEPT) }
                .at(&Place::default())
        };
        self.send(losses, script).await.map(|()| true)
    }

    async fn losses(&self) -> Result<Vec<Loss>> {
        let all = Cmd::hgetall(&self.losses);
        let all: Vec<(Vec<u8>, Vec<u8>)> = self.ask(&self.losses, all).await?;
        let oldest_ms = Utc::now().timestamp_millis()
            - i64::try_from(LOSS_KEPT.as_millis()).unwrap_or(i64::MAX);
        let mut losses: Vec<_> =
            all.iter().filter_map(|(name, entry)| loss(name, entry, oldest_ms)).collect();
        losses.sort();
        Ok(losses)
    }
}

impl RedisStore {
    /// Marks these losses as acknowledged, up to the amounts that the operator saw.
    pub async fn acknowledge_losses(&self, seen: &[Loss]) -> Result<()> {
        let losses = &self.register.losses;
        self.register.send(seen, || AcknowledgeLosses { losses }.at(&Place::default())).await
    }

    async fn server(&self, server: &Server) -> Result<ServerFound> {
        let looked = async |connection: &mut Connection| {
            let info: String = cmd("INFO").query_async(connection).await?;
            let asked_ms = Utc::now().timestamp_millis();
            let (seconds, micros): (i64, i64) = cmd("TIME").query_async(connection).await?;
            let here_ms = i64::midpoint(asked_ms, Utc::now().timestamp_millis());
            Ok((info, seconds * 1000 + micros / 1000 - here_ms))
        };
        let (info, clock_offset_ms) = self.register.see(server, looked).await?;
        let refuses_writes = self.refuses_writes(server).await;
        Ok(ServerFound { clock_offset_ms, refuses_writes, ..found(&info) })
    }

    /// Returns why a server rejects writes, if it does. The test has no effect, since the division key never has a TTL.
    async fn refuses_writes(&self, server: &Server) -> Option<Diagnosis> {
        for partition in self.gateway.partitions.iter() {
            let keys = self.gateway.keys(partition);
            let keeper = self.register.redis.server(keys.slot).await.ok()?;
            if keeper.endpoint() != server.endpoint() {
                continue;
            }
            let write = async |connection: &mut Connection| {
                Cmd::persist(keys.key("division")).exec_async(connection).await
            };
            let found = Diagnosis::from(self.register.see(server, write).await.err()?);
            return Some(match found.cause {
                Cause::RedisDown => Diagnosis::new(Cause::RedisReadOnly, found.why),
                _ => found,
            });
        }
        None
    }

    async fn seen(&self, minutes: &[Minute]) -> Result<BTreeMap<Minute, Coverage>> {
        let of_partition = async |partition: Partition| -> Result<Vec<Coverage>> {
            let at = self.gateway.at(partition, ONLY);
            let mut pipeline = pipe();
            for minute in minutes {
                pipeline.hgetall(at.minute(*minute).key("coverage"));
            }
            self.register.ask(&self.gateway.keys(partition).tag, pipeline).await
        };
        if minutes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut seen: BTreeMap<Minute, Coverage> = BTreeMap::new();
        for found in join_all(self.gateway.partitions.iter().map(of_partition)).await {
            for (minute, nodes) in minutes.iter().zip(found?) {
                let all = seen.entry(*minute).or_default();
                for (node, events) in nodes {
                    *all.entry(node).or_default() += events;
                }
            }
        }
        Ok(seen)
    }
}

#[async_trait]
impl Survey for RedisStore {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::clone(&self.register) as Arc<dyn Registry>
    }

    async fn survey(&self, minutes: &[Minute], old_before: Minute) -> Surveyed {
        let register = &self.register;
        if let Err(fault) = register.redis.server(0).await {
            return Surveyed::nothing(self.describe(), &fault.into());
        }
        let servers = register.redis.servers();
        let servers = servers.iter().map(|server| async {
            let looked = self.server(server).await;
            ServerSeen {
                address: beginning(&server.endpoint().to_string(), 200),
                error: looked.as_ref().err().map(|error| error.clone().into()),
                found: looked.ok(),
            }
        });
        let servers = join_all(servers).await;
        let backlogs = join_all(self.gateway.partitions.all().map(async |partition| {
            let place = self.gateway.at(partition, ONLY).place;
            let tag = &self.gateway.keys(partition).tag;
            register.ask(tag, ask_backlog(&place, old_before)).await.map(read_backlog)
        }));
        let relays = keys::of_all(&self.gateway.keys.prefix, "relays");
        let agreement = &self.gateway.agreement;
        let (reports, relays, backlogs, seen, windows, losses, shared) = futures_util::join!(
            register.reports(),
            register.reports_of(&relays),
            backlogs,
            self.seen(minutes),
            self.open_windows(),
            register.losses(),
            register.ask(&agreement.key, Cmd::hgetall(&agreement.key))
        );
        Surveyed {
            servers,
            reports,
            relays,
            backlogs: backlogs.into_iter().collect(),
            seen,
            windows,
            losses,
            difference: shared
                .ok()
                .and_then(|settings| agreement.difference(&settings, Compared::All)),
            counts_max: self.gateway.process.counts_max
                * u64::from(self.gateway.partitions.count()),
            in_logs: self.capabilities().finds_new_users,
        }
    }

    async fn open_windows(&self) -> Result<Vec<(Bucket, u64)>> {
        let of_rollup = async |partition: Partition| -> Result<Vec<(Bucket, u64)>> {
            let (at, tag) = (self.gateway.at(partition, ONLY), &self.gateway.keys(partition).tag);
            let mut ask = pipe();
            for key in ["minutes", "claims"] {
                ask.zrange(at.place.key(Scope::Partition, key), 0, -1);
            }
            let names: [Vec<String>; 2] = self.register.ask(tag, ask).await?;
            let minutes: BTreeSet<Minute> =
                names.iter().flatten().filter_map(|name| name.parse().ok()).collect();
            let mut windows = Vec::new();
            for minute in minutes.into_iter().rev().take(OPEN_WINDOWS_MAX) {
                let lists = Cmd::smembers(at.minute(minute).key("logs"));
                let lists: Vec<String> = self.register.ask(tag, lists).await?;
                let bytes = lists.iter().map(|name| size(name)).sum();
                windows.push((Bucket { partition, minute }, bytes));
            }
            Ok(windows)
        };
        let rollups = self.gateway.partitions.rollups().map(|(partition, _)| of_rollup(partition));
        let windows: Result<Vec<_>> = join_all(rollups).await.into_iter().collect();
        Ok(windows?.concat())
    }
}

/// Parses an entry of the loss record. Returns None if the entry is too old or malformed.
fn loss(name: &[u8], entry: &[u8], oldest_ms: i64) -> Option<Loss> {
    let (name, entry) = (str::from_utf8(name).ok()?, str::from_utf8(entry).ok()?);
    let mut numbers = entry.split('|');
    let mut loss = Loss::of_key(name, numbers.next()?.parse().ok()?)?;
    loss.acknowledged = numbers.next()?.parse().ok()?;
    let grew_ms: i64 = numbers.next()?.parse().ok()?;
    // These texts are shown to operators, and a different version or another program may have written them.
    loss.cause = beginning(&loss.cause, 40);
    loss.process = beginning(&loss.process, 100);
    (grew_ms >= oldest_ms).then_some(loss)
}

fn found(info: &str) -> ServerFound {
    let text = |name: &str| beginning(info_field(info, name).unwrap_or_default(), 40);
    let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
    let (used_memory, maxmemory) = fault::memory(info);
    let is_ok = |name: &str| matches!(info_field(info, name), None | Some("ok"));
    let version = match info_field(info, "valkey_version") {
        Some(_) => format!("Valkey {}", text("valkey_version")),
        None => format!("Redis {}", text("redis_version")),
    };
    ServerFound {
        version,
        role: text("role"),
        used_memory,
        maxmemory,
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
