//! A node's Redis store, and the operations from recording an event to acknowledging its counts.

use std::num::NonZeroU16;

use event_data_service::event::{Batch, Minute, Partition, Partitions};
use event_data_service::store::redis::{Layout, RedisStore, Settings};
use event_data_service::store::{
    AdmitRequest, Bucket, CheckIn, Claim, ClaimRequest, Compaction, Draining, Known, OutputName,
    RecordRequest, Recording, Records, SealRequest, Store, StoreError, Testimony,
};
use redis_link::Address;
use testing::prelude::*;
use testing::redis::patient;

const STEPS_MAX: usize = 2000;

pub(crate) const LEASE: Duration = Duration::from_secs(600);

pub(crate) const AT_ONCE: ClaimRequest = ClaimRequest {
    generation: 0,
    grace: Duration::ZERO,
    max_hold: LEASE,
    lease: LEASE,
    lapsed_max: 100,
    finished_max: 100,
    old_max: 100,
    known: NOTHING_KNOWN,
};

const NOTHING_KNOWN: Known = Known { epoch: 0, stamp: 0, sequence: 0, expected_ms: None };

pub(crate) fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::MIN)
}

pub(crate) fn partition() -> Partition {
    partitions().iter().next().unwrap()
}

pub(crate) fn minute() -> Minute {
    "20161204:1118".parse().unwrap()
}

/// A second minute, because the first minute is closed once its counts have been acknowledged.
pub(crate) fn next_minute() -> Minute {
    "20161204:1119".parse().unwrap()
}

pub(crate) fn tcp(server: &RedisServer) -> Settings {
    by(server.settings())
}

pub(crate) fn at(address: Address) -> Settings {
    by(patient(address))
}

fn by(redis: redis_link::Settings) -> Settings {
    Settings {
        redis,
        prefix: "eds".to_owned(),
        partitions: partitions(),
        layout: Layout::Sets,
        retention: Duration::from_secs(7200),
        counts_max: 1_000_000,
        node: "node".to_owned(),
    }
}

pub(crate) fn store(settings: &Settings) -> RedisStore {
    RedisStore::new(settings).unwrap()
}

/// Records one event in each series, at this offset in nanoseconds from the beginning of the minute.
pub(crate) async fn record(
    store: &RedisStore,
    minute: Minute,
    series: &[&str],
    nanos: i64,
) -> Result<(), StoreError> {
    record_as_of(store, 0, minute, series, nanos).await
}

/// Like [`record`], but with this generation.
pub(crate) async fn record_as_of(
    store: &RedisStore,
    generation: u64,
    minute: Minute,
    series: &[&str],
    nanos: i64,
) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    for series in series {
        assert!(batch.push(minute, series, "user", minute.start_nanos() + nanos));
    }
    let recordings: Vec<_> = batch
        .groups()
        .iter()
        .map(|group| RecordRequest {
            new_users: Some(vec!["user"]),
            ..RecordRequest::new(&batch, group)
        })
        .collect();
    let records = Records { generation, requests: &recordings, seen: &[] };
    store.record(partition(), &records).await.map(|_| ())
}

pub(crate) async fn claim(store: &RedisStore) -> Result<Vec<Claim>, StoreError> {
    let sending = [(OutputName::default(), AT_ONCE.lapsed_max)];
    store.claim(partition(), &AT_ONCE, &sending).await
}

pub(crate) async fn report_lag(store: &RedisStore, lags: bool) -> Result<(), StoreError> {
    let alive = Duration::ZERO;
    let check_in = CheckIn { known: NOTHING_KNOWN, lags, lease: LEASE, alive };
    store.check_in(partition(), &check_in).await.map(drop)
}

pub(crate) async fn compact(
    store: &RedisStore,
    claim: &Claim,
    series_max: usize,
) -> Result<Compaction, StoreError> {
    let outputs = &[OutputName::default()];
    store
        .compact(
            claim,
            &SealRequest { series_max, lease: LEASE, outputs, ..SealRequest::default() },
        )
        .await
}

pub(crate) async fn seal(
    store: &RedisStore,
    claim: &Claim,
    series_max: usize,
) -> Result<Claim, StoreError> {
    for _ in 0..STEPS_MAX {
        let mut done = compact(store, claim, series_max).await?;
        if done.left == 0 {
            return Ok(done.sending.remove(0));
        }
    }
    panic!("sealing does not end")
}

/// Seals the minute if necessary, and acknowledges all counts. Returns the number of series.
pub(crate) async fn finish(store: &RedisStore, claim: &Claim) -> Result<usize, StoreError> {
    let claim = &match claim.output {
        Some(_) => claim.clone(),
        None => seal(store, claim, 200).await?,
    };
    let mut unsent = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = store.unsent(claim, at).await?;
        unsent.extend(page.items);
        cursor = page.next;
    }
    let series: Vec<_> = unsent.iter().map(|counts| counts.series.as_str()).collect();
    assert!(store.acknowledge(claim, &series, LEASE).await?);
    Ok(series.len())
}

pub(crate) async fn drain_all(store: &RedisStore) -> Result<(), StoreError> {
    match store.check().await {
        Ok(()) | Err(StoreError::Full(_)) => {}
        Err(error) => return Err(error),
    }
    let claims = claim(store).await?;
    assert!(!claims.is_empty(), "there is nothing to claim");
    for claim in &claims {
        let claim = &seal(store, claim, 1).await?;
        let page = store.unsent(claim, 0).await?;
        let series = &page.items[0].series;
        assert_eq!(store.quarantine(claim, &[(series, "message")]).await?, [true]);
        assert_eq!(store.extend(&[claim], LEASE).await?, 1);
        report_lag(store, true).await?;
        report_lag(store, false).await?;
        store.backlog(partition()).await?;
        finish(store, claim).await?;
    }
    Ok(())
}

pub(crate) async fn do_everything(store: &RedisStore) -> Result<(), StoreError> {
    store.check().await?;
    store.attest(partition(), &Testimony::default()).await?;
    let request =
        AdmitRequest { minute: minute(), series: &["s=1", "s=2"], series_max: 10, overflow: "o=1" };
    store.admit(partition(), &request).await?;
    record(store, minute(), &["s=1", "s=2"], 1).await?;
    let bucket = Bucket { partition: partition(), minute: minute() };
    store.users(bucket, "s=1", &["user"]).await?;
    store.look_for_leftovers().await?;
    drain_all(store).await
}
