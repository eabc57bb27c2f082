//! The service with one protection taken out: what the simulation must catch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use event_data_service::event::{Minute, Partition};
use event_data_service::output::Output;
use event_data_service::store::memory::MemoryStore;
use event_data_service::store::{Admission, Admitted, Claim, Recording, StoreError};

use super::call::{Answer, Call};
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
    /// What is sealed is sealed for the first output only.
    OneOutput,
    /// What one output has counts for all of them.
    OneForAll,
    /// The counts are forgotten when the first output has them.
    OneForgets,
    /// A minute that an output has goes on sealing.
    NotClosed,
    /// Old minutes come before those that have just ended.
    OldestFirst,
    /// Counts are written without a word to the other nodes before.
    NoAnnouncement,
    /// Counts are written before the other nodes have heard so.
    NoWait,
    /// What is rejected is believed to be at fault: whoever asks whether the output takes counts is answered that it does.
    NoProof,
}

/// The store of a life, without faults.
pub(crate) fn store(mutant: Option<Mutant>, world: &World, life: &Life) -> Arc<RuledStore> {
    let ahead = match mutant {
        Some(Mutant::NodeClock) => world.plan.skews[life.node],
        Some(Mutant::TooSoon) => MINUTE / 4,
        _ => 0,
    };
    let name = format!("node{}", life.node);
    Arc::new(RuledStore {
        mutant,
        right: world.store.shared_with(&name, world.time.clock(ahead)),
        own: Mutex::default(),
    })
}

/// An output as a life uses it.
pub(crate) fn output(
    mutant: Option<Mutant>,
    world: &World,
    store: &Arc<FaultyStore>,
    output: ScriptedOutput,
) -> Arc<dyn Output> {
    match mutant {
        Some(Mutant::AcknowledgeFirst) => Arc::new(HastyOutput {
            store: Arc::clone(store),
            output,
            lease: world.plan.flush.lease,
        }),
        Some(Mutant::NoProof) => Arc::new(CredulousOutput {
            output,
            accepted: Mutex::default(),
        }),
        _ => Arc::new(output),
    }
}

/// A memory store in which a mutant breaks its rule.
#[derive(Debug)]
pub(crate) struct RuledStore {
    mutant: Option<Mutant>,
    right: MemoryStore,
    /// What this life admitted by itself.
    own: Mutex<BTreeMap<(usize, Minute), BTreeSet<String>>>,
}

/// Longer than any schedule.
const FOR_GOOD: Duration = Duration::from_secs(1_000_000_000);

impl RuledStore {
    /// Carries a call out as the mutant does.
    pub(crate) async fn ask(&self, call: &Call) -> Result<Answer, StoreError> {
        let Some(mutant) = self.mutant else {
            return call.ask(&self.right).await;
        };
        let mut call = call.clone();
        match (mutant, &mut call) {
            (Mutant::NoLease, Call::Claim(_, request, _)) => request.lease = FOR_GOOD,
            (
                Mutant::NoLease,
                Call::Compact(_, _, lease, _)
                | Call::Acknowledge(.., lease)
                | Call::Extend(.., lease),
            ) => *lease = FOR_GOOD,
            (Mutant::OneOutput, Call::Compact(.., outputs)) => outputs.truncate(1),
            (
                Mutant::OneForAll | Mutant::OneForgets | Mutant::NotClosed,
                Call::Acknowledge(claim, series, _),
            ) => {
                let (claim, series) = (claim.clone(), series.clone());
                let answer = call.ask(&self.right).await;
                self.after_acknowledging(mutant, &claim, &series);
                return answer;
            }
            (
                Mutant::NoTokenCheck,
                Call::Compact(claim, ..)
                | Call::Acknowledge(claim, ..)
                | Call::Quarantine(claim, _),
            ) => self.make_good(claim),
            (Mutant::NoTokenCheck, Call::Extend(_, claims, _)) => {
                for claim in claims {
                    self.make_good(claim);
                }
            }
            (Mutant::Overwrite, Call::Compact(claim, ..)) => self.forget_counts(claim),
            (Mutant::NoDate | Mutant::SeriesForgotten, Call::Record(partition, parcel)) => {
                for mut request in parcel.recordings() {
                    if mutant == Mutant::NoDate {
                        request.minute = self.namesake(*partition, request.minute);
                    } else {
                        request.overflowed_from = None;
                    }
                    self.right.record(*partition, 0, &[request], &[]).await?;
                }
                return Ok(Answer::Nothing);
            }
            (Mutant::OldestFirst, Call::Claim(partition, ..)) => {
                let partition = *partition;
                let hidden = self.right.look(|state| {
                    let waiting = &mut state.partitions[partition.index()].waiting;
                    let lowest = waiting.first().map_or(0, |it| it.epoch_minutes());
                    let near = Minute::from_epoch_minutes(lowest + 10).unwrap_or(Minute::MAX);
                    waiting.split_off(&near)
                });
                let answer = call.ask(&self.right).await;
                self.right.look(|state| {
                    state.partitions[partition.index()].waiting.extend(hidden);
                });
                return answer;
            }
            (Mutant::OwnAdmissions, Call::Admit(partition, minute, series, series_max, _)) => {
                return Ok(self.admit((*partition, *minute), series, *series_max));
            }
            _ => {}
        }
        call.ask(&self.right).await
    }

    /// Gives the claim the token that it would have to have.
    fn make_good(&self, claim: &mut Claim) {
        let token = self.right.look(|state| {
            let partition = &state.partitions[claim.partition.index()];
            let claims = match &claim.output {
                None => Some(&partition.claims),
                Some(output) => partition.sending.get(output),
            };
            let held = claims.and_then(|claims| claims.get(&claim.minute));
            held.map(|held| held.token.clone())
        });
        claim.token = token.unwrap_or_default();
    }

    /// What one output has is taken for what all have; or its counts are forgotten; or the minute is left open.
    fn after_acknowledging(&self, mutant: Mutant, claim: &Claim, series: &[String]) {
        self.right.look(|state| {
            let partition = &mut state.partitions[claim.partition.index()];
            let is_done = claim.output.as_ref().is_some_and(|output| {
                let of = partition.sending.get(output);
                of.is_some_and(|of| !of.contains_key(&claim.minute))
            });
            let Some(minute) = partition.minutes.get_mut(&claim.minute) else {
                return;
            };
            match mutant {
                Mutant::OneForAll => {
                    for unsent in minute.unsent.values_mut() {
                        unsent.retain(|it| !series.contains(it));
                    }
                }
                Mutant::OneForgets if is_done => minute.counts.clear(),
                Mutant::NotClosed if is_done => {
                    partition.witness.closed.remove(&claim.minute);
                }
                _ => {}
            }
        });
    }

    /// Forgets the counts of series that have sets again.
    fn forget_counts(&self, claim: &Claim) {
        self.right.look(|state| {
            let minutes = &mut state.partitions[claim.partition.index()].minutes;
            if let Some(minute) = minutes.get_mut(&claim.minute) {
                let sets = &minute.sets;
                minute.counts.retain(|series, _| !sets.contains_key(series));
            }
        });
    }

    /// The minute that has the name of this one where names have no date: the first that the partition knew.
    fn namesake(&self, partition: Partition, minute: Minute) -> Minute {
        self.right.look(|state| {
            let known = state.partitions[partition.index()].minutes.keys();
            let same =
                |known: &&Minute| known.minutes_since_midnight() == minute.minutes_since_midnight();
            known.copied().find(|known| same(&known)).unwrap_or(minute)
        })
    }

    fn admit(&self, place: (Partition, Minute), series: &[String], series_max: u64) -> Answer {
        let mut own = self.own.lock().unwrap();
        let admitted = own.entry((place.0.index(), place.1)).or_default();
        let admit = |series: &String| {
            if (admitted.len() as u64) < series_max {
                admitted.insert(series.clone());
            }
            if admitted.contains(series) {
                Admission::Admitted { users: Some(0) }
            } else {
                Admission::Refused
            }
        };
        Answer::Admitted(Admitted {
            overflow_users: Some(0),
            arrivals: 0,
            series: series.iter().map(admit).collect(),
        })
    }
}
