//! Tests that two nodes with the same name do not affect each other's data, and that both report it.

use event_data_service::store::Survey;
use testing::redis::RedisServer;

use crate::store_redis::prelude::*;

#[tokio::test]
async fn node_does_not_revoke_the_report_of_a_namesake() {
    let server = RedisServer::start(&[]);
    // Both nodes are named "node".
    let [lagging, other] = [(); 2].map(|()| store(&tcp(&server)));
    record(&other, minute(), &["s=1"], 1).await.unwrap();
    for _ in 0..3 {
        report_lag(&lagging, true).await.unwrap();
        report_lag(&other, false).await.unwrap();
        assert_eq!(claim(&other).await.unwrap(), []);
    }
    report_lag(&lagging, false).await.unwrap();
    assert_eq!(claim(&other).await.unwrap().len(), 1);
}

#[tokio::test]
async fn live_namesakes_are_reported_and_a_restart_is_not() {
    let server = RedisServer::start(&[]);
    let first = store(&tcp(&server));
    for _ in 0..2 {
        assert!(!first.registry().report("{}").await.unwrap());
    }
    // The node is killed and restarted.
    let [again, second] = [(); 2].map(|()| store(&tcp(&server)));
    for _ in 0..2 {
        assert!(!again.registry().report("{}").await.unwrap());
    }
    assert!(!second.registry().report("{}").await.unwrap());
    for _ in 0..2 {
        assert!(again.registry().report("{}").await.unwrap());
        assert!(second.registry().report("{}").await.unwrap());
    }
    for _ in 0..2 {
        second.registry().report("{}").await.unwrap();
    }
    assert!(!second.registry().report("{}").await.unwrap());
    let keys = server.keys();
    assert_eq!(keys, ["{eds:nodes}", "{eds:nodes}:node"]);
    for key in &keys {
        let left_ms: i64 = server.query(&["PTTL", key]);
        assert!(left_ms > 0, "{key} does not expire");
    }
}
