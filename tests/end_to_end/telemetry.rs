//! Metrics and traces that processes send to an OpenTelemetry collector.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use testing::http;

use crate::prelude::*;

/// Returns the spans that the collector has received, each with the name of the node.
fn spans(collector: &HttpProxy) -> Vec<(String, Span)> {
    let requests = collector.attempts();
    let traces = requests
        .iter()
        .filter_map(|request| ExportTraceServiceRequest::decode(&*request.body).ok());
    let mut spans = Vec::new();
    for of_process in traces.flat_map(|request| request.resource_spans) {
        let resource = format!("{:?}", of_process.resource);
        let node = if resource.contains("\"one\"") { "one" } else { "two" };
        for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            // A request with metrics may also be decoded, but has no trace ID.
            if span.trace_id.len() == 16 {
                spans.push((node.to_owned(), span));
            }
        }
    }
    spans
}

/// Returns the names and instances of all metrics that the collector has received.
fn metrics(collector: &HttpProxy) -> BTreeSet<(String, String)> {
    let requests = collector.attempts();
    let decoded = requests
        .iter()
        .filter_map(|request| ExportMetricsServiceRequest::decode(&*request.body).ok());
    let mut names = BTreeSet::new();
    for of_process in decoded.flat_map(|request| request.resource_metrics) {
        let attributes = of_process.resource.unwrap_or_default().attributes;
        let instance = attributes.iter().find(|attribute| attribute.key == "service.instance.id");
        let instance = format!("{:?}", instance.and_then(|found| found.value.clone()));
        for metric in of_process.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            names.insert((instance.clone(), metric.name));
        }
    }
    names
}

#[test]
fn collector_gets_one_trace_per_minute_from_all_nodes() {
    let site = Site::start();
    let collector = HttpProxy::start(None);
    let url = collector.url();
    let keys =
        [("telemetry.otlp_url", &*url), ("telemetry.interval", "1s"), ("log.format", "json")];
    let requests = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut one = site.node("one", &keys);
    one.set("input.http.listen", &requests.to_string());
    one.run();
    let two = site.start_node("two", &keys);
    let mut relay = Node::relay("three", &[&one.udp().to_string()], &keys[..2]);
    relay.set("node", "three");
    relay.run();

    let mut sender = Sender::to_all([&one, &two]);
    sender.send_all(load(0..1, 500, 5, 20).datagrams());
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let line = format!("event_type=t1,product=p value=ann {SEED_MINUTE_NS}");
    let header = format!("00-{trace}-b7ad6b7169203331-01");
    let write = http::post(requests, "/write").header("traceparent", header).body(line);
    assert_eq!(http::answer(write).unwrap().status, 204);

    let minute_ids = |name: &str, node: &str| -> BTreeSet<Vec<u8>> {
        let spans = spans(&collector);
        let found = spans.iter().filter(|(of, span)| span.name == name && of.contains(node));
        found.map(|(_, span)| span.trace_id.clone()).collect()
    };
    // The recording of a minute is sent once nothing has been recorded for 15 s.
    eventually("the spans of all steps were sent", Duration::from_secs(60), || {
        let missing = [("record", "one"), ("record", "two"), ("seal", ""), ("write", "")];
        let missing = missing.iter().chain(&[("acknowledge", ""), ("request", "one")]);
        let missing: Vec<_> =
            missing.filter(|(name, node)| minute_ids(name, node).is_empty()).collect();
        when(missing.is_empty(), format!("{missing:?}"))
    });
    let id = minute_ids("record", "one");
    assert_eq!(id.len(), 1);
    for name in ["record", "seal", "write", "acknowledge"] {
        assert_eq!(minute_ids(name, ""), id, "{name}");
    }
    let request = minute_ids("request", "one").into_iter().next().unwrap();
    assert_eq!(
        u128::from_be_bytes(request.try_into().unwrap()),
        u128::from_str_radix(trace, 16).unwrap()
    );

    let names = metrics(&collector);
    for (instance, name) in [
        ("one", "eds_events_received_total"),
        ("two", "eds_record_seconds"),
        ("three", "eds_relay_lines_received_total"),
    ] {
        let is_there = names.iter().any(|(of, found)| of.contains(instance) && found == name);
        assert!(is_there, "{instance} {name}: {names:?}");
    }
}

#[test]
fn unavailable_collector_changes_no_count() {
    let site = Site::start();
    let url = format!("http://127.0.0.1:{}", free_port());
    let keys = [("telemetry.otlp_url", &*url), ("telemetry.interval", "1s")];
    let mut node = site.start_node("one", &keys);
    let mut sender = Sender::to_all([&node]);
    sender.send_all(load(0..1, 500, 5, 20).datagrams());
    site.wait_exact(&sender.expected.points(), SOON);
    node.wait_log("does not accept metrics or traces, which are dropped; counts are not affected");
    node.wait_log("spans_dropped=");
    node.wait_count("eds_spans_dropped_total", |dropped| dropped > 0);
    node.says(&["check", "--connect"], 0, "do: check telemetry.otlp_url");
    assert!(node.terminate().success());
}
