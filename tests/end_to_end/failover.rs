//! A load that continues while Redis fails over, for the Cluster and Sentinel tests.

use crate::prelude::*;

/// Longer than a promotion plus the pauses of the sender, so that no minute closes before all its events are sent.
pub(crate) const GRACE: &str = "8s";
/// Allows for timeouts, a promotion, pauses between attempts, and the grace.
pub(crate) const BACK: Duration = Duration::from_secs(120);

/// Slow enough for the load to last through a promotion.
const EVENTS_PER_SECOND: u32 = 20_000;

/// How many events a failover test sends. `FAILOVER_EVENTS` overrides the default.
pub(crate) fn failover_events() -> u64 {
    let events = std::env::var("FAILOVER_EVENTS");
    events.map_or(200_000, |events| events.parse().expect("a whole number"))
}

pub(crate) fn load(events: u64) -> Plan {
    testing::load::load(0..3, events, 100, 2000)
}

/// A site without a Redis server, since the nodes are configured for another one.
pub(crate) fn site() -> Site {
    Site::only(InfluxServer::start())
}

pub(crate) fn two_nodes(site: &Site, store_url: &str, keys: &[(&str, &str)]) -> [Node; 2] {
    let common = [
        ("store.url", store_url),
        ("store.response_timeout", "2s"),
        ("flush.grace", GRACE),
        ("flush.max_hold", "10m"),
    ];
    let keys = [&common[..], keys].concat();
    ["one", "two"].map(|name| site.start_node(name, &keys))
}

pub(crate) fn send<'a>(sender: &mut Sender, datagrams: impl IntoIterator<Item = &'a Vec<u8>>) {
    let began = Instant::now();
    let mut events = 0;
    for datagram in datagrams {
        sender.send(datagram);
        events += u32::try_from(lines(datagram)).expect("a datagram has few lines");
        let due = Duration::from_secs(1) * events / EVENTS_PER_SECOND;
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
}

fn lines(datagram: &[u8]) -> usize {
    datagram.split(|byte| *byte == b'\n').count()
}

#[track_caller]
pub(crate) fn assert_all_recorded(nodes: &[Node]) {
    for node in nodes {
        eventually("all received events are recorded", SOON, || {
            let metrics = node.metrics();
            metrics.assert_ledger_adds_up();
            let [received, recorded] = ["eds_events_received_total", "eds_events_recorded_total"]
                .map(|name| metrics.count(name));
            when(received == recorded, format!("{recorded} of {received}"))
        });
    }
}

/// Two nodes, which have received a quarter of a load, and the rest of that load.
pub(crate) struct UnderLoad {
    site: Site,
    pub(crate) nodes: [Node; 2],
    sender: Sender,
    rest: Vec<Vec<u8>>,
}

impl UnderLoad {
    pub(crate) fn start(store_url: &str, events: u64) -> Self {
        Self::start_with(store_url, events, &[])
    }

    pub(crate) fn start_with(store_url: &str, events: u64, keys: &[(&str, &str)]) -> Self {
        let site = site();
        let nodes = two_nodes(&site, store_url, keys);
        let mut sender = Sender::to_all(&nodes);
        let mut datagrams: Vec<_> = load(events).datagrams().collect();
        let rest = datagrams.split_off(datagrams.len() / 4);
        send(&mut sender, &datagrams);
        Self { site, nodes, sender, rest }
    }

    /// Sends the rest of the load during `fault` and waits until all counts are exact.
    #[track_caller]
    pub(crate) fn assert_exact_in_spite_of(&mut self, fault: impl FnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(fault);
            send(&mut self.sender, &self.rest);
        });
        assert_exact(&self.site, &self.nodes, &self.sender);
    }
}

#[track_caller]
pub(crate) fn assert_exact(site: &Site, nodes: &[Node; 2], sender: &Sender) {
    sender.wait_received();
    site.wait_exact(&sender.expected.points(), BACK);
    assert_all_recorded(nodes);
    site.assert_one_value_a_point();
}

#[track_caller]
pub(crate) fn assert_a_killed_master_costs_nothing(redis: &mut dyn Replicated) -> u64 {
    let mut load = UnderLoad::start(&redis.url(), failover_events());
    redis.kill_master();
    load.assert_exact_in_spite_of(|| {
        redis.wait_promoted();
    });
    count(&load.nodes, "eds_events_replayed_total")
}

pub(crate) trait Replicated: Send + Sync {
    fn url(&self) -> String;
    fn cut_link(&mut self);
    fn kill_master(&mut self);
    fn wait_promoted(&self);
}

/// For two seconds, a master acknowledges events that its replica does not get. Then the master dies.
#[track_caller]
pub(crate) fn assert_recorded_again_behind_a_cut_link(redis: &mut dyn Replicated) {
    let site = site();
    let nodes = two_nodes(&site, &redis.url(), &[("store.replay_window", "10s")]);
    let mut sender = Sender::to_all(&nodes);
    let datagrams: Vec<_> = load(120_000).datagrams().collect();
    let (before, rest) = datagrams.split_at(datagrams.len() / 6);
    let (cut, after) = rest.split_at(rest.len() * 2 / 5);
    send(&mut sender, before);
    redis.cut_link();
    send(&mut sender, cut);
    wait_count(&nodes, "eds_events_queued", |queued| queued == 0);
    redis.kill_master();
    send(&mut sender, after);
    redis.wait_promoted();
    assert_exact(&site, &nodes, &sender);
    assert!(count(&nodes, "eds_events_replayed_total") > 0);
}
