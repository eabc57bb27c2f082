//! Mutants, each of which lacks one protection of the service. The simulation must catch every mutant.

use event_data_service::output::Output;
use event_data_service::store::redis::Settings;
use event_data_service::store::{Admission, Store};
use redis_link::{Address, Endpoint};
use testing::lua_redis::Change;

use super::call::{Answer, Call};
use super::hasty_output::{CredulousOutput, HastyOutput};
use super::life::name_of;
use super::state::PREFIX;
use crate::simulation::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Counts are acknowledged before they are written.
    AcknowledgeFirst,
    /// Minutes are named by the time of day, without the date.
    NoDate,
    /// The node's clock determines whether a minute has ended.
    NodeClock,
    /// Each node decides independently which series exceed the cap.
    OwnAdmissions,
    /// An event of an overflow series is identified only by user and timestamp, not by its original series.
    SeriesForgotten,
    /// Closed minutes are not restored in a store that has rolled back.
    NoWitness,
    NoReplay,
    /// Minutes may be closed right after the connection was lost.
    NoSettling,
    NoLag,
    OneOutput,
    NoAnnouncement,
    /// Counts are written before the other nodes have learned of the announcement.
    NoWait,
    /// Every probe is reported as accepted, so every rejected count is quarantined.
    NoProof,
    /// Minutes are acknowledged without having been added to windows.
    NoContribution,
    /// Users are added to windows even if the claim was lost while they were read.
    BlindContribution,
    Script(ScriptMutant),
}

/// A change to a script, which replaces `from` with `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScriptMutant {
    pub(crate) file: &'static str,
    pub(crate) code: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

impl Mutant {
    pub(crate) fn change(self) -> Option<Change> {
        let Self::Script(ScriptMutant { file, code, from, to }) = self else {
            return None;
        };
        let places = code.matches(from).count();
        assert_eq!(places, 1, "{file} has this {places} times: {from}");
        // A script is sent with its own flags in the first line, so replace only the body.
        let body = code.strip_prefix("#!").and_then(|code| code.split_once('\n'));
        let body = body.map_or(code, |(_, body)| body);
        let changed = body.replace(from, to);
        Some(Box::new(move |script| script.replace(body, &changed)))
    }
}

pub(crate) fn store(mutant: Option<Mutant>, world: &World, life: &Life) -> Arc<RuledStore> {
    let ahead = match mutant {
        Some(Mutant::NodeClock) => world.plan.skews[life.node],
        _ => 0,
    };
    let address = Address::Server(Endpoint::Tcp("nowhere".to_owned(), 1));
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

/// The store of a life. Applies the mutants that concern the store.
#[derive(Debug)]
pub(crate) struct RuledStore {
    mutant: Option<Mutant>,
    pub(crate) life: usize,
    pub(crate) right: RedisStore,
    cuts: Arc<AtomicU64>,
    /// The number of cuts before the last connection. A cut takes effect between two calls.
    connected: Arc<AtomicU64>,
    own: Mutex<BTreeMap<(usize, Minute), BTreeSet<String>>>,
}

impl RuledStore {
    /// Replaces each connection that has been cut, as calls would.
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

    pub(crate) async fn ask(&self, world: &World, call: &Call) -> Result<Answer, StoreError> {
        let Some(mutant) = self.mutant else {
            return call.ask(&self.right).await;
        };
        let mut call = call.clone();
        match (mutant, &mut call) {
            (Mutant::OneOutput, Call::Compact(.., outputs, _)) => outputs.truncate(1),
            (Mutant::NoDate | Mutant::SeriesForgotten, Call::Record(partition, parcel)) => {
                for mut request in parcel.recordings() {
                    if mutant == Mutant::NoDate {
                        request.minute = namesake(world, *partition, request.minute);
                    } else {
                        request.overflowed_from = None;
                    }
                    let records = Records { generation: 0, requests: &[request], seen: &[] };
                    self.right.record(*partition, &records).await?;
                }
                return Ok(Answer::Nothing);
            }
            (Mutant::NoContribution, Call::Contribute(..)) => return Ok(Answer::Yes(true)),
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

/// Returns the first minute of the partition with the same time of day, because names have no date with this mutant.
fn namesake(world: &World, partition: Partition, minute: Minute) -> Minute {
    let known = world.look(|state| state.minutes(partition.index()));
    let known = known.into_iter().filter_map(Minute::from_epoch_minutes);
    let of_day = minute.minutes_since_midnight();
    let mut namesakes = known.filter(|known| known.minutes_since_midnight() == of_day);
    namesakes.next().unwrap_or(minute)
}
