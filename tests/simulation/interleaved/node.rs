//! A node with its store, its calls in flight, and what it knows.

use std::collections::HashMap;
use std::num::NonZeroU16;

use event_data_service::event::{Batch, Minute, Partition, Partitions};
use event_data_service::store::redis::{Layout, RedisStore, Settings};
use event_data_service::store::{
    AdmitRequest, Claim, ClaimRequest, Compaction, Draining as _, Known, OutputName, RecordRequest,
    Recording as _, Records, SealRequest, Seen, Store as _, StoreError,
};
use testing::prelude::*;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::oracle::{Counts, Event};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Record,
    Drain,
}

pub(super) const LEASE: Duration = Duration::from_secs(10);
/// How long counts are kept after they have been sent.
pub(super) const RETENTION: Duration = Duration::from_secs(300);

/// The interval at which a node sends unchanged coverage again, because the store keeps coverage only for a limited time.
const RENEWED_MICROS: i64 = 30_000_000;

#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) number: usize,
    pub(super) events: Vec<Event>,
    generation: u64,
    admits: bool,
    seen: Vec<Seen>,
    at_micros: i64,
}

#[derive(Debug)]
pub(super) enum Ended {
    Recorded(Arc<Recorded>, Result<(), StoreError>),
    Claimed(Result<Vec<Claim>, StoreError>),
    Sealed(Claim, Result<Compaction, StoreError>),
    /// The claim to send, and whether it has ended.
    Sent(Claim, Result<bool, StoreError>),
    Extended(Result<usize, StoreError>),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    /// Seal or send up to this many series.
    Go(usize),
    Extend,
}

pub(super) type Sender = UnboundedSender<(usize, Task, Ended)>;

pub(super) type Reads = Arc<Mutex<Vec<(Claim, Counts)>>>;

pub(super) struct Node {
    pub(super) number: usize,
    pub(super) store: Arc<RedisStore>,
    outputs: Vec<OutputName>,
    pub(super) claims: Vec<Claim>,
    /// For each minute, how many events the node has seen, and when it last sent that number to the store.
    seen: HashMap<Minute, (u64, Option<i64>)>,
    pub(super) recording: Option<Arc<Recorded>>,
    under_way: [Option<AbortHandle>; 2],
    /// Whether the connection was lost, so that it must be replaced before the next call.
    pub(super) is_cut: bool,
}

/// Returns the store of a node with a single partition.
pub(super) fn store(redis: redis_link::Settings, name: &str) -> RedisStore {
    let settings = Settings {
        redis,
        prefix: "eds".to_owned(),
        partitions: Partitions::new(NonZeroU16::MIN),
        layout: Layout::Log,
        retention: RETENTION,
        counts_max: 1_000_000,
        node: name.to_owned(),
    };
    RedisStore::new(&settings).unwrap()
}

pub(super) fn partition() -> Partition {
    Partitions::new(NonZeroU16::MIN).iter().next().unwrap()
}

pub(super) fn minute_of(timestamp: i64) -> Minute {
    Minute::of_nanos(timestamp)
}

impl Node {
    /// Starts a new process of a node with these outputs.
    pub(super) async fn start(number: usize, store: RedisStore, names: &[&str]) -> Self {
        let mut node = Self {
            number,
            store: Arc::new(store),
            outputs: names.iter().map(|name| name.parse().unwrap()).collect(),
            claims: Vec::new(),
            seen: HashMap::new(),
            recording: None,
            under_way: [None, None],
            is_cut: true,
        };
        node.connect().await;
        node
    }

    pub(super) async fn connect(&mut self) {
        let mut last = Ok(());
        for _ in 0..10 {
            last = self.store.check().await;
            if last.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        last.expect("a connection");
        self.is_cut = false;
    }

    pub(super) fn is_busy(&self, task: Task) -> bool {
        self.under_way[task as usize].is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.iter().all(Option::is_none)
    }

    pub(super) fn abort(&mut self, task: Task) {
        if let Some(call) = self.under_way[task as usize].take() {
            call.abort();
        }
        if task == Task::Record {
            self.recording = None;
        }
    }

    pub(super) fn ended(&mut self, task: Task) {
        self.under_way[task as usize] = None;
    }

    fn begin(
        &mut self,
        done: &Sender,
        task: Task,
        call: impl Future<Output = Ended> + Send + 'static,
    ) {
        let (done, number) = (done.clone(), self.number);
        let call = tokio::spawn(async move {
            let ended = call.await;
            // Ignore the error if the schedule has ended.
            let _ = done.send((number, task, ended));
        });
        self.under_way[task as usize] = Some(call.abort_handle());
    }

    pub(super) fn record(
        &mut self,
        done: &Sender,
        number: usize,
        events: Vec<Event>,
        admits: bool,
        now_micros: i64,
    ) {
        let mut seen = BTreeMap::new();
        for (_, _, timestamp) in &events {
            let minute = minute_of(*timestamp);
            let (events, renewed) = self.seen.entry(minute).or_default();
            *events += 1;
            let renew = renewed.is_none_or(|at| now_micros - at >= RENEWED_MICROS);
            let events = *events;
            seen.insert(minute, Seen { minute, events, renew });
        }
        let recorded = Arc::new(Recorded {
            number,
            generation: self.store.generation(partition()),
            events,
            admits,
            seen: seen.into_values().collect(),
            at_micros: now_micros,
        });
        self.recording = Some(Arc::clone(&recorded));
        let store = Arc::clone(&self.store);
        self.begin(done, Task::Record, async move {
            let result = record(&store, &recorded).await;
            Ended::Recorded(recorded, result)
        });
    }

    pub(super) fn learn(&mut self, recorded: &Recorded) {
        for seen in recorded.seen.iter().filter(|seen| seen.renew) {
            let entry = self.seen.entry(seen.minute).or_default();
            entry.1 = Some(recorded.at_micros);
        }
    }

    pub(super) fn claim(&mut self, done: &Sender, lapsed_max: usize) {
        let (store, outputs) = (Arc::clone(&self.store), self.outputs.clone());
        let request = request(lapsed_max);
        self.begin(done, Task::Drain, async move {
            let sending: Vec<_> = outputs.into_iter().map(|output| (output, lapsed_max)).collect();
            Ended::Claimed(store.claim(partition(), &request, &sending).await)
        });
    }

    pub(super) fn work(&mut self, done: &Sender, claim: Claim, work: Work, reads: &Reads) {
        let reads = Arc::clone(reads);
        let (store, outputs) = (Arc::clone(&self.store), self.outputs.clone());
        self.begin(done, Task::Drain, async move {
            match work {
                Work::Extend => Ended::Extended(store.extend(&[&claim], LEASE).await),
                Work::Go(most) if claim.output.is_none() => {
                    let request = SealRequest {
                        series_max: most,
                        lease: LEASE,
                        outputs: &outputs,
                        ..SealRequest::default()
                    };
                    let step = store.compact(&claim, &request).await;
                    Ended::Sealed(claim, step)
                }
                Work::Go(most) => {
                    let result = send(&store, &claim, most, &reads).await;
                    Ended::Sent(claim, result)
                }
            }
        });
    }
}

fn request(lapsed_max: usize) -> ClaimRequest {
    ClaimRequest {
        generation: 0,
        grace: Duration::ZERO,
        max_hold: LEASE,
        lease: LEASE,
        lapsed_max,
        finished_max: 1,
        old_max: 100,
        known: Known { epoch: 0, stamp: 0, sequence: 0, expected_ms: None },
    }
}

/// Makes Redis load all scripts, so that a schedule does not depend on earlier schedules.
pub(super) async fn load_scripts(store: &RedisStore, event: Event) {
    let (number, generation, at_micros) = (0, 0, 0);
    let events = vec![event];
    let recorded =
        Recorded { number, events, generation, admits: true, seen: Vec::new(), at_micros };
    record(store, &recorded).await.unwrap();
    let claims = store.claim(partition(), &request(1), &[]).await.unwrap();
    store.extend(&[&claims[0]], LEASE).await.unwrap();
    let outputs = &[OutputName::default()];
    let request = SealRequest { series_max: 1, lease: LEASE, outputs, ..SealRequest::default() };
    let sealed = store.compact(&claims[0], &request).await.unwrap();
    assert!(send(store, &sealed.sending[0], 1, &Reads::default()).await.unwrap());
}

async fn record(store: &RedisStore, recorded: &Recorded) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    for (series, user, timestamp) in &recorded.events {
        assert!(batch.push(minute_of(*timestamp), series, user, *timestamp));
    }
    let mut recordings = Vec::new();
    for group in batch.groups() {
        if recorded.admits {
            let request = AdmitRequest {
                minute: group.minute,
                series: &[&group.series],
                series_max: 100,
                overflow: "overflow",
            };
            store.admit(partition(), &request).await?;
        }
        recordings.push(RecordRequest::new(&batch, group));
    }
    let Recorded { generation, seen, .. } = recorded;
    let records = Records { generation: *generation, requests: &recordings, seen };
    store.record(partition(), &records).await.map(drop)
}

/// Reads unsent counts, and acknowledges up to this many of them.
async fn send(
    store: &RedisStore,
    claim: &Claim,
    most: usize,
    reads: &Reads,
) -> Result<bool, StoreError> {
    let mut read = Counts::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = store.unsent(claim, at).await?;
        let counts = page.items.into_iter();
        read.extend(counts.map(|item| (item.series, (item.unique, item.cumulative))));
        cursor = page.next;
    }
    let read: Counts = read.into_iter().take(most).collect();
    reads.lock().unwrap().push((claim.clone(), read.clone()));
    let series: Vec<_> = read.keys().map(String::as_str).collect();
    store.acknowledge(claim, &series, LEASE).await
}
