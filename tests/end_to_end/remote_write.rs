//! Counts that are published by Prometheus remote write.

use crate::prelude::*;

#[test]
fn prometheus_has_exact_counts_after_lost_responses_and_a_kill() {
    let redis = RedisServer::start(&[]);
    let prometheus = Prometheus::receiver();
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, prometheus.port()));
    let mut writes = HttpProxy::start(Some(server));
    let url = format!("{}/api/v1/write", writes.url());
    let keys = [
        ("store.url", &*redis.url()),
        ("output.url", &url),
        ("output.api", "remote-write-v1"),
        ("output.timeout", "2s"),
        ("output.batch_lines", "40"),
    ];
    let mut nodes = ["one", "two"].map(|name| Node::start(name, &keys));
    let mut sender = Sender::to_all(&nodes);
    eventually("the output was tested", SOON, || {
        let attempts = writes.attempts();
        when(attempts.len() > 1 && attempts.iter().all(|probe| probe.confirmed), attempts.len())
            .map_err(|attempts| format!("{attempts} attempts"))
    });
    writes.set(Mode::TakeAndCut);
    sender.send_all(load(0..5, 5_000, 20, 50).datagrams());
    eventually("Prometheus took counts without a response", SOON, || {
        let attempts = writes.attempts();
        let lost = attempts.iter().filter(|write| write.taken && !write.confirmed);
        // A probe is smaller.
        let lost = lost.filter(|write| write.body.len() > 200).count();
        when(lost > 0, format!("{lost} of {}", attempts.len()))
    });
    nodes[0].kill();
    writes.set(Mode::Pass);
    let expected = sender.expected.points();
    eventually("Prometheus has the exact counts", SOON, || {
        compare(&expected, &read_back::prometheus(server))
    });
}
