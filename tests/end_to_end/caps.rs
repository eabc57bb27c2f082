//! Events beyond a cap are counted apart or rejected by their reason, and every total stays exact.

use std::num::NonZeroU16;

use event_data_service::event::{Minute, Partitions};

use crate::failover;
use crate::prelude::*;

const PARTITIONS: u16 = 2;
const UNIQUE: &str = "unique_user_event";
const CUMULATIVE: &str = "cumulative_user_event";

/// The events sent: minute and series → users and timestamps.
#[derive(Default)]
struct Sent(BTreeMap<(i64, String), BTreeSet<(String, i64)>>);

impl Sent {
    fn note(&mut self, datagram: &[u8]) {
        for line in std::str::from_utf8(datagram).unwrap().lines() {
            let [series, user, timestamp] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("not a line of the tests: {line:?}");
            };
            let timestamp: i64 = timestamp.parse().unwrap();
            let minute = timestamp.div_euclid(MINUTE_NS) * MINUTE_NS;
            let events = self.0.entry((minute, series.to_owned())).or_default();
            events.insert((user.to_owned(), timestamp));
        }
    }

    /// Compares with the points in InfluxDB. Which series were admitted is known only there: the cap's number of series in each
    /// minute and partition, with the exact numbers of each; all others are in the overflow series.
    fn check(&self, found: &Points, series_max: usize) -> Result<(), String> {
        let partitions = Partitions::new(NonZeroU16::new(PARTITIONS).unwrap());
        let mut expected = Points::new();
        let mut admitted: BTreeMap<(i64, usize), usize> = BTreeMap::new();
        let mut overflow: BTreeMap<(i64, usize), (BTreeSet<&str>, usize)> = BTreeMap::new();
        for ((minute, series), events) in &self.0 {
            let place = (*minute, partitions.of(series, Minute::MIN).index());
            let users: BTreeSet<&str> = events.iter().map(|(user, _)| user.as_str()).collect();
            if found.contains_key(&point(*minute, series, UNIQUE)) {
                *admitted.entry(place).or_default() += 1;
                insert(&mut expected, *minute, series, users.len(), events.len());
            } else {
                let (all, events_of_all) = overflow.entry(place).or_default();
                all.extend(users);
                *events_of_all += events.len();
            }
        }
        for ((minute, partition), (users, events)) in &overflow {
            let series = format!("eds_overflow=series,partition={partition}");
            insert(&mut expected, *minute, &series, users.len(), *events);
            let admitted = admitted.get(&(*minute, *partition)).copied();
            if admitted != Some(series_max) {
                return Err(format!("{admitted:?} series of their own beside {series}"));
            }
        }
        testing::points::compare(&expected, found)?;
        let sum = |points: &Points| -> u64 {
            let cumulative = points.iter().filter(|(of, _)| of.measurement == CUMULATIVE);
            cumulative.map(|(_, count)| count).sum()
        };
        let all: usize = self.0.values().map(BTreeSet::len).sum();
        when(sum(found) == all as u64, format!("{} of {all}", sum(found)))
    }
}

fn point(minute_start_ns: i64, series: &str, measurement: &str) -> Point {
    Point { minute_start_ns, series: series.to_owned(), measurement: measurement.to_owned() }
}

fn insert(points: &mut Points, minute: i64, series: &str, unique: usize, cumulative: usize) {
    points.insert(point(minute, series, UNIQUE), unique as u64);
    points.insert(point(minute, series, CUMULATIVE), cumulative as u64);
}

/// The next master may lack the admissions of the last one, and admit others: then for all nodes, and for the events of the
/// last seconds, too.
#[test]
fn every_total_is_true_when_the_master_is_killed() {
    let mut redis = RedisSentinel::start();
    let site = failover::site();
    let partitions = PARTITIONS.to_string();
    let keys = [("store.partitions", partitions.as_str()), ("input.max_series_per_minute", "5")];
    let nodes = failover::two_nodes(&site, &redis.url(NAME), &keys);
    let mut sender = Sender::to_all(&nodes);
    let load = failover::load(failover::failover_events());
    let datagrams: Vec<_> = load.datagrams().collect();
    let mut sent = Sent::default();
    for datagram in &datagrams {
        sent.note(datagram);
    }
    let (before, after) = datagrams.split_at(datagrams.len() / 4);
    failover::send(&mut sender, before);
    redis.kill_master();
    thread::scope(|scope| {
        scope.spawn(|| redis.wait_promoted());
        failover::send(&mut sender, after);
    });
    sender.wait_received();
    eventually("InfluxDB holds the exact counts", failover::BACK, || sent.check(&site.points(), 5));
    assert!(count(&nodes, "eds_events_replayed_total") > 0);
    failover::assert_all_recorded(&nodes);
    site.assert_one_value_a_point();
}

/// A node forgets the users of a series with the connection, and Redis does not count users in logs at once.
#[test]
fn one_node_holds_the_cap_of_users_in_logs_however_often_it_connects_again() {
    const USERS_MAX: usize = 1000;
    let site = Site::start();
    let keys = [
        ("store.layout", "log"),
        ("store.partitions", "1"),
        ("store.replay_window", "0s"),
        ("input.max_users_per_series", "1000"),
        ("flush.grace", "2s"),
    ];
    // While another node lags no minute is idle.
    let lagging = "{eds:0}:lagging";
    let until = i64::MAX >> 22;
    site.redis.query::<()>(&["HSET", lagging, "other#1", &until.to_string()]);
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    let mut send = |users: std::ops::Range<usize>| {
        for user in users {
            sender.send_unrecorded(format!("s=1 value=u{user} {}", SEED_MINUTE_NS + 1));
        }
        sender.wait_received();
        node.wait_recorded();
    };
    send(0..1200);
    for round in 0..3 {
        let lost = || node.log().matches("lost the connection to Redis").count();
        let before = lost();
        site.redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("the node notices that", SOON, || when(lost() > before, node.log()));
        let first = 1200 + 100 * round;
        send(first..first + 100);
    }
    let reason = [("reason", "too_many_users")];
    let rejected = node.metrics().count_of("eds_events_rejected_total", &reason);
    assert_eq!(rejected, 500);
    site.redis.query::<()>(&["DEL", lagging]);
    let mut expected = Points::new();
    insert(&mut expected, SEED_MINUTE_NS, "s=1", USERS_MAX, USERS_MAX);
    site.wait_exact(&expected, Duration::from_secs(30));
    site.wait_redis_clean();
}
