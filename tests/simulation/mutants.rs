//! The service with one protection taken out: what the simulation must catch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use event_data_service::event::{Minute, Partition};
use event_data_service::output::Output;
use event_data_service::store::redis::{RedisStore, Settings};
use event_data_service::store::{Admission, Admitted, Recording, Store, StoreError};
use redis_link::Address;
use testing::lua_redis::Change;

use super::call::{Answer, Call};
use super::faulty_store::FaultyStore;
use super::hasty_output::{CredulousOutput, HastyOutput};
use super::life::{Life, name_of};
use super::scripted_output::ScriptedOutput;
use super::state::PREFIX;
use super::world::World;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Counts are acknowledged before they are written.
    AcknowledgeFirst,
    /// Minutes are named by the time of day alone.
    NoDate,
    /// A minute is over when it is by the node's clock.
    NodeClock,
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
    /// Counts are written without a word to the other nodes before.
    NoAnnouncement,
    /// Counts are written before the other nodes have heard so.
    NoWait,
    /// What is rejected is believed to be at fault: whoever asks whether the output takes counts is answered that it does.
    NoProof,
    /// A script is another one.
    Script(ScriptMutant),
}

/// A place of a script, and what stands there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScriptMutant {
    pub(crate) file: &'static str,
    /// The whole file.
    pub(crate) code: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

impl Mutant {
    /// What becomes of each script.
    pub(crate) fn change(self) -> Option<Change> {
        let Self::Script(ScriptMutant { file, code, from, to }) = self else {
            return None;
        };
        let places = code.matches(from).count();
        assert_eq!(places, 1, "{file} has this {places} times: {from}");
        // What the scripts share is in each of them, and the flags are another's.
        let body = code.strip_prefix("#!").and_then(|code| code.split_once('\n'));
        let body = body.map_or(code, |(_, body)| body);
        let changed = body.replace(from, to);
        Some(Box::new(move |script| script.replace(body, &changed)))
    }
}

/// The store of a life, without faults.
pub(crate) fn store(mutant: Option<Mutant>, world: &World, life: &Life) -> Arc<RuledStore> {
    let ahead = match mutant {
        Some(Mutant::NodeClock) => world.plan.skews[life.node],
        _ => 0,
    };
    let address = Address::Tcp { host: "nowhere".to_owned(), port: 1 };
    let connected = Arc::default();
    let settings = Settings {
        redis: redis_link::Settings {
            dial: Some(world.redis.dial(ahead.div_euclid(1000), &connected)),
            ..redis_link::Settings::new(address)
        },
        prefix: PREFIX.to_owned(),
        partitions: world.partitions(),
        layout: world.plan.layout,
        retention: world.plan.max_age * 2,
        counts_max: 1 << 30,
        node: name_of(life.number),
    };
    Arc::new(RuledStore {
        mutant,
        life: life.number,
        right: RedisStore::new(&settings).unwrap(),
        cuts: Arc::clone(&life.cuts),
        connected,
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
        Some(Mutant::NoProof) => Arc::new(CredulousOutput { output, accepted: Mutex::default() }),
        _ => Arc::new(output),
    }
}

/// The store of a life, in which a mutant breaks its rule.
#[derive(Debug)]
pub(crate) struct RuledStore {
    mutant: Option<Mutant>,
    /// Whose it is.
    pub(crate) life: usize,
    pub(crate) right: RedisStore,
    cuts: Arc<AtomicU64>,
    /// After how many of them it was connected. A cut shows between two calls.
    connected: Arc<AtomicU64>,
    /// What this life admitted by itself.
    own: Mutex<BTreeMap<(usize, Minute), BTreeSet<String>>>,
}

impl RuledStore {
    /// Makes the connections again that were cut, as each call would, one after the other.
    pub(crate) async fn connect(&self) {
        let cuts = self.cuts.load(Ordering::Relaxed);
        if self.connected.swap(cuts, Ordering::Relaxed) != cuts {
            for _ in 0..4 {
                if self.right.check().await.is_ok() {
                    break;
                }
            }
        }
    }

    /// Carries a call out as the mutant does.
    pub(crate) async fn ask(&self, world: &World, call: &Call) -> Result<Answer, StoreError> {
        let Some(mutant) = self.mutant else {
            return call.ask(&self.right).await;
        };
        let mut call = call.clone();
        match (mutant, &mut call) {
            (Mutant::OneOutput, Call::Compact(.., outputs)) => outputs.truncate(1),
            (Mutant::NoDate | Mutant::SeriesForgotten, Call::Record(partition, parcel)) => {
                for mut request in parcel.recordings() {
                    if mutant == Mutant::NoDate {
                        request.minute = namesake(world, *partition, request.minute);
                    } else {
                        request.overflowed_from = None;
                    }
                    self.right.record(*partition, 0, &[request], &[]).await?;
                }
                return Ok(Answer::Nothing);
            }
            (Mutant::OwnAdmissions, Call::Admit(partition, minute, series, series_max, _)) => {
                return Ok(self.admit((*partition, *minute), series, *series_max));
            }
            _ => {}
        }
        call.ask(&self.right).await
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

/// The minute that has the name of this one where names have no date: the first that the partition knew.
fn namesake(world: &World, partition: Partition, minute: Minute) -> Minute {
    let known = world.look(|state| state.minutes(partition.index()));
    let known = known.into_iter().filter_map(Minute::from_epoch_minutes);
    let of_day = minute.minutes_since_midnight();
    let mut same = known.filter(|known| known.minutes_since_midnight() == of_day);
    same.next().unwrap_or(minute)
}
