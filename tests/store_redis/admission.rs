//! Tests how admissions are stored in Redis, and for how long.

use crate::store_redis::prelude::*;

const COUNTS: &str = "20161204:1118:counts";

async fn admit(store: &RedisStore, series: &[&str]) -> Result<Admitted, StoreError> {
    let request = AdmitRequest { minute: minute(), series, series_max: 100, overflow: "o=1" };
    store.admit(partition(), &request).await
}

fn key(server: &RedisServer, name: &str) -> String {
    let keys: Vec<String> = server.query(&["KEYS", &format!("*{name}")]);
    let [key] = &keys[..] else {
        panic!("{keys:?}");
    };
    key.clone()
}

fn time_to_live(server: &RedisServer) -> Duration {
    let millis: i64 = server.query(&["PTTL", &key(server, COUNTS)]);
    Duration::from_millis(u64::try_from(millis).unwrap())
}

/// A script that cannot read a set, for example because its slot is being moved, leaves the minute unchanged.
#[tokio::test]
async fn failed_admission_leaves_no_key_without_expiry() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    admit(&store, &["s=0"]).await.unwrap();
    let counts = key(&server, COUNTS);
    server.query::<()>(&["DEL", &counts]);
    let broken = counts.replace("counts", "unique_user:s=2");
    server.query::<()>(&["SET", &broken, "not a set"]);

    admit(&store, &["s=1", "s=2"]).await.unwrap_err();
    let left: Vec<String> = server.query(&["KEYS", &format!("*{COUNTS}")]);
    assert_eq!(left, Vec::<String>::new());
    server.query::<()>(&["DEL", &broken]);
    admit(&store, &["s=1", "s=2"]).await.unwrap();
    assert!(time_to_live(&server) > Duration::from_secs(7100));
}

/// While `input.max_age` is being reduced, nodes with the old value may still accept events of the minute.
#[tokio::test]
async fn admission_never_shortens_the_time_to_live() {
    let server = RedisServer::start(&[]);
    let long = store(&tcp(&server));
    admit(&long, &["s=1"]).await.unwrap();
    record(&long, minute(), &["s=1"], 1).await.unwrap();
    let claims = claim(&long).await.unwrap();
    assert_eq!(finish(&long, &claims[0]).await.unwrap(), 1);

    let mut settings = at(tcp(&server).redis.address);
    settings.retention = Duration::from_secs(60);
    admit(&store(&settings), &["s=2"]).await.unwrap();
    assert!(time_to_live(&server) > Duration::from_secs(7100));
}

/// Redis searches a listpack sequentially, so it is used for only a few series.
#[tokio::test]
async fn many_series_use_a_hash_table_and_few_a_listpack() {
    let server = RedisServer::start(&[]);
    let store = store(&tcp(&server));
    let series: Vec<_> = (0..33).map(|number| format!("s={number}")).collect();
    let series: Vec<&str> = series.iter().map(String::as_str).collect();
    for admitted in 1..=33 {
        admit(&store, &series[..admitted]).await.unwrap();
        let counts = key(&server, COUNTS);
        let kept: String = server.query(&["OBJECT", "ENCODING", &counts]);
        assert_eq!(kept == "hashtable", admitted == 33, "{admitted}: {kept}");
        let fields: BTreeMap<String, String> = server.query(&["HGETALL", &counts]);
        let expected = series[..admitted].iter();
        let expected = expected.map(|&series| (series.to_owned(), String::new()));
        assert_eq!(fields, expected.collect());
    }
}
