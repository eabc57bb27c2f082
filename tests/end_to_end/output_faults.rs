//! Faulty databases: every point is written with exactly one value, and retries are rare.

use crate::prelude::*;
use crate::quarantine::answer;

const BACK: Duration = Duration::from_secs(60);

const KEYS: [(&str, &str); 3] =
    [("flush.grace", "1s"), ("output.timeout", "1s"), ("store.partitions", "8")];

fn load(minute: i64, events: u64) -> Plan {
    testing::load::load(minute..minute + 1, events, 100, 500)
}

fn taken(writes: &[Received]) -> BTreeMap<Point, usize> {
    let mut taken = BTreeMap::new();
    for write in writes.iter().filter(|write| write.taken) {
        for (point, _) in read_back::written(&write.body) {
            *taken.entry(point).or_default() += 1;
        }
    }
    taken
}

#[test]
fn points_with_a_lost_answer_are_written_again_with_the_same_value() {
    let mut site = Site::start();
    let nodes = [site.start_node("one", &KEYS), site.start_node("two", &KEYS)];
    let mut sender = Sender::to_all(&nodes);
    for (minute, mode) in (0..).zip([Mode::TakeAndCut, Mode::TakeAndHang, Mode::TakeAndAnswer(500)])
    {
        let before = site.writes.writes().len();
        site.writes.set(mode);
        sender.send_all(load(minute, 15_000).datagrams());
        eventually("the database receives the same points repeatedly", BACK, || {
            let taken = taken(&site.writes.writes()[before..]);
            let most = taken.values().max().copied().unwrap_or_default();
            when(most >= 3, format!("{mode:?}: {most} times"))
        });
        assert!(site.writes.writes()[before..].iter().all(|write| !write.confirmed));
        site.writes.set(Mode::Pass);
        site.wait_exact(&sender.expected.points(), BACK);
        eventually("all writes are confirmed", BACK, || {
            let claimed = nodes[0].metrics().count("eds_backlog_unsent");
            when(claimed == 0, claimed)
        });
    }
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_clean();
}

#[test]
fn refusals_and_lost_answers_lose_no_point() {
    let mut site = Site::start();
    let nodes = [site.start_node("one", &KEYS), site.start_node("two", &KEYS)];
    let mut sender = Sender::to_all(&nodes);
    site.writes.set(Mode::Storm(seed()));
    let mut minutes = 0;
    let (mut lost, mut refused) = (0, 0);
    while lost < 3 || refused < 6 {
        sender.send_all(load(minutes, 5_000).datagrams());
        // A minute may be closed after its round, so each round uses a new one.
        eventually("the minute is closed", SOON, || when(site.sets() == 0, site.sets()));
        minutes += 1;
        let writes = site.writes.writes();
        let is_lost = |write: &&Received| write.taken && !write.confirmed;
        lost = writes.iter().filter(is_lost).count();
        refused = writes.iter().filter(|write| !write.taken).count();
    }
    site.writes.set(Mode::Pass);
    site.wait_exact(&sender.expected.points(), BACK);
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_clean();
}

#[test]
fn retry_after_is_honoured() {
    const ASKED_SECS: u32 = 3;
    let asked = Duration::from_secs(ASKED_SECS.into());
    let mut site = Site::start();
    let nodes = [site.start_node("one", &KEYS), site.start_node("two", &KEYS)];
    let mut sender = Sender::to_all(&nodes);
    for (minute, status) in [(0, 429), (1, 503)] {
        let before = site.writes.attempts().len();
        site.writes.set(Mode::AnswerLater(status, ASKED_SECS));
        sender.send_all(load(minute, 10_000).datagrams());
        eventually("the writes are retried", BACK, || {
            let tried = site.writes.attempts().len() - before;
            when(tried >= 5, tried)
        });
        site.writes.set(Mode::Pass);
        // Of three consecutive writes, two are by the same node. Without the header, it would wait a second or two.
        let tried = &site.writes.attempts()[before..];
        for three in tried.windows(3).filter(|three| !three[2].confirmed) {
            let gap = three[2].at - three[0].at;
            assert!(gap >= asked, "{status}: two writes by one node within {gap:?}");
        }
        site.wait_exact(&sender.expected.points(), BACK);
    }
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_clean();
}

/// Another client has written strings in the same week, so the database refuses numbers for that week.
#[test]
fn minute_refused_by_a_type_conflict_is_quarantined_alone() {
    const WEEK_NS: i64 = 7 * 1440 * MINUTE_NS;
    let site = Site::start();
    let nodes = [site.start_node("one", &KEYS), site.start_node("two", &KEYS)];
    let mut sender = Sender::to_all(&nodes);
    let words = SEED_MINUTE_NS + WEEK_NS + MINUTE_NS;
    site.write(&format!("unique_user_event,event_type=words value=\"many\" {words}"));

    let week = WEEK_NS / MINUTE_NS;
    for minutes in [0..3, week..week + 1] {
        let load = testing::load::load(minutes, 1000, 5, 500);
        sender.send_all(load.datagrams());
    }
    nodes[1].wait_count("eds_counts_quarantined", |quarantined| quarantined == 5);
    let mut expected = sender.expected.points();
    expected.retain(|point, _| {
        point.minute_start_ns < SEED_MINUTE_NS + WEEK_NS || point.measurement != "unique_user_event"
    });
    eventually("all other points are written", SOON, || {
        let mut found = site.points();
        found.retain(|point, _| point.minute_start_ns != words);
        testing::points::compare(&expected, &found)
    });
    let table = answer(&nodes[0], &["list"]);
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.contains("field type conflict"), "{table}");

    // The field type is fixed until the week's shard is dropped.
    let shards: Value = serde_json::from_str(&site.command("SHOW SHARDS")).unwrap();
    let shards = shards["results"][0]["series"][0]["values"].as_array().unwrap().clone();
    let of_the_week = shards.iter().find(|shard| shard[4] == "2016-12-05T00:00:00Z");
    site.command(&format!("DROP SHARD {}", of_the_week.unwrap()[0]));
    answer(&nodes[1], &["retry", "--all"]);
    site.wait_exact(&sender.expected.points(), SOON);
    assert_eq!(answer(&nodes[0], &["list"]), "");
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_clean();
}
