//! The servers that nodes share: Redis, and InfluxDB behind a proxy that sees every write.

use testing::http::{answer, get, post};
use testing::prelude::*;

use crate::support::node::Node;

pub(crate) const DATABASE: &str = "eds";

pub(crate) struct Site {
    pub(crate) redis: RedisServer,
    pub(crate) influxdb: SocketAddr,
    _influxdb: InfluxServer,
    pub(crate) writes: HttpProxy,
    /// The clock that Redis and the nodes share, if it is not the system clock.
    clock: Option<Clock>,
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::with_redis(RedisServer::start(&[]))
    }

    /// Starts a site with a shared clock that shows this second of a minute, however late in a minute the test starts.
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

    /// Creates a site without Redis.
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

    /// Writes lines to InfluxDB as another client would.
    #[track_caller]
    pub(crate) fn write(&self, lines: &str) {
        let path = format!("/write?db={DATABASE}&precision=ns");
        let write = post(self.influxdb, &path).body(lines.to_owned());
        let done = answer(write).unwrap();
        assert_eq!(done.status, 204, "{}", done.body);
    }

    /// Runs an `InfluxQL` query and returns the series in its result.
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

    /// Returns a node of this site that is not started yet, with these keys overriding the defaults.
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

    /// Returns the points of windows whose measurements have this suffix.
    #[allow(dead_code, reason = "not every test uses rollups")]
    pub(crate) fn windows(&self, suffix: &str) -> Points {
        read_back::influxdb_with(self.influxdb, DATABASE, suffix)
    }

    /// Asserts that no point was ever written with two different values, whether confirmed or not.
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

    /// Waits until Redis holds only the settings and what remains of finished minutes, such as counts that expire.
    #[track_caller]
    pub(crate) fn wait_redis_clean(&self) {
        Self::wait_clean(&self.redis);
    }

    #[track_caller]
    pub(crate) fn wait_clean(redis: &RedisServer) {
        Self::wait_clean_within(redis, SOON);
    }

    #[track_caller]
    pub(crate) fn wait_clean_within(redis: &RedisServer, within: Duration) {
        eventually("Redis is clean", within, || {
            let stays = |key: &String| {
                key == "eds:settings"
                    || key.ends_with(":witness")
                    || key.ends_with(":closed")
                    || key.ends_with(":stamps")
                    || key.ends_with(":outputs")
                    || key.ends_with(":division")
                    // Copies that arrive after their minute has closed are recorded as late.
                    || key == "{eds:losses}"
                    || key.starts_with("{eds:nodes}")
                    // The fencing token of a prober expires a while after its turn.
                    || (key.ends_with(":counts")
                        || key.ends_with(":coverage")
                        || key.contains(":had:")
                        || key.contains(":active:")
                        // A list that its node could not add to a window.
                        || (key.contains("{eds:rollup:") && key.contains(":log:"))
                        || key.starts_with("{eds:mutex:probe-"))
                        && redis.query::<i64>(&["PTTL", key]) > 0
            };
            let others: Vec<_> = redis.keys().into_iter().filter(|key| !stays(key)).collect();
            if others.is_empty() { Ok(()) } else { Err(format!("{others:?}")) }
        });
    }
}
