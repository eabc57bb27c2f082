//! The Redis of all schedules, with a clock that the test moves, and its contents.

use event_data_service::event::Minute;
use redis::Connection;
use testing::prelude::*;

use super::node::settings;
use super::oracle::Counts;
use super::turns::{OfNode, Turns};
use super::world::NODES;
use crate::store_redis::site::{do_everything, next_minute, store};

/// The hash tag of the only partition.
pub(super) const TAG: &str = "{eds:0}";

/// Name, expiry, content.
pub(super) type Saved = Vec<(String, i64, Vec<u8>)>;

/// Shared by all schedules.
pub(super) struct Site {
    _server: RedisServer,
    pub(super) clock: Clock,
    pub(super) connection: Connection,
    pub(super) turns: Arc<Turns>,
    pub(super) proxies: Vec<RedisProxy>,
}

impl Site {
    pub(super) async fn start() -> Self {
        let clock = Clock::stopped_at(next_minute().start_nanos() / 1000);
        let server = RedisServer::start_with_clock(&clock, &[]);
        // Redis has all scripts, so that a schedule does not depend on earlier ones.
        let store = store(&settings(server.address(), "n"));
        do_everything(&store).await.unwrap();
        let turns = Arc::<Turns>::default();
        let proxy = |node| {
            let watcher = Arc::new(OfNode(Arc::clone(&turns), node));
            RedisProxy::watched(server.address(), watcher)
        };
        Self {
            connection: server.connection(),
            proxies: (0..NODES).map(proxy).collect(),
            turns: Arc::clone(&turns),
            _server: server,
            clock,
        }
    }

    pub(super) fn names(&mut self) -> Vec<String> {
        let mut names: Vec<String> =
            redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        names.sort_unstable();
        names
    }

    /// Returns the contents.
    pub(super) fn save(&mut self) -> Saved {
        let names = self.names();
        let mut dump = redis::pipe();
        for name in &names {
            dump.cmd("PEXPIRETIME").arg(name).cmd("DUMP").arg(name);
        }
        let contents: Vec<(i64, Vec<u8>)> = dump.query(&mut self.connection).unwrap();
        let entry = |(name, (expires, content))| (name, expires, content);
        names.into_iter().zip(contents).map(entry).collect()
    }

    pub(super) fn go_back(&mut self, saved: &Saved) {
        let mut restore = redis::pipe();
        restore.cmd("FLUSHALL");
        for (name, expires, content) in saved {
            let restore = restore.cmd("RESTORE").arg(name).arg((*expires).max(0));
            restore.arg(content).arg("ABSTTL");
        }
        restore.exec(&mut self.connection).unwrap();
    }

    pub(super) fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut ask = redis::Cmd::new();
        ask.arg(command).query(&mut self.connection).unwrap()
    }

    pub(super) fn counts(&mut self, minute: Minute) -> Counts {
        let key = format!("{TAG}:{minute}:counts");
        let there: BTreeMap<String, String> = self.ask(&["HGETALL", &key]);
        let sealed = there.into_iter().filter_map(|(series, counts)| {
            let (unique, cumulative) = counts.split_once(':')?;
            Some((series, (unique.parse().unwrap(), cumulative.parse().unwrap())))
        });
        sealed.collect()
    }

    /// Returns the late events of all nodes.
    pub(super) fn late(&mut self) -> u64 {
        let stamps: Vec<String> = self.ask(&["HVALS", &format!("{TAG}:stamps")]);
        let late = stamps.iter().filter_map(|it| it.rsplit('|').next());
        late.map(|late| late.parse::<u64>().unwrap()).sum()
    }

    pub(super) fn is_closed(&mut self, minute: Minute) -> bool {
        let minute = minute.epoch_minutes();
        let listed = ["ZSCORE", &format!("{TAG}:closed"), &minute.to_string()];
        let listed: Option<String> = self.ask(&listed);
        let since = ["HGET", &format!("{TAG}:witness"), "since"];
        let since: Option<i64> = self.ask(&since);
        listed.is_some() || since.is_some_and(|since| minute < since)
    }
}
