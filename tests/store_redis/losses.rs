//! Tests that each loss is recorded once and kept until it is acknowledged, and that the record is bounded.

use event_data_service::store::{LOSSES_MAX, Loss, Survey as _};
use testing::redis::RedisServer;

use crate::store_redis::prelude::*;

const RECORD: &str = "{eds:losses}";

fn loss(key: &str, amount: u64) -> Loss {
    Loss::of_key(key, amount).unwrap()
}

async fn left(store: &RedisStore) -> Vec<(String, u64)> {
    let losses = store.registry().losses().await.unwrap();
    let left = losses.iter().filter(|loss| loss.left() > 0);
    left.map(|loss| (loss.key(), loss.left())).collect()
}

#[tokio::test]
async fn repeated_loss_counts_once_and_grows() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    let (a, b) = ("20161204:1118|late|a#1", "20161204:1119|queue_full|b|c#2");
    for _ in 0..3 {
        store.registry().lose(&[loss(a, 5), loss(b, 2)]).await.unwrap();
    }
    let expected = [(a.to_owned(), 5), (b.to_owned(), 2)];
    assert_eq!(left(&store).await, expected);
    // A smaller number, from a request that arrives late, has no effect.
    store.registry().lose(&[loss(a, 4)]).await.unwrap();
    assert_eq!(left(&store).await, expected);
    let kept_ms: i64 = server.query(&["PTTL", RECORD]);
    let days = kept_ms / 86_400_000;
    assert!((29..=30).contains(&days), "{kept_ms}");

    // If a loss has grown since it was listed, the increase is not acknowledged.
    let seen = store.registry().losses().await.unwrap();
    store.registry().lose(&[loss(a, 9)]).await.unwrap();
    for _ in 0..2 {
        store.acknowledge_losses(&seen).await.unwrap();
        assert_eq!(left(&store).await, [(a.to_owned(), 4)]);
    }
    store.registry().lose(&[loss(a, 9), loss(b, 2)]).await.unwrap();
    assert_eq!(left(&store).await, [(a.to_owned(), 4)]);
}

#[tokio::test]
async fn record_is_bounded_and_evicted_losses_are_summed() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    let first = loss("20161204:0001|late|first#1", 1000);
    store.registry().lose(std::slice::from_ref(&first)).await.unwrap();
    store.acknowledge_losses(&[first]).await.unwrap();
    let all = 3 * LOSSES_MAX;
    let names: Vec<_> = (0..all)
        .map(|number| format!("20161204:1118|{}|n#{number}", ["late", "shutdown"][number % 2]))
        .collect();
    let losses: Vec<_> = names.iter().map(|name| loss(name, 1)).collect();
    store.registry().lose(&losses).await.unwrap();
    let entries: u64 = server.query(&["HLEN", RECORD]);
    assert!(entries <= LOSSES_MAX as u64, "{entries}");
    let left = left(&store).await;
    let sum: u64 = left.iter().map(|(_, amount)| amount).sum();
    assert_eq!(sum, all as u64);
    let earlier = left.iter().filter(|(name, _)| name.starts_with("earlier|"));
    let earlier: Vec<_> = earlier.map(|(name, _)| name.as_str()).collect();
    assert_eq!(earlier, ["earlier|late|", "earlier|shutdown|"]);
    let seen = store.registry().losses().await.unwrap();
    store.acknowledge_losses(&seen).await.unwrap();
    assert_eq!(self::left(&store).await, []);
}

#[tokio::test]
async fn foreign_entry_is_ignored() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    for (name, entry) in [
        ("x", "1|0|9999999999999"),
        ("20161204:1118|late|a#1", "many"),
        ("20161204:9999|late|a#1", "1|0|9999999999999"),
        ("20161204:1118|late|old#1", "1|0|5"),
    ] {
        server.query::<()>(&["HSET", RECORD, name, entry]);
    }
    assert_eq!(left(&store).await, []);
    let losses: Vec<_> =
        (0..LOSSES_MAX).map(|number| loss(&format!("20161204:1118|late|n#{number}"), 1)).collect();
    store.registry().lose(&losses).await.unwrap();
    let sum: u64 = left(&store).await.iter().map(|(_, amount)| amount).sum();
    assert_eq!(sum, LOSSES_MAX as u64);
}
