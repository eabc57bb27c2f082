//! Tests that the message about a server of the wrong kind is one line with the address and the remedy.

use std::io::{Read, Write};

use redis_link::{Timeouts, Tls};
use testing::tls::TlsForwarder;

use crate::store_redis::prelude::*;

/// Starts a server that responds to every request with `answer`.
fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if !answer.is_empty() {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(answer);
            }
            open.push(stream);
        }
    });
    address
}

fn in_the_clear(address: SocketAddr) -> Settings {
    at(Address::Server(address.into()))
}

#[track_caller]
fn assert_says(error: &StoreError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word} is missing from: {message}");
    }
    assert!(!message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 1024, "{message}");
}

async fn assert_check_says(settings: &Settings, whom: SocketAddr, hint: &str) {
    let error = store(settings).check().await.unwrap_err();
    assert_says(&error, &[&whom.to_string(), hint]);
}

#[tokio::test]
async fn a_port_that_is_not_redis() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    assert_check_says(&in_the_clear(nobody), nobody, "refused").await;
    let http = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_check_says(&in_the_clear(http), http, "host and port in store.url").await;
    let sentinel = at(Address::Sentinel(vec![http.into()], "mymaster".to_owned()));
    assert_check_says(&sentinel, http, "the response is not from a Redis server").await;
    let rude = answering(b"-ERR Parse error at 1\nUnexpected \x1b[31mred\x07\r\n");
    let words = "Parse error at 1 Unexpected [31mred";
    assert_check_says(&in_the_clear(rude), rude, words).await;
}

#[tokio::test]
async fn tls_and_plain_text_mismatch() {
    let encrypted = |address: SocketAddr| {
        let mut settings = in_the_clear(address);
        settings.redis.tls = Some(Tls::default());
        settings.redis.timeouts =
            Timeouts { connect: Duration::from_secs(1), response: Duration::from_secs(1) };
        settings
    };
    let server = RedisServer::start(&[]);
    let plain = server.address();
    assert_check_says(&encrypted(plain), plain, "use redis://").await;
    let encrypting = TlsForwarder::start(plain.port(), &["127.0.0.1"]).await;
    let tls = encrypting.url().trim_start_matches("https://").parse().unwrap();
    assert_check_says(&in_the_clear(tls), tls, "use rediss://").await;
}

#[tokio::test]
async fn single_server_instead_of_a_cluster_or_sentinel() {
    let server = RedisServer::start(&[]);
    let cluster = at(Address::Cluster(vec![server.address().into()]));
    assert_check_says(&cluster, server.address(), "use redis:// in store.url").await;
    let sentinel = at(Address::Sentinel(vec![server.address().into()], "mymaster".to_owned()));
    assert_check_says(&sentinel, server.address(), "this server is not a Sentinel").await;
    let mut database = tcp(&server);
    database.redis.database = 99;
    assert_check_says(&database, server.address(), "at the end of store.url").await;
}

#[tokio::test]
async fn a_server_without_room() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    store.check().await.unwrap();
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = record(&store, minute(), &["s=1"], 1).await.unwrap_err();
    let whom = server.address().to_string();
    assert_says(&error, &["store is full", &whom, "CONFIG SET maxmemory"]);
    assert_eq!(error.to_string().matches("not allowed").count(), 1, "{error}");
}
