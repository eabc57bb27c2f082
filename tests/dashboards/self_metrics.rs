//! Tests that a node writes its own metrics to an output (`output.self_metrics`).

use testing::prelude::*;

use crate::names::Written;
use crate::support::node::Node;
use crate::world::{DATABASE, World};

#[test]
fn every_metric_of_a_node_is_a_field_of_its_points() {
    let world = World::start();
    let fields = world.column("SHOW FIELD KEYS FROM \"eds\"", 0);
    let left_out = |name: &&String| {
        name.starts_with("eds_relay_") || name.ends_with("_bucket") || *name == "eds_build_info"
    };
    let metrics = Written::by(&world).metrics;
    let metrics = metrics.iter().filter(|name| !left_out(name));
    let named: BTreeSet<_> =
        metrics.map(|name| name.strip_prefix("eds_").unwrap_or(name).to_owned()).collect();
    assert_eq!(fields, named);
    // Each point is tagged with its node, and the measurements of counts contain only counts.
    let nodes = world.column("SHOW TAG VALUES FROM \"eds\" WITH KEY = \"node\"", 1);
    assert_eq!(nodes, BTreeSet::from(["eds-1".to_owned()]));
    let measurements = world.column("SHOW MEASUREMENTS", 0);
    let counts = ["", "_1h", "_1d"]
        .map(|suffix| ["unique", "cumulative"].map(|kind| format!("{kind}_user_event{suffix}")));
    let own = ["eds", "eds_probe"].map(str::to_owned);
    assert_eq!(measurements, counts.into_iter().flatten().chain(own).collect());
    let recorded = world.query("SELECT last(\"events_recorded_total\") FROM \"eds\"");
    assert_eq!(recorded[0]["values"][0][1], 18);
}

#[test]
fn unwritable_self_metrics_are_dropped_and_counted() {
    let influxdb = InfluxServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(influxdb.query("", &format!("CREATE DATABASE {DATABASE}")));
    let mut proxy =
        HttpProxy::start(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, influxdb.port()))));
    let count = |measurement: &str, field: &str| {
        let query = format!("SELECT count(\"{field}\") FROM \"{measurement}\"");
        let answer = runtime.block_on(influxdb.query(DATABASE, &query));
        answer.first().and_then(|series| series["values"][0][1].as_u64()).unwrap_or(0)
    };
    proxy.set(Mode::Hang);
    let node = Node::start(
        "eds-1",
        &[
            ("output.url", &proxy.url()),
            ("output.api", "v1"),
            ("output.database", DATABASE),
            ("output.timeout", "1s"),
            ("output.self_metrics", "1s"),
        ],
    );
    node.wait_count("eds_self_metrics_dropped_total", |dropped| dropped > 0);
    assert!(node.log().contains("Counts are not affected"), "{}", node.log());
    node.send(b"event_type=login value=ann 1480876707352348928");
    node.wait_count("eds_output_up", |up| up == 0);
    proxy.set(Mode::Pass);
    for (measurement, field) in [("unique_user_event", "value"), ("eds", "events_received_total")] {
        wait_for(measurement, || count(measurement, field), |&found| found > 0);
    }
    node.metrics().assert_ledger_adds_up();
}
