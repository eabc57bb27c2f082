//! Logs over a slow connection.

use event_data_service::store::Store as _;
use event_data_service::store::redis::Layout;
use redis_link::Address;
use testing::prelude::*;

use super::site::{at, claim, minute, partition, record, seal, store};

const SERIES: usize = 4000;
/// Carries half of the names within a time-out.
const BYTES_A_SECOND: u32 = 2_000_000;
const RESPONSE: Duration = Duration::from_secs(1);

/// A read must not grow with the length of names.
#[tokio::test]
async fn logs_with_long_names_are_read_over_a_slow_way() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let address = proxy.address();
    let mut settings = at(Address::Server(address.into()));
    settings.layout = Layout::Log;
    settings.redis.timeouts.response = RESPONSE;
    let store = store(&settings);
    let names: Vec<_> = (0..SERIES).map(|it| format!("s={it:0998}")).collect();
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
