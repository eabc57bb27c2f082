//! Plays the steps of a sequence on both stores, and holds their answers and what is in them against each other.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_data_service::event::{Minute, Partition, overflow_series};
use event_data_service::store::memory::{MemoryStore, State};
use event_data_service::store::redis::Layout;
use event_data_service::store::{Claim, Known, SeriesCounts, StoreError};
use redis::pipe;

use super::answers::{Both, Epochs, text};
use super::ground::{Ground, Node, partition, partitions};
use super::keys;
use super::step::{At, NODES, PARTITIONS, Pick, SERIES, Step, USERS, millis};

/// Far longer than counts of logs may be old.
const SOON: Duration = Duration::from_secs(5);

/// The data of both stores at one moment.
struct Saved {
    /// Name, when it expires, content.
    redis: Vec<(String, i64, Vec<u8>)>,
    memory: State,
}

/// Both stores, and what the nodes of a sequence have seen of them.
pub(crate) struct World<'a> {
    pub(super) ground: &'a mut Ground,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) nodes: Vec<Arc<dyn Node>>,
    /// Of Redis, and of the model.
    pub(super) epochs: [Epochs; 2],
    /// All that were granted.
    pub(super) claims: Vec<Claim>,
    /// The epoch is its number.
    pub(super) known: [[Known; PARTITIONS as usize]; NODES],
    saved: Option<Saved>,
    /// How many epochs the model had.
    pub(super) model_epochs: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(ground: &'a mut Ground) -> Self {
        let (memory, nodes) = ground.clear();
        Self {
            ground,
            memory,
            nodes,
            epochs: Default::default(),
            claims: Vec::new(),
            known: Default::default(),
            saved: None,
            model_epochs: 0,
        }
    }

    pub(super) fn in_logs(&self) -> bool {
        self.ground.layout == Layout::Log
    }

    /// What differs between the stores now, key by key; of logs, what they come to.
    pub(crate) async fn different(&mut self) -> Vec<String> {
        let [real, model] = &mut self.epochs;
        let redis = keys::of_redis(&mut self.ground.connection, |epoch| real.number(epoch));
        let tags = &self.ground.tags;
        let model = self
            .memory
            .look(|state| keys::of_memory(state, tags, |epoch| model.number(epoch)));
        if !self.in_logs() {
            return keys::different(&redis, &model);
        }
        let mut different = keys::different(&redis, &keys::without_sets(model));
        for partition in partitions().iter() {
            different.extend(self.different_in_logs(partition).await);
        }
        different
    }

    /// Counts of logs may be some ms old.
    async fn different_in_logs(&self, partition: Partition) -> Option<String> {
        let minutes = self.memory.look(|state| {
            let minutes = &state.partitions[partition.index()].minutes;
            minutes.keys().copied().collect::<Vec<_>>()
        });
        for minute in minutes {
            let model = open(&*self.nodes[0], partition, minute).await;
            let deadline = Instant::now() + SOON;
            loop {
                let redis = open(&*self.ground.nodes[0], partition, minute).await;
                if redis == model {
                    break;
                }
                if Instant::now() > deadline {
                    return Some(format!(
                        "open in {minute}\n    redis:  {redis:?}\n    memory: {model:?}"
                    ));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        None
    }

    /// Asks a node of each store.
    pub(super) async fn both<T: Debug>(
        &self,
        node: usize,
        ask: impl AsyncFn(&dyn Node) -> Result<T, StoreError>,
    ) -> Both {
        let redis = ask(&*self.ground.nodes[node]).await;
        Both::of(text(&redis), text(&ask(&*self.nodes[node]).await))
    }

    pub(crate) async fn play(&mut self, step: &Step) -> Both {
        match step {
            Step::Move { micros } => {
                self.ground.set_clock(self.ground.micros() + micros);
                self.expire();
                Both::nothing()
            }
            Step::Save => self.save(),
            Step::GoBack => self.go_back(),
            Step::Crowd { at, minute } => self.crowd(*at, *minute).await,
            &Step::FillQuarantine {
                partition,
                output,
                room,
            } => self.fill_quarantine(partition, output, room),
            Step::Admit {
                at,
                minute,
                series,
                series_max,
            } => {
                let names: Vec<_> = series.iter().map(|&series| SERIES[series]).collect();
                self.admit(*at, minute_of(*minute), &names, *series_max)
                    .await
                    .0
            }
            // Nodes look again at what is new in logs, and hear of a store that went back by its generation.
            Step::Users { .. } | Step::Read { .. } if self.in_logs() => Both::nothing(),
            Step::Users {
                at,
                minute,
                series,
                users,
            } => {
                let names: Vec<_> = users.iter().map(|&user| USERS[user]).collect();
                let series = series_name(at.partition, *series);
                self.both(at.node, async |node| {
                    node.users(partition(at.partition), minute_of(*minute), &series, &names)
                        .await
                })
                .await
            }
            Step::Record {
                at,
                events,
                series_max,
                known_user,
                stale,
            } => {
                self.record(*at, events, *series_max, *known_user, *stale)
                    .await
            }
            Step::Attest {
                at,
                known,
                since,
                closed,
                announced,
            } => self.attest(*at, *known, *since, (closed, announced)).await,
            &Step::CheckIn {
                at,
                known,
                lags,
                lease_ms,
            } => self.check_in(at, known, lags, lease_ms).await,
            Step::Claim { .. } => self.claim(step).await,
            Step::Announce { node, claim, .. }
            | Step::Compact { node, claim, .. }
            | Step::Unsent { node, claim }
            | Step::Acknowledge { node, claim, .. }
            | Step::Quarantine { node, claim, .. } => match self.picked(*node, claim) {
                Some(claim) => self.work(*node, &claim, step).await,
                None => Both::nothing(),
            },
            Step::Extend {
                at,
                claims,
                lease_ms,
            } => self.extend(*at, claims, *lease_ms).await,
            &Step::Requeue {
                partition,
                output,
                nth,
                most,
            } => self.requeue(partition, output, nth, most).await,
            &Step::Discard {
                partition,
                output,
                nth,
                most,
                altered,
            } => self.discard((partition, output), nth, most, altered).await,
            &Step::DropOutput { partition, output } => self.drop_output(partition, output).await,
            &Step::Read {
                partition,
                minute,
                most,
            } => self.read(partition, minute, most).await,
        }
    }

    async fn extend(&self, at: At, claims: &[Pick], lease_ms: u64) -> Both {
        let claims = claims.iter().filter_map(|pick| self.picked(at.node, pick));
        let claims: Vec<_> = claims
            .filter(|claim| claim.partition.index() == at.partition)
            .collect();
        let first = claims.first().map(|claim| claim.output.clone());
        let is_same = |claim: &&Claim| Some(&claim.output) == first.as_ref();
        let claims: Vec<_> = claims.iter().filter(is_same).collect();
        self.both(at.node, async |node| {
            node.extend(partition(at.partition), &claims, millis(lease_ms))
                .await
        })
        .await
    }

    fn save(&mut self) -> Both {
        let names = self.ground.names("*");
        let mut dump = pipe();
        for name in &names {
            dump.cmd("PEXPIRETIME").arg(name).cmd("DUMP").arg(name);
        }
        // Not an empty pipeline.
        dump.cmd("PING").ignore();
        let contents: Vec<(i64, Vec<u8>)> = dump.query(&mut self.ground.connection).unwrap();
        let entry = |(name, (expires, content))| (name, expires, content);
        self.saved = Some(Saved {
            redis: names.into_iter().zip(contents).map(entry).collect(),
            memory: self.memory.look(|state| state.clone()),
        });
        Both::nothing()
    }

    /// To the millisecond at which something expires RESTORE takes it for expired, and everything else does not.
    fn go_back(&mut self) -> Both {
        let now_ms = self.ground.now_ms();
        let Some(saved) = &self.saved else {
            return Both::nothing();
        };
        if saved.redis.iter().any(|(_, expires, _)| *expires == now_ms) {
            return Both::nothing();
        }
        let mut restore = pipe();
        restore.cmd("FLUSHALL");
        for (name, expires, content) in &saved.redis {
            restore
                .cmd("RESTORE")
                .arg(name)
                .arg((*expires).max(0))
                .arg(content)
                .arg("ABSTTL");
        }
        restore.exec(&mut self.ground.connection).unwrap();
        self.memory.look(|state| *state = saved.memory.clone());
        self.expire();
        Both::nothing()
    }

    /// What has expired in Redis is gone when the clock is set back.
    fn expire(&self) {
        self.memory.look(|_| ());
    }

    /// The claim that is meant, if there is one.
    fn picked(&self, node: usize, pick: &Pick) -> Option<Claim> {
        let is_held = |claim: &Claim| {
            self.memory.look(|state| {
                let partition = &state.partitions[claim.partition.index()];
                let claims = match &claim.output {
                    None => Some(&partition.claims),
                    Some(output) => partition.sending.get(output),
                };
                let held = claims.and_then(|claims| claims.get(&claim.minute));
                held.is_some_and(|held| held.token == claim.token)
            })
        };
        let last = self.claims.iter().rev();
        let of: Vec<_> = last
            .filter(|claim| !pick.held || is_held(claim))
            .take(6)
            .collect();
        let mut claim = Claim::clone(of.get(pick.nth % of.len().max(1))?);
        // Each store of a node counts for itself.
        let generation = self.ground.nodes[node].generation(claim.partition);
        claim.generation = generation + u64::from(pick.stale);
        Some(claim)
    }
}

/// The counts that are not sealed.
async fn open(node: &dyn Node, partition: Partition, minute: Minute) -> Vec<SeriesCounts> {
    let mut series = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = node.open_page(partition, minute, at).await.unwrap();
        series.extend(page.items);
        cursor = page.next;
    }
    let series: Vec<_> = series.iter().map(String::as_str).collect();
    let mut counts = node.open_counts(partition, minute, &series).await.unwrap();
    counts.sort_unstable();
    counts
}

pub(super) fn minute_of(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

/// The one after the last is the overflow series.
pub(super) fn series_name(at: usize, series: usize) -> String {
    SERIES
        .get(series)
        .map_or_else(|| overflow_series(partition(at)), ToString::to_string)
}
