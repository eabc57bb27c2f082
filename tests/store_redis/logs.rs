//! Tests logs with a slow connection, and with a script that is interrupted.

use event_data_service::store::Store as _;

use crate::store_redis::prelude::*;

const SERIES: usize = 4000;
/// A rate at which only half of the names can be transferred before the response times out.
const BYTES_A_SECOND: u32 = 2_000_000;
const RESPONSE: Duration = Duration::from_secs(1);

/// The size of a read must not depend on the length of the names.
#[tokio::test]
async fn logs_with_long_names_are_read_over_a_slow_link() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let mut settings = at(Address::Server(proxy.address().into()));
    settings.layout = Layout::Log;
    settings.redis.timeouts.response = RESPONSE;
    let store = store(&settings);
    let names: Vec<_> = (0..SERIES).map(|number| format!("s={number:0998}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    record(&store, minute(), &names, 1).await.unwrap();
    let claim = claim(&store).await.unwrap().remove(0);
    let generation = store.generation(partition());
    proxy.set(Traffic::Rate(BYTES_A_SECOND));
    seal(&store, &claim, 200).await.unwrap();
    let is_same = store.generation(partition()) == generation;
    assert!(is_same, "a connection was lost");
    proxy.set(Traffic::Open);
    let counts = server.keys().into_iter().find(|key| key.ends_with(":counts"));
    let sealed: usize = server.query(&["HLEN", &counts.unwrap()]);
    assert_eq!(sealed, SERIES);
}

#[tokio::test]
async fn a_script_that_stops_while_logs_are_removed_is_continued() {
    let server = RedisServer::start(&[]);
    let nodes = ["n1", "n2"].map(|name| {
        let node = name.to_owned();
        store(&Settings { layout: Layout::Log, node, ..tcp(&server) })
    });
    for node in &nodes {
        record(node, minute(), &["s=1", "s=2"], 1).await.unwrap();
    }
    let claim = claim(&nodes[0]).await.unwrap().remove(0);
    assert_eq!(compact(&nodes[0], &claim, 1).await.unwrap().left, 1);
    // The script fails when it removes the first name. Then delete one log, as if the script had been interrupted later.
    let logs = format!("{{eds:0}}:{}:logs", minute());
    server.query::<()>(&["RENAME", &logs, "{eds:0}:kept"]);
    server.query::<()>(&["SET", &logs, "of another type"]);
    compact(&nodes[0], &claim, 1).await.unwrap_err();
    server.query::<()>(&["RENAME", "{eds:0}:kept", &logs]);
    let keys = server.keys();
    let log = keys.iter().find(|key| key.contains(":log:")).unwrap();
    server.query::<()>(&["UNLINK", log]);
    let last = compact(&nodes[0], &claim, 1).await.unwrap();
    assert_eq!((last.sealed, last.late, last.left), (0, 0, 0));
    assert_eq!(finish(&nodes[0], &last.sending[0]).await.unwrap(), 2);
    let keys = server.keys();
    assert!(!keys.iter().any(|key| key.contains("log")), "{keys:?}");
}
