//! Counts that the database refuses, however many, do not delay others.

use crate::prelude::*;

const VALUES_MAX: usize = 8;
const GRACE: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(10);
/// The time within which every accepted count must be written.
const IN_TIME: Duration = GRACE.saturating_add(LEASE).saturating_add(Duration::from_secs(5));
/// The number of refused counts. `REFUSED_COUNTS` overrides it.
const REFUSED: usize = 6_000;
const LINES_PER_DATAGRAM: usize = 15;

fn site() -> Site {
    let server = InfluxServer::start_with_tag_limit(VALUES_MAX);
    let site = Site::with(RedisServer::start(&[]), server);
    for value in 0..VALUES_MAX {
        for measurement in ["unique_user_event", "cumulative_user_event"] {
            let line = format!("{measurement},poison=known{value} value=1 {SEED_MINUTE_NS}");
            site.write(&line);
        }
    }
    site
}

fn node(site: &Site, name: &str) -> Node {
    let lease = format!("{}s", LEASE.as_secs());
    let keys = [("flush.grace", "2s"), ("flush.lease", &*lease), ("log.level", "info")];
    site.start_node(name, &keys)
}

fn points(site: &Site) -> Points {
    let mut points = site.points();
    points.retain(|point, _| !point.series.contains("poison="));
    points
}

fn quarantined(nodes: &[Node]) -> u64 {
    nodes[0].metrics().count("eds_counts_quarantined")
}

#[test]
fn accepted_minutes_are_written_in_time_while_many_counts_are_refused() {
    let refused = std::env::var("REFUSED_COUNTS");
    let refused = refused.map_or(REFUSED, |count| count.parse().expect("a whole number"));
    let site = site();
    let nodes = ["one", "two"].map(|name| node(&site, name));
    let mut sender = Sender::to_all(&nodes);
    let poison: Vec<usize> = (0..refused).collect();
    let began = Instant::now();
    for lines in poison.chunks(LINES_PER_DATAGRAM) {
        let line = |number: &usize| format!("poison=p{number} value=u {SEED_MINUTE_NS}");
        let lines: Vec<_> = lines.iter().map(line).collect();
        sender.send_unrecorded(lines.join("\n").as_bytes());
    }
    let mut slowest = Duration::ZERO;
    let mut minute = 0;
    let discarded = |node: &Node| node.metrics().count("eds_points_discarded_total") / 2;
    let done = || quarantined(&nodes) + nodes.iter().map(discarded).sum::<u64>();
    while minute < 3 || done() < refused as u64 {
        minute += 1;
        for kind in 0..5 {
            let at = SEED_MINUTE_NS + minute * MINUTE_NS;
            sender.send(format!("kind=k{kind},product=shop value=user {at}"));
        }
        let sent = Instant::now();
        let expected = sender.expected.points();
        eventually("the accepted minute is written", IN_TIME, || {
            testing::points::compare(&expected, &points(&site))
        });
        slowest = slowest.max(sent.elapsed());
        assert!(began.elapsed() < Duration::from_secs(1200), "{}", done());
    }
    assert_eq!(done(), refused as u64);
    let requests = site.writes.writes().len();
    eprintln!(
        "{refused} refused counts: {requests} requests, {:?}; {minute} honest minutes, the slowest after {slowest:?}",
        began.elapsed()
    );
    assert!(requests <= 2 * refused + 100 * usize::try_from(minute).unwrap(), "{requests}");
    eventually("no counts are left to send", IN_TIME, || {
        let claimed = nodes[0].metrics().count("eds_backlog_unsent");
        when(claimed == 0, claimed)
    });
    let errors = |node: &Node| node.log().matches("ERROR").count() as u64;
    let errors: u64 = nodes.iter().map(errors).sum();
    assert!(errors <= 2 * began.elapsed().as_secs(), "{errors} lines at ERROR");
    site.assert_one_value_a_point();
}
