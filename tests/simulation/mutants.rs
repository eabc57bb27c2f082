//! The service with one protection taken out: what the simulation must catch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use event_data_service::event::{Minute, Partition};
use event_data_service::output::Output;
use event_data_service::store::memory::MemoryStore;
use event_data_service::store::{
    Admission, AdmitRequest, Admitted, Attested, Backlog, Claim, ClaimRequest, Compaction,
    Draining, Known, News, NodeStore, Page, RecordRequest, Recording, SeriesCounts, SeriesUsers,
    Store, StoreError, Testimony,
};

use super::event::MINUTE;
use super::faulty_store::FaultyStore;
use super::hasty_output::{CredulousOutput, HastyOutput};
use super::life::Life;
use super::scripted_output::ScriptedOutput;
use super::world::World;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A minute is popped for good: no lease lets another node take it over.
    NoLease,
    /// Counts are acknowledged before they are written.
    AcknowledgeFirst,
    /// Whoever comes with a claim of a minute that is claimed may change it.
    NoTokenCheck,
    /// Counts that are there are overwritten.
    Overwrite,
    /// Minutes are named by the time of day alone.
    NoDate,
    /// A minute is over when it is by the node's clock.
    NodeClock,
    /// A minute is closed before its end.
    TooSoon,
    /// Each node decides by itself which series are beyond the cap.
    OwnAdmissions,
    /// An event of an overflow series is its user and timestamp, whatever series it came with.
    SeriesForgotten,
    /// Nothing is handed back to a store that went back.
    NoWitness,
    /// What was recorded lately is not recorded again.
    NoReplay,
    /// Minutes are closed right after the connection was lost.
    NoSettling,
    /// A node that lags does not say so.
    NoLag,
    /// What is rejected is believed to be at fault: whoever asks whether the output takes counts is told that it does.
    NoProof,
}

/// The store of a life, without faults.
pub(crate) fn store(mutant: Option<Mutant>, world: &World, life: &Life) -> Arc<dyn NodeStore> {
    let ahead = match mutant {
        Some(Mutant::NodeClock) => world.plan.skews[life.node],
        Some(Mutant::TooSoon) => MINUTE / 4,
        _ => 0,
    };
    let name = format!("node{}", life.node);
    let right = world.store.shared_with(&name, world.time.clock(ahead));
    match mutant {
        None
        | Some(
            Mutant::AcknowledgeFirst
            | Mutant::NoProof
            | Mutant::NoWitness
            | Mutant::NoReplay
            | Mutant::NoSettling
            | Mutant::NoLag,
        ) => Arc::new(right),
        Some(mutant) => Arc::new(MutantStore {
            mutant,
            right,
            own: Mutex::default(),
        }),
    }
}

/// The store and the output as the worker of a life uses them.
pub(crate) fn worker(
    mutant: Option<Mutant>,
    world: &World,
    store: Arc<FaultyStore>,
    output: ScriptedOutput,
) -> (Arc<dyn Draining>, Arc<dyn Output>) {
    let lease = world.plan.flush.lease;
    match mutant {
        Some(Mutant::AcknowledgeFirst) => {
            let hasty = HastyOutput {
                store,
                output,
                lease,
            };
            (
                Arc::clone(&hasty.store) as Arc<dyn NodeStore>,
                Arc::new(hasty),
            )
        }
        Some(Mutant::NoProof) => (
            store,
            Arc::new(CredulousOutput {
                output,
                accepted: Mutex::default(),
            }),
        ),
        _ => (store, Arc::new(output)),
    }
}

/// A memory store with one rule broken.
#[derive(Debug)]
struct MutantStore {
    mutant: Mutant,
    right: MemoryStore,
    /// What this life admitted by itself.
    own: Mutex<BTreeMap<(usize, Minute), BTreeSet<String>>>,
}

/// Longer than any schedule.
const FOR_GOOD: Duration = Duration::from_secs(1_000_000_000);

impl MutantStore {
    fn lease(&self, lease: Duration) -> Duration {
        if self.mutant == Mutant::NoLease {
            FOR_GOOD
        } else {
            lease
        }
    }

    /// The claim as it would have to be to be good.
    fn claim_of(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if self.mutant == Mutant::NoTokenCheck {
            let token = self.right.look(|state| {
                let claims = &state.partitions[claim.partition.index()].claims;
                claims.get(&claim.minute).map(|held| held.token.clone())
            });
            claim.token = token.unwrap_or_default();
        }
        claim
    }

    /// The minute that has the name of this one where names have no date: the first that the partition knew.
    fn namesake(&self, partition: Partition, minute: Minute) -> Minute {
        if self.mutant != Mutant::NoDate {
            return minute;
        }
        self.right.look(|state| {
            let known = state.partitions[partition.index()].minutes.keys();
            let same =
                |known: &&Minute| known.minutes_since_midnight() == minute.minutes_since_midnight();
            known.copied().find(|known| same(&known)).unwrap_or(minute)
        })
    }
}

#[async_trait]
impl Store for MutantStore {
    async fn check(&self) -> Result<(), StoreError> {
        self.right.check().await
    }

    fn generation(&self, partition: Partition) -> u64 {
        self.right.generation(partition)
    }

    fn describe(&self) -> String {
        format!("{:?}", self.mutant)
    }
}

#[async_trait]
impl Recording for MutantStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        if self.mutant != Mutant::OwnAdmissions {
            return self.right.admit(partition, request).await;
        }
        let mut own = self.own.lock().unwrap();
        let admitted = own.entry((partition.index(), request.minute)).or_default();
        let admit = |series: &&str| {
            if (admitted.len() as u64) < request.series_max {
                admitted.insert((*series).to_owned());
            }
            if admitted.contains(*series) {
                Admission::Admitted { users: 0 }
            } else {
                Admission::Refused
            }
        };
        Ok(Admitted {
            overflow_users: 0,
            series: request.series.iter().map(admit).collect(),
        })
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        self.right.users(partition, minute, series, users).await
    }

    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError> {
        let mut repeated = 0;
        for recording in recordings {
            let renamed = RecordRequest {
                minute: self.namesake(partition, recording.minute),
                series: recording.series,
                overflowed_from: recording
                    .overflowed_from
                    .filter(|_| self.mutant != Mutant::SeriesForgotten),
                new_users: recording.new_users.clone(),
                occurrences: recording.occurrences,
                batch: recording.batch,
            };
            repeated += self.right.record(partition, generation, &[renamed]).await?;
        }
        Ok(repeated)
    }
}

#[async_trait]
impl Draining for MutantStore {
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        self.right.attest(partition, testimony).await
    }

    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
    ) -> Result<News, StoreError> {
        self.right.check_in(partition, known, lags, lease).await
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Vec<Claim>, StoreError> {
        let lease = self.lease(request.lease);
        self.right
            .claim(partition, &ClaimRequest { lease, ..*request })
            .await
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError> {
        let claim = self.claim_of(claim);
        if self.mutant == Mutant::Overwrite {
            self.right.look(|state| {
                let minutes = &mut state.partitions[claim.partition.index()].minutes;
                if let Some(minute) = minutes.get_mut(&claim.minute) {
                    minute
                        .counts
                        .retain(|series, _| !minute.sets.contains_key(series));
                }
            });
        }
        self.right
            .compact(&claim, series_max, self.lease(lease))
            .await
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        self.right.unsent(claim, cursor).await
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let claim = self.claim_of(claim);
        self.right
            .acknowledge(&claim, series, self.lease(lease))
            .await
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        self.right.quarantine(&self.claim_of(claim), refused).await
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let claims: Vec<Claim> = claims.iter().map(|claim| self.claim_of(claim)).collect();
        let claims: Vec<&Claim> = claims.iter().collect();
        self.right
            .extend(partition, &claims, self.lease(lease))
            .await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        self.right.backlog(partition).await
    }
}
