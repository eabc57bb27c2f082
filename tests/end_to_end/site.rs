//! What nodes share: Redis, and InfluxDB behind a proxy that sees every write.

use testing::http::{answer, get, post};
use testing::prelude::*;

use crate::support::node::Node;

pub(crate) const DATABASE: &str = "eds";

pub(crate) struct Site {
    pub(crate) redis: RedisServer,
    pub(crate) influxdb: SocketAddr,
    _influxdb: InfluxServer,
    pub(crate) writes: HttpProxy,
    /// The shared clock of Redis and the nodes, if not the system clock.
    clock: Option<Clock>,
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::with_redis(RedisServer::start(&[]))
    }

    /// Starts a site whose nodes and Redis share a clock that shows this second of a minute now, so that the time to the end of the
    /// current minute does not depend on when the test starts.
    pub(crate) fn start_at_second(second: i64) -> Self {
        let clock = Clock::at_second(second);
        let mut site = Self::with_redis(RedisServer::start_with_clock(&clock, &[]));
        site.clock = Some(clock);
        site
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("started with a clock")
    }

    pub(crate) fn with_redis(redis: RedisServer) -> Self {
        Self::with(redis, InfluxServer::start())
    }

    pub(crate) fn with(redis: RedisServer, server: InfluxServer) -> Self {
        let influxdb = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let writes = HttpProxy::start(Some(influxdb));
        let site = Self { redis, influxdb, _influxdb: server, writes, clock: None };
        site.command(&format!("CREATE DATABASE {DATABASE}"));
        site
    }

    /// A site without Redis.
    pub(crate) fn only(server: InfluxServer) -> Self {
        Self::with(RedisServer::down(&[]), server)
    }

    #[track_caller]
    pub(crate) fn command(&self, influxql: &str) -> String {
        let query = [("db", DATABASE), ("q", influxql)];
        let done = answer(post(self.influxdb, "/query").query(&query)).unwrap();
        let failed = done.body.contains("\"error\"");
        assert!(done.status == 200 && !failed, "{influxql}: {}", done.body);
        done.body
    }

    /// Writes lines to InfluxDB as another client does.
    #[track_caller]
    pub(crate) fn write(&self, lines: &str) {
        let path = format!("/write?db={DATABASE}&precision=ns");
        let write = post(self.influxdb, &path).body(lines.to_owned());
        let done = answer(write).unwrap();
        assert_eq!(done.status, 204, "{}", done.body);
    }

    /// What InfluxDB answers to a question in `InfluxQL`: the list of series in its answer.
    #[track_caller]
    pub(crate) fn query(&self, influxql: &str) -> Vec<Value> {
        let query = [("db", DATABASE), ("q", influxql)];
        let answer = answer(get(self.influxdb, "/query").query(&query)).unwrap();
        let mut answer: Value = serde_json::from_str(&answer.body).unwrap();
        match answer["results"][0]["series"].take() {
            Value::Array(series) => series,
            _ => Vec::new(),
        }
    }

    /// A node of this site that is not started yet, with these keys over the defaults.
    pub(crate) fn node(&self, name: &str, keys: &[(&str, &str)]) -> Node {
        let mut node = Node::new(
            name,
            &[
                ("store.url", &self.redis.url()),
                ("output.url", &self.writes.url()),
                ("output.api", "v1"),
                ("output.database", DATABASE),
                ("output.timeout", "2s"),
            ],
        );
        if let Some(clock) = &self.clock {
            node.share_clock(clock);
        }
        for (key, value) in keys {
            node.set(key, value);
        }
        node
    }

    #[track_caller]
    pub(crate) fn start_node(&self, name: &str, keys: &[(&str, &str)]) -> Node {
        let mut node = self.node(name, keys);
        node.run();
        node
    }

    #[track_caller]
    pub(crate) fn wait_exact(&self, expected: &Points, within: Duration) {
        let began = Instant::now();
        eventually("InfluxDB holds the exact counts", within, || compare(expected, &self.points()));
        eprintln!("exact after {:?}", began.elapsed());
    }

    pub(crate) fn points(&self) -> Points {
        read_back::influxdb(self.influxdb, DATABASE)
    }

    /// No point was ever written with two values, confirmed or not.
    #[track_caller]
    pub(crate) fn assert_one_value_a_point(&self) {
        let mut seen = BTreeMap::new();
        for write in self.writes.writes() {
            for (point, value) in read_back::written(&write.body) {
                let before = *seen.entry(point.clone()).or_insert(value);
                assert_eq!(before, value, "two values for {point:?}");
            }
        }
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        self.wait_redis_clean();
        self.assert_one_value_a_point();
    }

    pub(crate) fn sets(&self) -> usize {
        let keys = self.redis.keys();
        keys.iter().filter(|key| key.contains("_user:")).count()
    }

    /// Waits until Redis holds only the data of minutes that are done: the counts, until they expire; and the cluster-wide
    /// settings.
    #[track_caller]
    pub(crate) fn wait_redis_clean(&self) {
        Self::wait_clean(&self.redis);
    }

    /// The same of this Redis.
    #[track_caller]
    pub(crate) fn wait_clean(redis: &RedisServer) {
        Self::wait_clean_within(redis, SOON);
    }

    #[track_caller]
    pub(crate) fn wait_clean_within(redis: &RedisServer, within: Duration) {
        eventually("only counts stay in Redis, for a time", within, || {
            let stays = |key: &String| {
                key == "eds:settings"
                    || key.ends_with(":witness")
                    || key.ends_with(":closed")
                    || key.ends_with(":stamps")
                    || key.ends_with(":outputs")
                    || key.ends_with(":division")
                    // Copies that come after a minute closed are in the record as late.
                    || key == "{eds:losses}"
                    || key.starts_with("{eds:nodes}")
                    // The fencing token of who probed outlives the turn by a while.
                    || (key.ends_with(":counts")
                        || key.ends_with(":coverage")
                        || key.starts_with("{eds:mutex:probe-"))
                        && redis.query::<i64>(&["PTTL", key]) > 0
            };
            let others: Vec<_> = redis.keys().into_iter().filter(|key| !stays(key)).collect();
            if others.is_empty() { Ok(()) } else { Err(format!("{others:?}")) }
        });
    }
}
