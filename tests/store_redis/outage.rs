//! Tests that every call ends in time while Redis is unreachable, and that nothing is lost.

use futures_util::FutureExt;
use redis_link::Timeouts;

use crate::store_redis::prelude::*;

const LIMIT: Duration = Duration::from_millis(400);

/// The time limit for a call, enough for one response and one connection attempt, but not if callers wait for each other.
const IN_TIME: Duration = Duration::from_secs(4);

const CALLERS: usize = 32;

fn impatient(settings: Settings) -> Settings {
    let timeouts = Timeouts { connect: LIMIT, response: LIMIT };
    let redis = redis_link::Settings { timeouts, ..settings.redis };
    Settings { redis, ..settings }
}

#[track_caller]
fn assert_unavailable(result: &Result<(), StoreError>) {
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
}

async fn until_it_is_back(store: &RedisStore) {
    let deadline = Instant::now() + SOON;
    while let Err(error) = store.check().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn restarted_redis_has_its_data_and_another_generation() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = store(&tcp(&server));
    record(&store, minute(), &["s=1", "s=2"], 1).await.unwrap();
    let generation = store.generation(partition());
    record(&store, minute(), &["s=1", "s=2"], 2).await.unwrap();
    assert_eq!(store.generation(partition()), generation, "changed without reconnecting");
    let claims = claim(&store).await.unwrap();
    compact(&store, &claims[0], 1).await.unwrap();

    server.stop();
    assert_unavailable(&record(&store, minute(), &["s=3"], 1).await);
    assert_ne!(store.generation(partition()), generation, "not changed immediately");
    assert_unavailable(&compact(&store, &claims[0], 1).await.map(drop));
    server.restart();
    until_it_is_back(&store).await;
    assert_ne!(store.generation(partition()), generation);

    record(&store, minute(), &["s=3"], 1).await.unwrap();
    // A claim that was granted over the former connection cannot be used over the new one.
    assert_unavailable(&compact(&store, &claims[0], 1).await.map(drop));
    let again = Claim { generation: store.generation(partition()), ..claims[0].clone() };
    assert_eq!(finish(&store, &again).await.unwrap(), 3);
}

/// As behind a proxy that leads new connections to another server, but does not end the old ones.
#[tokio::test]
async fn connections_to_different_servers_are_noticed() {
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let line = TcpProxy::start(old.address());
    let mut settings = tcp(&old);
    settings.redis.address = Address::Server(line.address().into());
    let store = store(&settings);
    // Connects for draining, but not for recording.
    store.shared([].into_iter()).await.unwrap();
    line.lead_new_to(new.address());
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    let generation = store.generation(partition());
    let checks = [store.check().await, store.check().await];
    // Each looks on another connection, and finds another server than the last look.
    assert!(checks.iter().all(Result::is_err), "{checks:?}");
    assert_ne!(store.generation(partition()), generation);
}

/// The server is replaced by another one while its connections stay open, and does not answer any check in time.
#[tokio::test]
async fn commands_look_at_the_server_while_no_check_is_answered() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    let generation = store.generation(partition());
    // Changes the replication ID.
    server.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    let deadline = Instant::now() + SOON;
    while store.generation(partition()) == generation {
        assert!(Instant::now() < deadline, "the new replication ID was not found");
        let _abandoned = FutureExt::now_or_never(store.check());
        let _ = record(&store, minute(), &["s=1"], 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A recording fails unless it goes to the server that admitted its series, because a different server may not know them.
#[tokio::test]
async fn recording_for_another_generation_is_refused() {
    let mut server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    let generation = store.generation(partition());
    let as_of = |generation| record_as_of(&store, generation, minute(), &["s=2"], 1);
    as_of(generation).await.unwrap();
    server.kill();
    server.restart();
    assert_unavailable(&as_of(generation).await);
    until_it_is_back(&store).await;
    assert_ne!(store.generation(partition()), generation);
    assert_unavailable(&as_of(generation).await);
    assert_eq!(server.keys(), ["eds:settings"]);
    as_of(store.generation(partition())).await.unwrap();
}

/// A promoted server may not have the lag reports, so a claim that relies on them must fail.
#[tokio::test]
async fn claim_uses_the_server_with_the_report_of_lag() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (store, second) = (store(&tcp(&server)), store(&tcp(&server)));
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    report_lag(&store, true).await.unwrap();
    let generation = store.generation(partition());
    let as_of = async |generation| {
        let request = ClaimRequest { generation, ..AT_ONCE };
        store.claim(partition(), &request, &[]).await
    };
    assert_eq!(as_of(generation).await.unwrap(), [], "claimed although a node lags");
    server.stop();
    assert_unavailable(&claim(&store).await.map(drop));
    server.restart();
    // Delete the lag report, as if a replica that had not received it had been promoted.
    let forgotten: i64 = server.query(&["DEL", "{eds:0}:lagging"]);
    assert_eq!(forgotten, 1);
    until_it_is_back(&store).await;
    assert_unavailable(&as_of(generation).await.map(drop));
    assert_eq!(second.backlog(partition()).await.unwrap().waiting, 1);
    let claims = as_of(store.generation(partition())).await.unwrap();
    assert_eq!(claims.len(), 1);
}

#[tokio::test]
async fn refused_connection_is_reported_at_once() {
    let mut server = RedisServer::down(&[]);
    let store = store(&tcp(&server));
    for _ in 0..20 {
        let began = Instant::now();
        assert_unavailable(&store.check().await);
        assert_unavailable(&claim(&store).await.map(drop));
        assert!(began.elapsed() < IN_TIME);
    }
    server.restart();
    until_it_is_back(&store).await;
}

/// Runs every operation over a connection that has died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_on_a_dead_connection_times_out() {
    let server = RedisServer::start(&[]);
    for call in 0..9 {
        let line = TcpProxy::start(server.address());
        let mut settings = impatient(tcp(&server));
        settings.redis.address = Address::Server(line.address().into());
        settings.prefix = format!("eds{call}");
        let store = store(&settings);
        record(&store, minute(), &["s=1"], 1).await.unwrap();
        let claims = claim(&store).await.unwrap();
        let (to_seal, s) = (&claims[0], &store);
        let to_send = &Claim { output: Some(OutputName::default()), ..to_seal.clone() };
        line.set(Traffic::Stall);
        let began = Instant::now();
        let result = match call {
            0 => record(s, minute(), &["s=1"], 2).await,
            1 => claim(s).await.map(drop),
            2 => compact(s, to_seal, 1).await.map(drop),
            3 => s.unsent(to_send, 0).await.map(drop),
            4 => s.acknowledge(to_send, &[], LEASE).await.map(drop),
            5 => s.quarantine(to_send, &[("s=1", "words")]).await.map(drop),
            6 => s.extend(&[to_seal], LEASE).await.map(drop),
            7 => report_lag(s, true).await,
            _ => s.check().await,
        };
        let took = began.elapsed();
        assert_unavailable(&result);
        assert!(took < IN_TIME, "call {call} took {took:?}");
    }
}

/// Many callers send more data than the socket buffers hold, first over the dead connection, then while reconnecting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_time_out_independently_on_a_dead_connection() {
    let server = RedisServer::start(&[]);
    let line = TcpProxy::start(server.address());
    let mut settings = impatient(tcp(&server));
    settings.redis.address = Address::Server(line.address().into());
    let store = Arc::new(store(&settings));
    record(&store, minute(), &["s=1"], 1).await.unwrap();
    line.set(Traffic::Stall);
    let names: Vec<_> = (0..2000).map(|i| format!("s={i:0200}")).collect();
    let names = Arc::new(names);
    for round in 0..4 {
        let callers = (0..CALLERS).map(|_| {
            let (store, names) = (Arc::clone(&store), Arc::clone(&names));
            tokio::spawn(async move {
                let series: Vec<_> = names.iter().map(String::as_str).collect();
                let began = Instant::now();
                let result = record(&store, minute(), &series, 2).await;
                (result, began.elapsed())
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            let (result, took) = caller.await.unwrap();
            assert_unavailable(&result);
            assert!(took < IN_TIME, "in round {round}: {took:?}");
        }
    }
    line.set(Traffic::Open);
    until_it_is_back(&store).await;
    record(&store, minute(), &["s=1"], 1).await.unwrap();
}

/// While one caller reconnects, all others get the last error immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_caller_waits_for_a_connection() {
    let server = RedisServer::start(&[]);
    let line = TcpProxy::start(server.address());
    let mut settings = impatient(tcp(&server));
    settings.redis.address = Address::Server(line.address().into());
    // Connecting takes longer than getting the last error.
    settings.redis.timeouts.connect = 2 * IN_TIME;
    line.set(Traffic::Stall);
    let store = Arc::new(store(&settings));
    // The first caller has to wait, because there is no last error yet.
    assert_unavailable(&claim(&store).await.map(drop));
    let began = Instant::now();
    let mut refused = 0;
    let mut waiting = Vec::new();
    while refused < CALLERS {
        let caller = Arc::clone(&store);
        let mut call = tokio::spawn(async move { claim(&caller).await.map(drop) });
        match tokio::time::timeout(IN_TIME, &mut call).await {
            Ok(result) => {
                assert_unavailable(&result.unwrap());
                refused += 1;
            }
            Err(_elapsed) => waiting.push(call),
        }
        assert!(waiting.len() <= 1 && began.elapsed() < SOON);
        // All callers get the last error until the pause after the first attempt has ended. Then a single caller reconnects.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
