//! While the recording of a node hangs but its other work continues, the other nodes wait for its events.

use event_data_service::store::redis::scripts;

use crate::prelude::*;

struct Hanging {
    site: Site,
    nodes: [(Node, RedisProxy); 2],
    socket: UdpSocket,
    expected: Expected,
}

impl Hanging {
    fn start(names: [&str; 2]) -> Self {
        let site = Site::start();
        let nodes = names.map(|name| {
            let proxy = RedisProxy::start(site.redis.address());
            let keys = [
                ("store.url", &*proxy.url()),
                ("store.partitions", "1"),
                ("store.response_timeout", "10s"),
                ("store.replay_window", "20s"),
                ("flush.grace", "2s"),
                ("flush.max_hold", "10m"),
                ("flush.lease", "20s"),
            ];
            (site.start_node(name, &keys), proxy)
        });
        Self {
            site,
            nodes,
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            expected: Expected::default(),
        }
    }

    fn send(&mut self, user: &str, minute: i64, to: &[usize]) {
        let at = SEED_MINUTE_NS + minute * MINUTE_NS;
        let line = format!("event_type=login,product=shop value={user} {at}");
        self.expected.receive(line.as_bytes());
        for &to in to {
            let address = self.nodes[to].0.udp();
            self.socket.send_to(line.as_bytes(), address).unwrap();
        }
    }

    /// Sends one event to both nodes and two to the hanging one: the first of them hangs, and the second waits behind it.
    fn hang(&mut self, hangs: usize, minute: i64) {
        let recorded = |node: &Node| node.metrics().count("eds_events_recorded_total");
        let before = self.nodes.each_ref().map(|(node, _)| recorded(node));
        self.send("both", minute, &[0, 1]);
        for ((node, _), before) in self.nodes.iter().zip(before) {
            eventually("both nodes have recorded the event", SOON, || {
                when(recorded(node) > before, recorded(node))
            });
        }
        let recording = if has_logs() { scripts()["append.lua"] } else { "cumulative_user" };
        let (report, reports) = mpsc::channel();
        self.nodes[hangs].1.at(1, recording, When::Before, move || {
            report.send(()).unwrap();
            Then::SwallowAnswers
        });
        self.send("hangs", minute, &[hangs]);
        reports.recv_timeout(SOON).unwrap();
        self.send("waits", minute, &[hangs]);
        self.site.wait_exact(&self.expected.points(), 2 * SOON);
    }
}

#[test]
fn hanging_recording_keeps_minutes_open_before_it_fails() {
    let mut hanging = Hanging::start(["one", "two"]);
    hanging.hang(0, 0);
    hanging.site.assert_one_value_a_point();
}

#[test]
fn two_hanging_nodes_of_one_name_close_no_minute_early_and_are_reported() {
    let mut hanging = Hanging::start(["twin", "twin"]);
    for (turn, minute) in [(0, 0), (1, 1)] {
        hanging.hang(turn, minute);
    }
    for (node, _) in &hanging.nodes {
        eventually("the duplicate name is reported", SOON, || {
            let answer = node.get("/readyz").unwrap();
            let warned = node.log().contains("WARN another process uses the same name");
            let shown = answer.status == 200 && answer.body.contains("uses the same name");
            when(warned && shown, answer.body)
        });
        assert_eq!(node.metrics().count("eds_name_taken"), 1);
    }
    hanging.site.assert_one_value_a_point();
}
