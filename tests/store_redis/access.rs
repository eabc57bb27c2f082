//! Tests connections to Redis over TCP and a Unix socket, with a database number, and as a user with minimal rights.

use std::collections::VecDeque;

use redis_link::{Credentials, Endpoint, Secret};

use crate::store_redis::prelude::*;

#[tokio::test]
async fn every_way_to_a_server_and_a_database_of_its_own() {
    let server = RedisServer::start(&[]);
    let mut unix = at(Address::Server(Endpoint::Unix(server.unix_socket().into())));
    let mut by_tcp = tcp(&server);
    (unix.redis.database, by_tcp.redis.database) = (1, 3);
    do_everything(&store(&unix)).await.expect("a Unix socket works");
    do_everything(&store(&by_tcp)).await.expect("a database number works");
    assert_eq!(server.keys(), [""; 0], "there are keys in database 0");
    let store = store(&tcp(&server));
    do_everything(&store).await.expect("by TCP");
    let address = server.address().to_string();
    assert!(store.describe().contains(&address), "{}", store.describe());
}

fn sample_user() -> (String, Vec<String>) {
    let sample = include_str!("../../config/redis-acl.conf");
    let line = sample.lines().find_map(|line| line.strip_prefix("user eds "));
    let rights = line.expect("a user eds").split_whitespace();
    ("eds".to_owned(), rights.map(ToOwned::to_owned).collect())
}

fn as_user(server: &RedisServer, name: &str, rights: &[String]) -> Settings {
    let mut command = vec!["ACL", "SETUSER", name, "reset"];
    command.extend(rights.iter().map(String::as_str));
    server.query::<()>(&command);
    let mut settings = tcp(server);
    settings.redis.credentials =
        Credentials { username: Some(name.to_owned()), password: Some(Secret::new("change-me")) };
    settings
}

/// For every command that a user may not run, the node reports that rights are missing, and where they are documented.
#[tokio::test]
async fn missing_right_is_named() {
    let server = RedisServer::start(&[]);
    let (name, rights) = sample_user();
    // The client library does not report that MULTI or EXEC was refused.
    let commands = rights
        .iter()
        .filter(|right| right.starts_with('+') && !matches!(right.as_str(), "+multi" | "+exec"));
    let mut not_missed = Vec::new();
    for command in commands {
        server.query::<()>(&["FLUSHALL"]);
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        let fewer: Vec<_> = rights.iter().filter(|right| right != &command).cloned().collect();
        match do_everything(&store(&as_user(&server, &name, &fewer))).await {
            Ok(()) => not_missed.push(command.as_str()),
            Err(StoreError::Refused(found)) if found.remedy.contains("redis-acl.conf") => {}
            Err(error) => panic!("without {command}: {error}"),
        }
    }
    println!("granted by the sample, but not needed in this test: {not_missed:?}");
}

/// Checks in, claims, compacts and acknowledges. Adds the sent counts to `sent`, even if an error follows.
async fn send(store: &RedisStore, sent: &mut Sent) -> Result<(), StoreError> {
    let brief = ClaimRequest { lease: Duration::ZERO, ..AT_ONCE };
    report_lag(store, false).await?;
    let outputs = [OutputName::default()];
    let most = outputs.clone().map(|output| (output, 9));
    let mut claims: VecDeque<_> = store.claim(partition(), &brief, &most).await?.into();
    while let Some(claim) = claims.pop_front() {
        if claim.output.is_none() {
            loop {
                let (lease, outputs) = (Duration::ZERO, &outputs);
                let request =
                    SealRequest { series_max: 1, lease, outputs, ..SealRequest::default() };
                let done = store.compact(&claim, &request).await?;
                claims.extend(done.sending);
                if done.left == 0 {
                    break;
                }
            }
            continue;
        }
        let page = store.unsent(&claim, 0).await?;
        for counts in &page.items {
            let values = (counts.unique, counts.cumulative);
            let before = sent.insert(counts.series.clone(), values);
            assert!(before.is_none_or(|before| before == values), "a count has two values");
        }
        let series: Vec<_> = page.items.iter().map(|counts| counts.series.as_str()).collect();
        assert!(store.acknowledge(&claim, &series, Duration::ZERO).await?);
    }
    Ok(())
}

type Sent = BTreeMap<String, (u64, u64)>;

/// A missing right stops a script between two commands, like a slot that is being moved in a cluster.
#[tokio::test]
async fn interrupted_script_loses_no_event() {
    let server = RedisServer::start(&[]);
    let (name, rights) = sample_user();
    let whole = store(&tcp(&server));
    for command in rights.iter().filter(|right| right.starts_with('+')) {
        server.query::<()>(&["FLUSHALL"]);
        let poor = store(&as_user(&server, &name, &rights));
        poor.check().await.unwrap();
        for nanos in [1, 2] {
            record(&whole, minute(), &["s=1", "s=2"], nanos).await.unwrap();
        }
        let fewer = format!("-{}", &command[1..]);
        server.query::<()>(&["ACL", "SETUSER", &name, &fewer]);
        let mut sent = Sent::new();
        let stopped = send(&poor, &mut sent).await;
        server.query::<()>(&["ACL", "SETUSER", &name, command]);

        send(&whole, &mut sent).await.unwrap();
        let expected = ["s=1", "s=2"].map(|series| (series.to_owned(), (1, 2)));
        assert_eq!(sent, Sent::from(expected), "without {command}: {stopped:?}");
        let counts = format!("{{eds:0}}:{}:counts", minute());
        let left: Vec<_> = server.keys();
        let closed =
            ["closed", "outputs", "stamps", "witness"].map(|name| format!("{{eds:0}}:{name}"));
        assert_eq!(
            left,
            [&["eds:settings".to_owned(), counts], &closed[..]].concat(),
            "without {command}: {stopped:?}"
        );
    }
}
