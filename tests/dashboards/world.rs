//! A relay, a node with events from today and yesterday, and an InfluxDB that contains all points of the node.

use testing::prelude::*;

use crate::support::node::Node;

pub(crate) const DATABASE: &str = "events";
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

pub(crate) struct World {
    runtime: tokio::runtime::Runtime,
    influxdb: InfluxServer,
    pub(crate) node: Node,
    pub(crate) relay: Node,
    /// The default range of a dashboard.
    pub(crate) range_ms: [u64; 2],
}

impl World {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let influxdb = InfluxServer::start();
        runtime.block_on(influxdb.query("", &format!("CREATE DATABASE {DATABASE}")));
        let mut node = Node::new(
            "eds-1",
            &[
                ("output.url", &influxdb.url()),
                ("output.api", "v1"),
                ("output.database", DATABASE),
                ("output.self_metrics", "1s"),
                ("flush.grace", "1s"),
            ],
        );
        node.set_sections(
            "rollup",
            &[&[("name", "hourly"), ("every", "1h")], &[("name", "daily"), ("every", "1day")]],
        );
        node.run();
        let mut relay = Node::relay("relay", &[&node.udp().to_string()], &[]);
        relay.run();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now_ms = u64::try_from(now.as_millis()).unwrap();
        let world = Self {
            runtime,
            influxdb,
            node,
            relay,
            range_ms: [now_ms - 60 * MINUTE_MS, now_ms + MINUTE_MS],
        };
        // Wait for a point with the initial values, so that queries for increases return data.
        world.wait_for("SELECT count(\"events_received_total\") FROM \"eds\"", 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut points, minute) = (0, now_ms / MINUTE_MS * MINUTE_MS);
        for (event, product) in [("login", "shop"), ("login", "blog"), ("http-5xx", "shop")] {
            for ago_ms in [3 * MINUTE_MS, 2 * MINUTE_MS, DAY_MS + 2 * MINUTE_MS] {
                for user in ["ann", "bob"] {
                    let line = format!(
                        "event_type={event},product={product} value={user} {}000000",
                        minute - ago_ms
                    );
                    socket.send_to(line.as_bytes(), world.relay.udp()).unwrap();
                }
                points += 1;
            }
        }
        world.wait_for("SELECT count(\"value\") FROM \"unique_user_event\"", points);
        // The windows of yesterday have ended.
        for suffix in ["_1h", "_1d"] {
            let count = format!("SELECT count(\"value\") FROM \"unique_user_event{suffix}\"");
            world.wait_for(&count, 3);
        }
        // Then wait for two more points.
        let since =
            "SELECT count(\"points_sent_total\") FROM \"eds\" WHERE \"points_sent_total\" > 0";
        world.wait_for(since, 2);
        world
    }

    pub(crate) fn query(&self, influxql: &str) -> Vec<Value> {
        self.runtime.block_on(self.influxdb.query(DATABASE, influxql))
    }

    pub(crate) fn column(&self, influxql: &str, place: usize) -> BTreeSet<String> {
        let answer = self.query(influxql);
        let rows = answer.iter().filter_map(|series| series["values"].as_array());
        let text = |row: &Value| row[place].as_str().unwrap().to_owned();
        rows.flatten().map(text).collect()
    }

    fn wait_for(&self, count: &str, least: u64) {
        eventually(count, SOON, || {
            let answer = self.query(count);
            let found = answer.first().and_then(|series| series["values"][0][1].as_u64());
            when(found >= Some(least), format!("{found:?}"))
        });
    }
}
