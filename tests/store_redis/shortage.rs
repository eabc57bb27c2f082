//! Tests that only recording fails when Redis is out of memory. All other steps can continue, and free memory.

use crate::store_redis::prelude::*;

fn used_memory(server: &RedisServer) -> u64 {
    let info: String = server.query(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

fn limit_memory(server: &RedisServer, bytes: u64) {
    server.query::<()>(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]);
}

#[track_caller]
fn assert_full(result: &Result<(), StoreError>) {
    assert!(matches!(result, Err(StoreError::Full(_))), "{result:?}");
}

/// Even a new node, whose scripts Redis does not know yet, can run every operation except recording.
#[tokio::test]
async fn everything_but_recording_continues() {
    let server = RedisServer::start(&[]);
    let old = store(&tcp(&server));
    record(&old, minute(), &["s=1", "s=2"], 1).await.unwrap();
    limit_memory(&server, 1);
    assert_full(&record(&old, minute(), &["s=1"], 2).await);
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    drain_all(&old).await.unwrap();
    limit_memory(&server, 0);
    record(&old, next_minute(), &["s=3"], 1).await.unwrap();

    limit_memory(&server, 1);
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    let new = store(&tcp(&server));
    // The new node notices that Redis is out of memory even before a recording has failed.
    assert_full(&new.check().await);
    assert_full(&record(&new, minute(), &["s=1"], 2).await);
    drain_all(&new).await.unwrap();
}

#[tokio::test]
async fn draining_frees_memory() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    let names: Vec<_> = (0..2000).map(|i| format!("s={i}")).collect();
    let series: Vec<_> = names.iter().map(String::as_str).collect();
    for nanos in 0..5 {
        record(&store, minute(), &series, nanos).await.unwrap();
    }
    let before = used_memory(&server);
    limit_memory(&server, before - 100_000);
    assert_full(&record(&store, minute(), &["s=1"], 9).await);

    let claims = claim(&store).await.unwrap();
    let sending = seal(&store, &claims[0], 200).await.unwrap();
    eventually("memory has been freed", SOON, || {
        let used = used_memory(&server);
        when(used < before - 100_000, format!("{used} of {before} bytes used"))
    });
    record(&store, minute(), &["s=new"], 1).await.unwrap();
    let claims = claim(&store).await.unwrap();
    assert_eq!(compact(&store, &claims[0], 200).await.unwrap().sealed, 1);
    assert_eq!(finish(&store, &sending).await.unwrap(), 2001);
}

/// According to docs/limits.md, a count takes 80 bytes plus its name.
#[tokio::test]
async fn memory_of_counts_is_as_documented() {
    const SERIES: usize = 20_000;
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    store.check().await.unwrap();
    let names: Vec<_> =
        (0..SERIES).map(|i| format!("event_type=type{i},product=product{}", i % 7)).collect();
    let series: Vec<_> = names.iter().map(String::as_str).collect();
    for series in series.chunks(500) {
        record(&store, minute(), series, 1).await.unwrap();
    }
    let claims = claim(&store).await.unwrap();
    assert_eq!(finish(&store, &claims[0]).await.unwrap(), SERIES);
    let key = format!("{{eds:0}}:{}:counts", minute());
    let counts: u64 = server.query(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
    let name = names.iter().map(String::len).sum::<usize>() / SERIES;
    let bytes = counts / SERIES as u64;
    println!(
        "a count takes {bytes} bytes, including {name} bytes for its name; documented: 80 plus the name"
    );
    assert!(bytes <= 80 + name as u64, "{bytes} bytes per count");
}
