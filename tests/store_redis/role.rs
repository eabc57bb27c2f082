//! Tests that clients stop using a master that has become a replica.

use crate::store_redis::prelude::*;

async fn record_until_it_works(store: &RedisStore) {
    let deadline = Instant::now() + SOON;
    while let Err(error) = record(store, minute(), &["s=1"], 1).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn demoted_master_is_abandoned_until_promoted() {
    let (master, server) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let store = store(&tcp(&server));
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    let generation = store.generation(partition());

    let port = master.address().port().to_string();
    server.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    eventually("the replica has the master's data", SOON, || {
        let keys = server.keys();
        when(keys.is_empty(), format!("{keys:?}"))
    });
    let error = record(&store, minute(), &["s=1"], 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert_ne!(store.generation(partition()), generation, "the generation has not changed");
    claim(&store).await.unwrap_err();
    let error = store.check().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(diagnosis) if diagnosis.why.contains("replica")),
        "{error}"
    );

    server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    record_until_it_works(&store).await;
    let deadline = Instant::now() + SOON;
    let claims = loop {
        if let Ok(claims) = claim(&store).await {
            break claims;
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(finish(&store, &claims[0]).await.unwrap(), 1);
}
