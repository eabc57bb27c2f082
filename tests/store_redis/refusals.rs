//! Servers that a node refuses, and its messages.

use std::io::{Read, Write};
use std::num::NonZeroU16;

use event_data_service::event::Partitions;
use event_data_service::store::redis::Settings;
use event_data_service::store::{Store, StoreError};
use redis_link::{Address, Credentials, Endpoint};
use testing::prelude::*;

use super::site::{store, tcp};

/// The store refuses, with the reason and the remedy.
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
        password: Some(password.to_owned()),
    };
    settings
}

#[tokio::test]
async fn a_server_that_evicts() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    refuses(
        &tcp(&server),
        "maxmemory-policy allkeys-lru",
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
    refuses(&differs, "store.partitions = 1, and this one 32", "set store.partitions_before").await;
    // Another prefix is another cluster.
    let other = Settings { prefix: "other".to_owned(), ..differs };
    store(&other).check().await.unwrap();
}

#[tokio::test]
async fn keys_of_a_build_that_wrote_no_format() {
    let server = RedisServer::start(&[]);
    server.query::<()>(&["HSET", "eds:settings", "partitions", "1"]);
    refuses(&tcp(&server), "its keys have format 1", "format").await;
    let fields: Vec<String> = server.query(&["HKEYS", "eds:settings"]);
    assert_eq!(fields, ["partitions"], "nothing is written beside them");
}

#[tokio::test]
async fn a_wrong_password() {
    let server = RedisServer::start(&[]);
    server.query::<()>(&["ACL", "SETUSER", "eds", "on", ">right", "~*", "+@all"]);
    let hint = "store.username and store.password_file";
    refuses(&with_password(&server, Some("eds"), "wrong"), "credentials", hint).await;
    refuses(&with_password(&server, Some("nobody"), "right"), "credentials", hint).await;
    store(&with_password(&server, Some("eds"), "right")).check().await.unwrap();

    // From here on a certificate is required.
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

/// A server with this answer to INFO, and OK to everything else. It stops with the test.
fn answering_info(info: &'static str) -> Settings {
    let serve = move |mut client: TcpStream| -> std::io::Result<()> {
        let mut chunk = [0; 4096];
        loop {
            let n = client.read(&mut chunk)?;
            if n == 0 {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&chunk[..n]);
            // A command begins with the number of its parts; no part does.
            for command in text.split("\r\n*") {
                if command.contains("INFO") && !command.contains("SETINFO") {
                    write!(client, "${}\r\n{info}\r\n", info.len())?;
                } else {
                    write!(client, "+OK\r\n")?;
                }
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client));
        }
    });
    super::site::at(Address::Server(Endpoint::Tcp("127.0.0.1".to_owned(), port)))
}

const REMEDY: &str = "Redis 7.0 or later, or Valkey";

#[tokio::test]
async fn an_old_version() {
    let old =
        answering_info("redis_version:6.2.14\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n");
    refuses(&old, "Redis 6.2.14", REMEDY).await;
}

/// The same with a real server.
#[tokio::test]
#[ignore = "wants EDS_TEST_REDIS to be a Redis of before 7.0: $(scripts/setup --server redis-6.2)"]
async fn an_old_server() {
    let server = RedisServer::start(&[]);
    refuses(&tcp(&server), "the server is Redis 6", REMEDY).await;
}

/// It has no version of its own, and runs the scripts of the Redis version it reports.
#[tokio::test]
async fn keydb_whatever_version_of_redis_it_names() {
    let of_today = answering_info(
        "# Server\r\nredis_version:6.3.4\r\nredis_mode:standalone\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\
         # Replication\r\nrole:master\r\n# KeyDB\r\nmvcc_depth:0\r\n",
    );
    refuses(&of_today, "KeyDB, as Redis 6.3.4", REMEDY).await;
    let of_tomorrow = answering_info(
        "redis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\nrole:master\r\nmvcc_depth:0\r\n",
    );
    refuses(&of_tomorrow, "KeyDB, as Redis 7.2.4", REMEDY).await;
}

#[tokio::test]
async fn dragonfly() {
    let dragonfly = answering_info(
        "redis_version:7.4.0\r\ndragonfly_version:df-v1.34.2\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n",
    );
    refuses(&dragonfly, "Dragonfly", REMEDY).await;
}
