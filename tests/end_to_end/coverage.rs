//! The share of events that each node has seen reveals a lossy path without any other tool.

use loadgen::{Options, Summary};

use crate::prelude::*;

const EVENTS: u64 = 30_000;

/// Returns the options for a load in the `minute`th minute after the seed's, with the share `lost` of the copies dropped.
fn options(path: &Path, seed: u64, minute: i64, lost: f64) -> Options {
    Options {
        to: vec![format!("unix:{}", path.display())],
        rate: 0,
        drop_rate: lost,
        quiet: true,
        seed: Some(seed),
        events: Some(EVENTS),
        repeat: 0.0,
        start: Some(SEED_MINUTE_NS + minute * MINUTE_NS),
        ..Options::default()
    }
}

fn send(options: &Options) -> Summary {
    let rules = loadgen::LineRules {
        end: |bytes| bytes.iter().position(|byte| *byte == b'\n'),
        lacks_timestamp: |_| false,
    };
    loadgen::run_from(options, std::io::empty(), rules).unwrap()
}

/// Returns the events of each minute, in total and per node, after checking the share of each node.
fn coverage(node: &Node) -> Vec<(u64, Vec<(String, u64)>)> {
    let path = "/api/v1/coverage?from=2016-12-04T18:38:00Z&to=2016-12-04T18:48:00Z";
    let answer = node.json(path);
    let minute = |minute: &Value| {
        let all = minute["events"].as_u64().unwrap();
        let share = |entry: &Value| {
            let events = entry["events"].as_u64().unwrap();
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let share = events as f64 / all as f64;
            let told = entry["share"].as_f64().unwrap();
            assert!((told - share).abs() < 1e-9, "share is {told}, expected {share}");
            (entry["node"].as_str().unwrap().to_owned(), events)
        };
        let nodes = minute["nodes"].as_array().unwrap();
        (all, nodes.iter().map(share).collect())
    };
    let minutes = answer["minutes"].as_array().unwrap();
    minutes.iter().map(minute).collect()
}

#[test]
fn coverage_shows_each_event_lost_on_a_path() {
    let site = Site::start();
    let directory = TempDir::new().unwrap();
    let paths = ["a", "b"].map(|name| directory.path().join(name));
    let open = [("flush.grace", "1h"), ("flush.max_hold", "1h")];
    let mut nodes = [("a", &paths[0]), ("b", &paths[1])].map(|(name, path)| {
        let mut node = site.node(name, &open);
        node.listen_on(&[format!("unix:{}", path.display())]);
        node.run();
        node
    });
    let seed = seed();
    let send_both = |minute: i64, lost: f64| {
        let loads = [(&paths[0], 0.0), (&paths[1], lost)];
        let loads = loads.map(|(path, lost)| options(path, seed, minute, lost));
        let sent = thread::scope(|scope| {
            let senders = loads.each_ref().map(|options| scope.spawn(|| send(options)));
            senders.map(|sender| sender.join().unwrap())
        });
        sent.map(|summary| summary.events - summary.events_unsent)
    };
    let wait_recorded = |nodes: &[Node; 2], events: [u64; 2]| {
        for (node, events) in nodes.iter().zip(events) {
            node.wait_count("eds_events_recorded_total", |recorded| recorded == events);
            assert_eq!(node.metrics().count("eds_events_seen_total"), events);
        }
    };

    let lossy = send_both(0, 0.03);
    assert_eq!(lossy[0], EVENTS);
    let share = 96 * EVENTS..98 * EVENTS;
    assert!(share.contains(&(100 * lossy[1])), "{lossy:?}");
    wait_recorded(&nodes, lossy);
    if !has_logs() {
        // The alert divides by this difference. With logs, copies are found only when the minute is sealed.
        let recorded = count(&nodes, "eds_events_recorded_total");
        let repeated = count(&nodes, "eds_events_repeated_total");
        assert_eq!(recorded - repeated, EVENTS);
    }

    // A restarted process counts from zero under the same name.
    nodes[1].kill();
    assert_eq!(send(&options(&paths[0], seed, 1, 0.0)).events, EVENTS);
    nodes[1].run();
    assert_eq!(send_both(2, 0.0), [EVENTS; 2]);
    wait_recorded(&nodes, [3 * EVENTS, EVENTS]);
    assert_eq!(coverage(&nodes[0]), [], "no minute has been closed yet");

    for node in &mut nodes {
        assert!(node.terminate().success());
        node.set("flush.grace", "300ms");
    }
    nodes[0].apply_settings();
    let by_node = |seen: [u64; 2]| vec![("a".to_owned(), seen[0]), ("b".to_owned(), seen[1])];
    let expected = [lossy, [EVENTS, 0], [EVENTS; 2]].map(|seen| (EVENTS, by_node(seen)));
    for node in &mut nodes {
        node.run();
        eventually("the closed minutes are reported", SOON, || {
            let told = coverage(node);
            when(told == expected, format!("{told:?}, expected {expected:?}"))
        });
    }
}
