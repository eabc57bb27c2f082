//! The cost of a large minute in Redis. The figures are printed (`--nocapture`), not checked: they depend on the
//! machine.

use event_data_service::event::Minute;
use event_data_service::store::redis::scripts;
use event_data_service::store::{ClaimRequest, Draining, OutputName};
use testing::prelude::*;

use super::site::{AT_ONCE, LEASE, compact, minute, partition, record, store, tcp};

const SERIES: usize = 100_000;
const WAITING_MINUTES: i64 = 1000;

/// Returns number, minimum, median and maximum of the commands that took more than 100 µs since the last call. On a
/// loaded machine the maximum depends on other processes.
fn print_slowlog(server: &RedisServer, what: &str) {
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let names = [
        (scripts()["claim.lua"], "claim"),
        (scripts()["compact.lua"], "compact"),
        (scripts()["acknowledge.lua"], "acknowledge"),
        (scripts()["extend.lua"], "extend"),
    ];
    let log: Vec<Entry> = server.query(&["SLOWLOG", "GET", "-1"]);
    let mut commands: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (_, _, micros, words, _, _) in log {
        let script = words.get(1).and_then(|sha1| names.iter().find(|(of, _)| of == sha1));
        let name = script.map_or(words[0].clone(), |(_, name)| (*name).to_owned());
        commands.entry(name).or_default().push(micros);
    }
    for (name, mut micros) in commands {
        micros.sort_unstable();
        let count = micros.len();
        let (least, median, greatest) = (micros[0], micros[count / 2], micros[count - 1]);
        println!("{what}: {name}: {count} times, {least} µs, {median} µs, {greatest} µs");
    }
    server.query::<()>(&["SLOWLOG", "RESET"]);
}

/// Disables the slow log, because logging each command of a script would take longer than the script.
fn logging() -> RedisServer {
    RedisServer::start(&["--slowlog-log-slower-than", "100", "--slowlog-max-len", "20000"])
}

#[tokio::test]
async fn a_hundred_thousand_series_in_a_minute() {
    let server = logging();
    let store = store(&tcp(&server));
    let names: Vec<_> =
        (0..SERIES).map(|i| format!("event_type=http-5xx,product=p{i:06}")).collect();
    for names in names.chunks(8192) {
        let series: Vec<_> = names.iter().map(String::as_str).collect();
        record(&store, minute(), &series, 1).await.unwrap();
    }
    print_slowlog(&server, "record");

    let claims = store.claim(partition(), &AT_ONCE, &[]).await.unwrap();
    let mut sealed = 0;
    let claim = loop {
        let mut done = compact(&store, &claims[0], 200).await.unwrap();
        sealed += done.sealed;
        if done.left == 0 {
            break done.sending.remove(0);
        }
    };
    assert_eq!(sealed, SERIES as u64);
    print_slowlog(&server, "compact by 200");

    let mut unsent = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = store.unsent(&claim, at).await.unwrap();
        unsent.extend(page.items.into_iter().map(|counts| counts.series));
        cursor = page.next;
    }
    unsent.sort_unstable();
    unsent.dedup();
    assert_eq!(unsent.len(), SERIES);
    print_slowlog(&server, "unsent");

    let unsent: Vec<_> = unsent.iter().map(String::as_str).collect();
    for series in unsent.chunks(5000) {
        store.acknowledge(&claim, series, LEASE).await.unwrap();
    }
    print_slowlog(&server, "acknowledge by 5000");
    let backlog = store.backlog(partition()).await.unwrap();
    assert_eq!(backlog.outputs[&OutputName::default()].unsent, 0);
}

#[tokio::test]
async fn a_thousand_waiting_minutes() {
    let server = logging();
    let store = store(&tcp(&server));
    let first = minute().epoch_minutes();
    for at in first..first + WAITING_MINUTES {
        let minute = Minute::from_epoch_minutes(at).unwrap();
        record(&store, minute, &["s=1"], 1).await.unwrap();
    }
    server.query::<()>(&["SLOWLOG", "RESET"]);
    let filling = ClaimRequest { grace: LEASE, ..AT_ONCE };
    for what in ["the first look at 1000 minutes", "the second look"] {
        assert_eq!(store.claim(partition(), &filling, &[]).await.unwrap(), []);
        print_slowlog(&server, what);
    }
    let request = ClaimRequest { finished_max: 16, ..AT_ONCE };
    let mut claimed = 0;
    while claimed < 1000 {
        let claims = store.claim(partition(), &request, &[]).await;
        claimed += claims.unwrap().len();
    }
    print_slowlog(&server, "claiming 1000 minutes by 16");
}
