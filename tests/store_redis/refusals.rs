//! Tests which servers a node refuses, and the messages.

use std::num::NonZeroU16;

use event_data_service::event::Partitions;
use redis_link::{Credentials, Endpoint, Secret, Tls};

use crate::store_redis::prelude::*;

/// Asserts that the store refuses the server, with this reason and this remedy.
async fn refuses(settings: &Settings, wrong: &str, fixed_by: &str) {
    let store = store(settings);
    for _ in 0..2 {
        match store.check().await {
            Err(StoreError::Refused(found)) => {
                assert!(found.why.contains(wrong), "{found}");
                assert!(found.remedy.contains(fixed_by), "{found}");
            }
            other => panic!("not refused: {other:?}"),
        }
    }
}

fn with_password(server: &RedisServer, username: Option<&str>, password: &str) -> Settings {
    let mut settings = tcp(server);
    settings.redis.credentials = Credentials {
        username: username.map(ToOwned::to_owned),
        password: Some(Secret::new(password)),
    };
    settings
}

#[tokio::test]
async fn a_server_that_evicts() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    refuses(
        &tcp(&server),
        "maxmemory-policy is allkeys-lru",
        "CONFIG SET maxmemory-policy noeviction",
    )
    .await;
}

#[tokio::test]
async fn nodes_with_other_partitions() {
    let server = RedisServer::start(&[]);
    store(&tcp(&server)).check().await.unwrap();
    let differs =
        Settings { partitions: Partitions::new(NonZeroU16::new(32).unwrap()), ..tcp(&server) };
    refuses(&differs, "store.partitions = 1, but this node uses 32", "set store.partitions_before")
        .await;
    // Nodes with a different prefix form a separate cluster.
    let separate = Settings { prefix: "other".to_owned(), ..differs };
    store(&separate).check().await.unwrap();
}

#[tokio::test]
async fn keys_without_a_format() {
    let server = RedisServer::start(&[]);
    server.query::<()>(&["HSET", "eds:settings", "partitions", "1"]);
    refuses(&tcp(&server), "the keys in Redis have format 1", "format").await;
    let fields: Vec<String> = server.query(&["HKEYS", "eds:settings"]);
    assert_eq!(fields, ["partitions"], "no settings have been written");
}

#[tokio::test]
async fn a_wrong_password() {
    let server = RedisServer::start(&[]);
    server.query::<()>(&["ACL", "SETUSER", "eds", "on", ">right", "~*", "+@all"]);
    let hint = "store.username and store.password_file";
    refuses(&with_password(&server, Some("eds"), "wrong"), "credentials", hint).await;
    refuses(&with_password(&server, Some("nobody"), "right"), "credentials", hint).await;
    store(&with_password(&server, Some("eds"), "right")).check().await.unwrap();

    // From now on, the default user needs a password.
    server.query::<()>(&["CONFIG", "SET", "requirepass", "secret"]);
    refuses(&tcp(&server), "NOAUTH", hint).await;
    refuses(&with_password(&server, None, "wrong"), "credentials", hint).await;
    store(&with_password(&server, None, "secret")).check().await.unwrap();
}

#[tokio::test]
async fn a_user_without_rights() {
    let server = RedisServer::start(&[]);
    let hint = "config/redis-acl.conf";
    for rights in [
        &["~*", "-@all"][..],
        &["~*", "-@all", "+info"],
        &["~*", "+@all", "-hsetnx"],
        &["~other:*", "+@all"],
    ] {
        let user = [&["ACL", "SETUSER", "poor", "reset", "on", ">secret"][..], rights].concat();
        server.query::<()>(&user);
        refuses(&with_password(&server, Some("poor"), "secret"), "", hint).await;
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[tokio::test]
#[ignore = "requires a Redis before 7.0: EDS_TEST_REDIS=$(scripts/setup --server redis-6.2)"]
async fn an_old_server() {
    let server = RedisServer::start(&[]);
    refuses(&tcp(&server), "the server is Redis 6", "Redis 7.0 or later, or Valkey").await;
}

#[test]
fn invalid_certificates_are_refused_at_once() {
    let mut settings = at(Address::Server(Endpoint::Tcp("127.0.0.1".to_owned(), 1)));
    settings.redis.tls = Some(Tls { ca: Some(b"nonsense".to_vec()), client: None });
    let words = RedisStore::new(&settings).unwrap_err().to_string();
    assert!(words.contains("invalid Redis address or TLS certificate"), "{words}");
}
