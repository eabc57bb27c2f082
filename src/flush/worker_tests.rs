//! What is reported to the other nodes while a round takes long.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::*;
use crate::event::{Batch, Minute, Partition};
use crate::node::Node;
use crate::output::{SealedCounts, WriteError};
use crate::store::memory::MemoryStore;
use crate::store::{
    Announced, Attested, Backlog, ClaimRequest, Compaction, Known, News, Page, RecordRequest,
    Recording, SeriesCounts, Store, Testimony,
};
use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, Holder, Locking, Name};

use crate::flush::{Destination, Flush};
use crate::output::Output;

const LEASE: Duration = Duration::from_secs(30);
const START_MICROS: i64 = 1_480_876_800_000_000;

/// An output that takes nothing, and how many write to it at the same time.
#[derive(Debug)]
struct Down {
    write_takes: Duration,
    writes: AtomicUsize,
    writing: AtomicUsize,
    writing_max: AtomicUsize,
}

#[async_trait]
impl Output for Down {
    async fn write(&self, _: &[SealedCounts]) -> Result<(), WriteError> {
        self.writes.fetch_add(1, Relaxed);
        let writing = self.writing.fetch_add(1, Relaxed) + 1;
        self.writing_max.fetch_max(writing, Relaxed);
        tokio::time::sleep(self.write_takes).await;
        self.writing.fetch_sub(1, Relaxed);
        Err(WriteError::Unavailable {
            reason: "down".to_owned(),
            retry_after: None,
        })
    }

    async fn probe(&self, _: Minute) -> Result<(), WriteError> {
        self.write(&[]).await
    }

    fn describe(&self) -> String {
        "nobody".to_owned()
    }

    // Each write is of claims.
    fn has_server(&self) -> bool {
        false
    }
}

/// A store that takes long to seal.
#[derive(Debug)]
struct Slow {
    store: MemoryStore,
    compacting: Notify,
    compact_takes: Duration,
}

#[async_trait]
impl Store for Slow {
    async fn check(&self) -> Result<(), StoreError> {
        self.store.check().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.store.generation(partition)
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}

#[async_trait]
impl Draining for Slow {
    async fn attest(&self, at: Partition, all: &Testimony) -> Result<Attested, StoreError> {
        self.store.attest(at, all).await
    }

    async fn check_in(
        &self,
        at: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
        alive: Duration,
    ) -> Result<News, StoreError> {
        self.store.check_in(at, known, lags, lease, alive).await
    }

    async fn claim(
        &self,
        at: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        self.store.claim(at, request, sending).await
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        outputs: &[OutputName],
    ) -> Result<Compaction, StoreError> {
        self.compacting.notify_one();
        tokio::time::sleep(self.compact_takes).await;
        self.store.compact(claim, series_max, lease, outputs).await
    }

    async fn unsent(&self, claim: &Claim, from: u64) -> Result<Page<SeriesCounts>, StoreError> {
        self.store.unsent(claim, from).await
    }

    async fn announce(
        &self,
        at: Partition,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        self.store.announce(at, known, claims).await
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        self.store.acknowledge(claim, series, lease).await
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.quarantine(claim, refused).await
    }

    async fn extend(
        &self,
        at: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        self.store.extend(at, claims, lease).await
    }

    async fn backlog(&self, at: Partition) -> Result<Backlog, StoreError> {
        self.store.backlog(at).await
    }

    async fn have_work(
        &self,
        all: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.have_work(all, outputs).await
    }
}

/// Tokio's paused clock, as the time of day.
#[derive(Debug, Clone, Copy)]
struct Time(Instant);

impl Time {
    fn micros(self) -> i64 {
        START_MICROS + i64::try_from(self.0.elapsed().as_micros()).unwrap()
    }
}

impl coordination::memory::Clock for Time {
    fn now_us(&self) -> u64 {
        self.micros().unsigned_abs()
    }
}

/// What the nodes share.
struct Site {
    time: Time,
    partitions: Partitions,
    store: MemoryStore,
    output: Arc<Down>,
    arbiter: Arc<MemoryArbiter>,
}

impl Site {
    fn new(write_takes: Duration) -> Self {
        let time = Time(Instant::now());
        let partitions = Partitions::new(NonZeroU16::MIN);
        let hour = Duration::from_secs(3600);
        let clock = Arc::new(move || time.micros());
        Self {
            time,
            store: MemoryStore::new("nobody", &partitions, hour, u64::MAX, clock),
            partitions,
            output: Arc::new(Down {
                write_takes,
                writes: AtomicUsize::new(0),
                writing: AtomicUsize::new(0),
                writing_max: AtomicUsize::new(0),
            }),
            arbiter: Arc::new(MemoryArbiter::new(Arc::new(time))),
        }
    }

    fn partition(&self) -> Partition {
        self.partitions.of("a=1", Minute::MIN)
    }

    fn start(&self, name: &str, node: &Arc<Node>, compact_takes: Duration) -> Arc<Slow> {
        let time = self.time;
        let store = Arc::new(Slow {
            store: self
                .store
                .shared_with(name, Arc::new(move || time.micros())),
            compacting: Notify::new(),
            compact_takes,
        });
        let arbiter = Arc::clone(&self.arbiter) as Arc<dyn Arbiter>;
        let destination = Destination {
            name: OutputName::default(),
            output: Arc::clone(&self.output) as Arc<dyn Output>,
            write_counts_max: 100,
        };
        let flush = Flush {
            store: Arc::clone(&store) as Arc<dyn Draining>,
            outputs: vec![destination],
            arbiter,
            partitions: self.partitions.clone(),
            settings: FlushSettings {
                interval: Duration::from_secs(1),
                grace: Duration::from_secs(1),
                max_hold: Duration::from_secs(2),
                lease: LEASE,
            },
            witness_file: None,
            metrics: Arc::new(Metrics::new(Arc::clone(node))),
            node: Arc::clone(node),
            stop: CancellationToken::new(),
            recorded: CancellationToken::new(),
        };
        for task in flush.into_tasks().unwrap() {
            tokio::spawn(task);
        }
        store
    }
}

async fn record(store: &MemoryStore, partition: Partition) {
    let mut batch = Batch::default();
    let nanos = (START_MICROS - 100_000_000) * 1000;
    assert!(batch.push(Minute::of_nanos(nanos), "a=1", "user", nanos));
    let group = &batch.groups()[0];
    let recording = RecordRequest {
        minute: group.minute,
        series: "a=1",
        overflowed_from: None,
        new_users: Some(vec!["user"]),
        occurrences: &group.occurrences,
        batch: &batch,
    };
    store.record(partition, 1, &[recording], &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_says_so_however_long_its_round_takes() {
    let (site, node) = (Site::new(Duration::ZERO), Arc::<Node>::default());
    let partition = site.partition();
    record(&site.store, partition).await;
    node.lag.set(partition, true);
    let store = site.start("node", &node, 10 * LEASE);
    store.compacting.notified().await;
    let lagging_for = || {
        let until_ms = site
            .store
            .look(|state| state.partitions[0].lagging.get("node").copied());
        until_ms.unwrap_or_default() - site.time.micros() / 1000
    };
    tokio::time::sleep(3 * LEASE).await;
    assert_eq!(site.output.writes.load(Relaxed), 0, "it is in one round");
    assert!(lagging_for() > 0, "{} ms", lagging_for());
    node.lag.set(partition, false);
    tokio::time::sleep(3 * LEASE).await;
    assert!(lagging_for() <= 0, "{} ms", lagging_for());
}

#[tokio::test(start_paused = true)]
async fn one_node_at_a_time_probes_an_output_that_is_down_and_the_turn_of_a_dead_one_lapses() {
    let site = Site::new(Duration::from_secs(3));
    // Of a node that died: nobody renews it.
    let turn = Name::of_mutex("probe-default").unwrap();
    let dead = Holder::random();
    let took = site.arbiter.lock(&turn, &dead, 10 * LEASE, None).await;
    assert!(matches!(took, Ok(Locking::Granted(_))), "{took:?}");
    record(&site.store, site.partition()).await;
    for name in ["a", "b", "c"] {
        site.start(name, &Arc::default(), Duration::ZERO);
    }
    tokio::time::sleep(9 * LEASE).await;
    let first = site.output.writes.swap(0, Relaxed);
    assert!(
        (1..=3).contains(&first),
        "{first} found out that it is down"
    );
    site.output.writing_max.store(0, Relaxed);
    tokio::time::sleep(9 * LEASE).await;
    let probes = site.output.writes.load(Relaxed);
    assert!(probes > 1, "{probes} probes");
    // One that did not know yet may write once while another one probes.
    let at_once = site.output.writing_max.load(Relaxed);
    assert!(
        (1..=4 - first).contains(&at_once),
        "{at_once} at once, {first} knew"
    );
}
