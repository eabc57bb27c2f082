//! Tests each finding, from the survey that causes it to its texts.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::answer::{Answer, Expected, Status};
use super::report::{NodeDetails, NodeReport, OutputReport, ProcessReport};
use super::reporter::History;
use super::summary::summarize;
use crate::diagnosis::{Cause, Diagnosis, Severity};
use crate::event::{Every, Minute, Partition, Partitions, Rollup, RollupLimits, Tags};
use crate::store::{
    Backlog, Bucket, Loss, OutputBacklog, OutputName, Persistence, Reported, ServerFound,
    ServerSeen, StoreError, Surveyed,
};

const NOW: &str = "2026-11-22T14:00:30Z";

fn now() -> DateTime<Utc> {
    NOW.parse().unwrap()
}

/// Returns the minute `ago` minutes before the current one.
fn minute(ago: i64) -> Minute {
    Minute::from_epoch_minutes(now().timestamp() / 60 - ago).unwrap()
}

fn expected() -> Expected {
    Expected {
        grace: Duration::from_secs(5),
        max_hold: Duration::from_secs(60),
        linger: Duration::from_millis(100),
        retention: Duration::from_secs(7200),
        outputs: vec![("default".to_owned(), "InfluxDB at http://db/".to_owned())],
        partitions: 2,
        rollups: vec![rollup()],
    }
}

/// Returns a rollup with windows of an hour, and their partition.
fn rollup() -> (Partition, Rollup) {
    let rollup = Rollup {
        name: "hourly".to_owned(),
        every: Every::Minutes(60),
        tags: Tags::All,
        keep: Vec::new(),
        drop: Vec::new(),
        limits: RollupLimits { users_max: 1, groups_max: 9, bytes_max: 8 },
        suffix: "_1h".into(),
    };
    let partitions = Partitions::new(2.try_into().unwrap()).with_rollups(vec![rollup]);
    partitions.rollups().next().map(|(partition, rollup)| (partition, rollup.clone())).unwrap()
}

fn report() -> NodeReport {
    let process = ProcessReport {
        version: "0.1.0".to_owned(),
        started: "2026-11-22T13:00:30Z".to_owned(),
        uptime_seconds: 3600,
        recent_seconds: 300,
        ..ProcessReport::default()
    };
    let output = OutputReport {
        name: "default".to_owned(),
        url: "InfluxDB at http://db/".to_owned(),
        up: true,
        ..OutputReport::default()
    };
    let details = NodeDetails { outputs: vec![output], ..NodeDetails::default() };
    NodeReport::new(process, details, Duration::ZERO)
}

fn reported(name: &str, report: &NodeReport) -> Reported {
    Reported {
        name: name.to_owned(),
        identity: format!("{name}#1"),
        version: report.process.version.clone(),
        ago: Duration::from_secs(1),
        text: report.to_json(),
    }
}

fn server() -> ServerFound {
    ServerFound {
        version: "Redis 7.0.15".to_owned(),
        role: "master".to_owned(),
        used_memory: 1 << 20,
        maxmemory: 1 << 30,
        policy: "noeviction".to_owned(),
        persistence: Persistence { aof: true, unsaved_changes: 0, last_save_ok: true },
        ..ServerFound::default()
    }
}

/// The content of a survey; by default, with two healthy nodes.
struct Seen {
    nodes: Vec<Reported>,
    servers: Vec<Result<ServerFound, StoreError>>,
    backlog: Backlog,
    coverage: BTreeMap<Minute, BTreeMap<String, u64>>,
    losses: Vec<Loss>,
    windows: Vec<(Bucket, u64)>,
    difference: Option<Diagnosis>,
}

impl Default for Seen {
    fn default() -> Self {
        let nodes = ["a", "b"].map(|name| reported(name, &report()));
        Self {
            nodes: nodes.into(),
            servers: vec![Ok(server())],
            backlog: Backlog::default(),
            coverage: BTreeMap::new(),
            losses: Vec::new(),
            windows: Vec::new(),
            difference: None,
        }
    }
}

impl Seen {
    /// Returns the default survey after changing the report of the second node.
    fn with(change: impl FnOnce(&mut NodeReport)) -> Self {
        let mut changed = report();
        change(&mut changed);
        let mut seen = Self::default();
        seen.nodes[1] = reported("b", &changed);
        seen
    }

    /// Returns the default survey with this loss record.
    fn with_losses(losses: &[(&str, u64)]) -> Self {
        let losses = losses.iter().map(|(key, amount)| Loss::of_key(key, *amount).unwrap());
        Self { losses: losses.collect(), ..Self::default() }
    }

    fn with_server(change: impl FnOnce(&mut ServerFound)) -> Self {
        let mut seen = Self::default();
        let mut changed = server();
        change(&mut changed);
        seen.servers = vec![Ok(changed)];
        seen
    }

    fn with_output(trouble: (&str, Option<&str>)) -> Self {
        Self::with(|report| {
            report.details.outputs[0].up = false;
            report.details.outputs[0].last_error = Some(trouble.0.to_owned());
            report.details.outputs[0].remedy = trouble.1.map(str::to_owned);
        })
    }

    fn with_backlog(backlog: OutputBacklog) -> Self {
        let mut seen = Self::default();
        seen.backlog.outputs = [("default".parse().unwrap(), backlog)].into();
        seen
    }

    fn status(self) -> Status {
        let unreachable = self.servers.iter().find_map(|server| server.as_ref().err().cloned());
        let all = |found| unreachable.clone().map_or(Ok(found), Err);
        let servers = self.servers.into_iter().map(|found| ServerSeen {
            address: "127.0.0.1:6379".to_owned(),
            error: found.as_ref().err().map(|error| error.clone().into()),
            found: found.ok(),
        });
        let surveyed = Surveyed {
            reports: unreachable.clone().map_or(Ok(self.nodes), Err),
            relays: Ok(Vec::new()),
            backlogs: unreachable.clone().map_or(Ok(vec![self.backlog]), Err),
            seen: all(self.coverage),
            windows: unreachable.clone().map_or(Ok(self.windows), Err),
            losses: unreachable.clone().map_or(Ok(self.losses), Err),
            servers: servers.collect(),
            difference: self.difference,
            counts_max: 1_000_000,
            in_logs: false,
        };
        summarize(now(), None, &expected(), surveyed)
    }

    /// Asserts that the only finding has this name, this severity and these words in its texts, and returns it.
    #[track_caller]
    fn finds(self, id: &str, severity: Severity, words: &[&str]) -> Diagnosis {
        let status = self.status();
        let ids: Vec<_> = status.findings.iter().map(|finding| finding.cause.id()).collect();
        assert_eq!(ids, [id], "{:#?}", status.findings);
        assert_eq!(status.healthy, severity == Severity::Note);
        let finding = status.findings[0].clone();
        assert_eq!(finding.cause.severity(), severity);
        let text = format!(
            "{} {} {} {}",
            finding.r#where,
            finding.cause.what(),
            finding.why,
            finding.remedy
        );
        for word in words {
            assert!(text.contains(word), "{word:?} is missing from: {text}");
        }
        finding
    }
}

use Severity::{Critical, Note, Warning};

mod losses;

#[test]
fn healthy_cluster_has_no_finding() {
    let status = Seen::default().status();
    assert!(status.healthy && status.findings.is_empty(), "{status:#?}");
    assert!(!super::lines(&status, 100).join("\n").contains("about 0 B"));
    assert_eq!(status.is_anything_lost.answer, Answer::No);
}

#[test]
fn unreachable_redis_is_the_only_finding() {
    let seen = || Seen {
        servers: vec![Err(StoreError::unavailable("Connection refused"))],
        ..Seen::default()
    };
    let status = seen().status();
    assert_eq!(status.is_anything_lost.answer, Answer::Unknown);
    let output = &status.outputs[0];
    assert_eq!((output.up, output.unsent, output.quarantined), (None, None, None));
    assert_eq!(status.partitions.by_state, None);
    assert_eq!(status.redis.as_ref().unwrap().memory_by_formula, None);
    let table = super::lines(&status, 200).join("\n");
    for words in [
        "nodes    unknown",
        "backlog  unknown",
        "default: state unknown, unsent and quarantined counts unknown",
    ] {
        assert!(table.contains(words), "{words:?} is missing from: {table}");
    }
    assert!(!table.contains("0 B"), "{table}");
    let json = status.to_json();
    assert!(!json.to_string().contains("null"), "unknown values are absent: {json}");
    seen().finds("redis-down", Critical, &["Connection refused", "start Redis"]);
}

#[test]
fn read_only_redis_is_reported_with_its_cause() {
    for (cause, words) in [
        (Cause::RedisReplica, &["replica", "set store.url to the master"][..]),
        (Cause::RedisTooFewReplicas, &["min-replicas-to-write", "start a replica"]),
        (Cause::RedisDiskFails, &["cannot write to its disk", "BGSAVE"]),
        (Cause::RedisRights, &["redis-acl.conf"]),
        (Cause::RedisReadOnly, &["something else"]),
    ] {
        let error = Diagnosis::new(cause, "ERR something else");
        let seen = Seen::with_server(|server| server.refuses_writes = Some(error));
        seen.finds("redis-read-only", Critical, words);
    }
    let mut seen = Seen::default();
    let error = "MISCONF Errors writing to the AOF file: No space left on device";
    let error = Diagnosis::new(Cause::RedisDiskFails, error);
    seen.servers = vec![Err(StoreError::Unavailable(error))];
    seen.finds("redis-read-only", Critical, &["cannot write to its disk"]);
    let seen = Seen::with_server(|server| {
        server.role = "slave".to_owned();
        server.unfit = Some(Diagnosis::new(Cause::RedisReplica, "the server is a replica"));
    });
    seen.finds("redis-read-only", Critical, &["is a replica", "set store.url to the master"]);
}

#[test]
fn memory_and_disk_of_redis_are_reported() {
    for (id, severity, words, change) in [
        (
            "redis-full",
            Critical,
            &["raise maxmemory"][..],
            (|server| server.used_memory = server.maxmemory + 1) as fn(&mut ServerFound),
        ),
        ("redis-fills", Warning, &["94%", "raise maxmemory"], |server| {
            server.used_memory = server.maxmemory / 100 * 95;
        }),
        ("redis-forgets", Warning, &["appendonly yes"], |server| server.persistence.aof = false),
        ("redis-cannot-save", Warning, &["disk"], |server| server.persistence.last_save_ok = false),
        ("redis-unfit", Critical, &["evict"], |server| {
            server.unfit = Some(Diagnosis::new(Cause::RedisEvicts, "Redis may evict sets"));
        }),
        ("redis-clock", Note, &["-2600 ms"], |server| server.clock_offset_ms = -2600),
    ] {
        Seen::with_server(change).finds(id, severity, words);
    }
    let mut seen = Seen::with_server(|server| server.used_memory = server.maxmemory / 100 * 95);
    let mut busy = report();
    busy.details.recent.recorded = 6000;
    seen.nodes[1] = reported("b", &busy);
    seen.finds("redis-fills", Warning, &["formula in docs/limits.md"]);
    let seen = Seen::with_server(|server| (server.used_memory, server.maxmemory) = (1 << 40, 0));
    assert!(seen.status().healthy, "there is no limit");
}

#[test]
fn memory_store_is_a_note() {
    let seen = Seen { servers: Vec::new(), ..Seen::default() };
    seen.finds(
        "memory-store",
        Note,
        &["open minutes are lost on exit", "set store.url to a Redis"],
    );
}

#[test]
fn unreachable_output_is_reported_with_its_key() {
    let reason = "status 401: unauthorized access";
    let seen = Seen::with_output((reason, Some("check output.token_file")));
    seen.finds("output-down", Critical, &["output default", reason, "output.token_file"]);
    let seen = Seen::with_output(("output is unavailable: connection refused", None));
    seen.finds("output-down", Critical, &["connection refused", "start the server"]);
    let mut seen = Seen::with_output(("timed out", None));
    let backlog = OutputBacklog { unsent: 3, oldest: Some(minute(60)), quarantined: 0 };
    seen.backlog.outputs = [("default".parse().unwrap(), backlog)].into();
    let oldest = seen.status().partitions.oldest_unsent.unwrap();
    assert_eq!((oldest.why.as_str(), oldest.age_seconds), ("timed out", 59 * 60 + 30));
}

#[test]
fn worst_finding_comes_first() {
    let mut seen = Seen::with_output(("timed out", None));
    let mut lags = report();
    lags.details.lag_seconds = 60;
    seen.nodes[0] = reported("a", &lags);
    let findings = seen.status().findings;
    let ids: Vec<_> = findings.iter().map(|finding| finding.cause.id()).collect();
    assert_eq!(ids, ["output-down", "node-lags"]);
}

#[test]
fn old_unsent_and_quarantined_counts_are_reported() {
    let backlog =
        |ago, quarantined| OutputBacklog { unsent: 1, oldest: Some(minute(ago)), quarantined };
    let seen = Seen::with_backlog(backlog(1, 0));
    assert!(seen.status().healthy, "the minute has just ended");
    let seen = Seen::with_backlog(backlog(60, 0));
    seen.finds("unsent", Warning, &["eds outputs"]);
    let seen = Seen::with_backlog(backlog(1, 1));
    seen.finds("quarantine", Warning, &["1 counts", "eds quarantine retry"]);
    let seen = Seen::with_backlog(backlog(1, 10_000));
    seen.finds("quarantine-full", Critical, &["50%", "eds quarantine retry"]);
}

#[test]
fn the_state_of_a_node_is_reported() {
    for (id, severity, words, change) in [
        (
            "stalled",
            Critical,
            &["listener 0"][..],
            (|report| report.process.stalled = vec!["listener 0".to_owned()])
                as fn(&mut NodeReport),
        ),
        ("socket-fails", Critical, &["log"], |report| report.process.sockets_failing = 1),
        ("node-cannot-record", Critical, &["cannot be used: x"], |report| {
            report.details.store_error = Some("store cannot be used: x".to_owned());
        }),
        ("node-settings", Critical, &["flush.grace", "eds settings show"], |report| {
            report.details.settings_error =
                Some("flush.grace = 5s, but this node uses 6s".to_owned());
        }),
        ("node-lags", Warning, &["11 s"], |report| report.details.lag_seconds = 11),
        ("queue-fills", Warning, &["50%"], |report| {
            (report.details.queue.events, report.details.queue.events_max) = (5, 10);
        }),
        ("spool-fills", Critical, &["80%"], |report| {
            (report.details.spool.bytes, report.details.spool.bytes_max) = (8, 10);
        }),
        ("name-taken", Warning, &["EDS_NODE"], |report| report.process.name_taken = true),
        ("clock", Warning, &["2.5 s behind", "chronyc"], |report| {
            report.details.clock_offset_ms = Some(2501);
        }),
        ("clock", Warning, &["2.5 s ahead of"], |report| {
            report.details.clock_offset_ms = Some(-2501);
        }),
    ] {
        Seen::with(change).finds(id, severity, words);
    }
    assert!(Seen::with(|report| report.details.clock_offset_ms = Some(2500)).status().healthy);
    let mut seen = Seen::default();
    seen.nodes[1].version = "0.0.9".to_owned();
    seen.finds("version", Warning, &["node b", "0.0.9", "0.1.0"]);
    let seen = Seen {
        difference: Some(Diagnosis::new(Cause::SettingsFormat, "the keys in Redis have format 4")),
        ..Seen::default()
    };
    seen.finds("settings", Warning, &["format 4", "run a version"]);
}

#[test]
fn copies_of_lines_without_a_timestamp_are_reported() {
    let seen = Seen::with(|report| report.details.unstamped_copies_at = Some("a".to_owned()));
    seen.finds("unstamped-copies", Warning, &["node b", "node a", "eds relay", "timestamp"]);
}

#[test]
fn coarse_timestamps_are_a_warning_where_events_coincide_and_a_note_otherwise() {
    let with = |rounded, coinciding| {
        Seen::with(|report| {
            (report.details.recent.rounded, report.details.recent.coinciding) =
                (rounded, coinciding);
            report.details.coarse_stamps =
                Some("timestamps are whole milliseconds, for example in a=1".to_owned());
        })
    };
    with(1000, 10).finds("stamps-coincide", Warning, &["10 events", "whole milliseconds", "a=1"]);
    with(100, 9).finds("stamps-rounded", Note, &["100 events", "a=1", "nanoseconds"]);
    assert!(with(99, 9).status().findings.is_empty());
}

#[test]
fn old_minutes_are_counted_and_their_end_is_estimated() {
    let seen = |rate| {
        let mut seen = Seen::with(|report| report.details.old_minutes_per_second = rate);
        (seen.backlog.waiting, seen.backlog.old) = (1003, 1000);
        seen
    };
    let finding = seen(32.0).finds("old-minutes", Note, &["1000 minutes", "about 32 s"]);
    assert!(finding.remedy.contains("input.max_age"));
    seen(0.0).finds("old-minutes", Note, &["none are being sealed"]);
    let lines = super::lines(&seen(32.0).status(), 100).join("\n");
    let words =
        "1000 of the open minutes are old: all will be sealed in about 32s at the current rate";
    assert!(lines.contains(words), "{lines}");
}

#[test]
fn silent_node_and_absent_node_are_distinguished() {
    let seen = |seconds| {
        let mut seen = Seen::default();
        seen.nodes[1].ago = Duration::from_secs(seconds);
        seen
    };
    assert_eq!(seen(15).status().is_anything_lost.answer, Answer::Unknown);
    seen(15).finds("node-silent", Critical, &["node b", "15 s", "suspended"]);
    assert!(seen(14).status().healthy);
    let seen = Seen { nodes: Vec::new(), ..Seen::default() };
    seen.finds("no-node", Critical, &["store.prefix"]);
}

#[test]
fn a_node_that_sees_less_than_another_is_reported_unless_it_just_started() {
    let minutes = |share| {
        let coverage =
            |ago| (minute(ago), BTreeMap::from([("a".to_owned(), 1000), ("b".to_owned(), share)]));
        (2..7).map(coverage).collect()
    };
    let seen = |share| Seen { coverage: minutes(share), ..Seen::default() };
    seen(980).finds("node-loses", Warning, &["node b", "98.0%"]);
    assert!(seen(995).status().healthy);
    seen(0).finds("node-loses", Warning, &["0.0%"]);
    let mut young = Seen::with(|report| report.process.uptime_seconds = 60);
    young.coverage = minutes(0);
    assert!(young.status().healthy, "the node had not started yet");
}

#[test]
fn foreign_report_is_read_partially_and_escaped() {
    let long = "x".repeat(5000);
    let hostile = format!(
        "{{\"uptime_seconds\": 7, \"lag_seconds\": \"many\", \"store\": \"\\u001b[2J\\u202e{long}\", \"received_per_second\": -1, \
         \"outputs\": {{}}, \"new\": [1], \"totals\": {{\"received\": 9, \"more\": 1}}}}"
    );
    let read = |text: &str| NodeReport::read(text, Duration::ZERO);
    let report = read(&hostile);
    assert!(!report.seen.readable);
    assert_eq!((report.process.uptime_seconds, report.details.totals.received), (7, 9));
    assert!(report.process.received_per_second.abs() < f64::EPSILON);
    assert!(
        report.details.store.len() < 300
            && report.details.store.chars().all(|c| !c.is_control() && c != '\u{202e}')
    );
    let many = format!("{{\"outputs\": [{}]}}", vec!["{\"name\": \"o\"}"; 500].join(","));
    assert_eq!(read(&many).details.outputs.len(), 16);
    for text in ["", "null", "{", "\u{0}", "{\"totals\": null}"] {
        assert_eq!(read(text), NodeReport::default(), "{text:?}");
    }
    let mut seen = Seen::default();
    seen.nodes[1].text = "{".to_owned();
    seen.nodes[1].name = "\u{1b}]0;b".to_owned();
    let finding = seen.finds("report-unreadable", Note, &["a different version"]);
    assert!(!finding.r#where.contains('\u{1b}'));
}

#[test]
fn largest_report_is_read_in_full() {
    let mut report = report();
    let output = OutputReport {
        name: "o".repeat(32),
        url: "\"".repeat(9000),
        last_error: Some("\"".repeat(9000)),
        remedy: Some("\"".repeat(9000)),
        up: false,
    };
    report.details.outputs = vec![output; 16];
    report.process.stalled = vec!["\"".repeat(9000); 100];
    let json = report.to_json();
    assert!(json.len() < 32 * 1024, "{}", json.len());
    assert!(NodeReport::read(&json, Duration::ZERO).seen.readable);
}

#[test]
fn window_waits_for_its_end_its_minutes_and_lagging_nodes() {
    let waits_for = |seen: Seen, ago: i64| {
        let bucket = Bucket { partition: rollup().0, minute: minute(ago) };
        let status = Seen { windows: vec![(bucket, 2048)], ..seen }.status();
        let table = super::lines(&status, 200).join("\n");
        assert!(
            table.contains("rollup   hourly (1h): 1 open window, 2.0 KiB; the window from "),
            "{table}"
        );
        let window = &status.rollups[0].open.as_ref().unwrap()[0];
        assert_eq!(window.bytes, 2048);
        (window.start.clone(), window.end.clone(), window.waits_for.clone())
    };
    let [thirteen, fourteen, fifteen] =
        ["13", "14", "15"].map(|hour| format!("2026-11-22T{hour}:00:00Z"));
    let open = waits_for(Seen::default(), -59);
    assert_eq!(open, (fourteen.clone(), fifteen, "its end".to_owned()));
    let ended = |seen: Seen| {
        let (start, end, waits_for) = waits_for(seen, 1);
        assert_eq!((start, end), (thirteen.clone(), fourteen.clone()));
        waits_for
    };
    let mut sealing = Seen::default();
    sealing.backlog.oldest = Some(minute(2));
    assert_eq!(ended(sealing), "minute 20261122:0838 to be sealed");
    let mut later = Seen::default();
    later.backlog.oldest = Some(minute(0));
    assert_eq!(ended(later), "further minutes during the grace period");
    let mut adding = Seen::default();
    let unsent = OutputBacklog { unsent: 1, oldest: Some(minute(3)), quarantined: 0 };
    adding.backlog.outputs.insert(OutputName::rollup(), unsent);
    assert_eq!(ended(adding), "minute 20261122:0837 to be added to windows");
    let lagging = Seen::with(|report| report.details.lag_seconds = 7);
    assert_eq!(ended(lagging), "lagging nodes: b");
    let refused = vec![Err(StoreError::unavailable("Connection refused"))];
    let status = Seen { servers: refused, ..Seen::default() }.status();
    assert_eq!(status.rollups[0].open, None);
}

#[tokio::test(start_paused = true)]
async fn the_last_hour_is_kept_by_minute() {
    let mut history = History::new(now());
    for second in 1..=70 * 60 + 30 {
        tokio::time::advance(Duration::from_secs(1)).await;
        history.add(second, second * 10, [second % 60, 0, 0, second % 7, 0]);
    }
    let hour = history.process("one#1").hour;
    assert_eq!(hour.received_per_second, [10; 60]);
    // The last one is the current minute.
    assert_eq!(hour.queued[..59], [59; 59]);
    assert_eq!(hour.queued[59], 30);
    assert_eq!([hour.lag_seconds, hour.users], [[0; 60], [6; 60]]);
    // A report of a different process may have any length.
    let report =
        NodeReport::read(&format!(r#"{{"hour": {{"queued": {:?}}}}}"#, [7; 100]), Duration::ZERO);
    assert_eq!(report.process.hour.queued, [7; 60]);
}
