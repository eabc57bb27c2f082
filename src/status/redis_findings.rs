//! The findings about Redis. Pure.

use super::answer::{ServerState, ServerStatus, Severity};
use super::findings::{Found, Rule, Scene};
use Severity::{Critical, Note, Warning};

/// A server that uses so much of its memory has hardly any left, in percent.
const MEMORY_PERCENT_MAX: u64 = 90;

/// Errors of a server that say what is the matter whatever was asked: a part of the text, what it means, and what to do.
pub(super) const REFUSALS: [(&str, &str, &str); 6] = [
    (
        "read only replica",
        "takes no writes: it is a replica",
        MASTER_REMEDY,
    ),
    (
        "NOREPLICAS",
        "takes no writes: it has too few replicas (min-replicas-to-write)",
        "bring a replica back; or let it take writes without one: `CONFIG SET min-replicas-to-write 0`. Events wait in the nodes until then",
    ),
    (
        "MISCONF",
        "takes no writes: it cannot write to its disk",
        "look at the disk and the log of Redis: it takes writes again once a snapshot (`BGSAVE`) or a write to its append-only file succeeds",
    ),
    (
        "ClusterDown",
        "takes no writes: slots of its Cluster are served by no master",
        "start the masters that are down, or promote their replicas; `redis-cli --cluster check ADDRESS` names slots that belong to no master, and \
         `redis-cli --cluster fix ADDRESS` gives them to one. Events wait in the nodes until then",
    ),
    (
        "may not do what is needed",
        "refuses the user of this configuration a right",
        "grant the commands and keys of config/redis-acl.conf",
    ),
    (
        "loading the dataset",
        "takes no writes: it is loading its data",
        "wait until it has loaded them, which its log shows; events wait in the nodes until then",
    ),
];

const MASTER_REMEDY: &str = "name the master in store.url, or the sentinels that know it (redis+sentinel://…); or make this one the \
                             master: `REPLICAOF NO ONE`";

/// Whether every server has an append-only file.
pub(super) fn has_aof(scene: &Scene<'_>) -> bool {
    let mut states = all(scene).filter_map(|server| server.state.as_ref());
    states.all(|state| state.persistence.aof)
}

/// Whether nothing is wrong with a server that would keep a node from recording.
pub(super) fn is_well(server: &ServerStatus) -> bool {
    server.state.as_ref().is_some_and(|state| {
        let is_full = state.maxmemory > 0 && state.used_memory > state.maxmemory;
        state.refuses_writes.is_none() && state.unfit.is_none() && !is_full
    })
}

fn all<'a>(scene: &Scene<'a>) -> impl Iterator<Item = &'a ServerStatus> {
    scene.status.redis.iter().flat_map(|redis| &redis.servers)
}

fn place(server: &ServerStatus) -> String {
    format!("Redis at {}", server.address)
}

/// What is wrong with each server that this holds for, of those that tell how they are.
fn servers(
    scene: &Scene<'_>,
    find: impl Fn(&ServerState) -> Option<(String, String)>,
) -> Vec<Found> {
    let told = all(scene).filter_map(|server| Some((server, server.state.as_ref()?)));
    told.filter_map(|(server, state)| {
        let (what, why) = find(state)?;
        Some((place(server), what, why, None))
    })
    .collect()
}

/// What a server says of its state to whatever is asked.
fn refusal(error: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    REFUSALS.iter().find(|(part, ..)| error.contains(part))
}

fn refuses_writes(scene: &Scene<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for server in all(scene) {
        let (place, state) = (place(server), server.state.as_ref());
        let refuses = state.and_then(|state| state.refuses_writes.as_ref());
        let error = refuses.or(server.error.as_ref());
        let known = error.and_then(|error| refusal(error));
        match (known, refuses, error) {
            (Some((_, what, remedy)), _, Some(error)) => {
                found.push((
                    place,
                    (*what).to_owned(),
                    error.clone(),
                    Some((*remedy).to_owned()),
                ));
            }
            (None, Some(error), _) => {
                found.push((place, "takes no writes".to_owned(), error.clone(), None));
            }
            _ if state.is_some_and(|state| state.role == "slave") => {
                let why =
                    "it has the data of another server, and may lack the last of it".to_owned();
                found.push((
                    place,
                    "is a replica".to_owned(),
                    why,
                    Some(MASTER_REMEDY.to_owned()),
                ));
            }
            _ => {}
        }
    }
    found
}

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "redis-down",
        severity: Critical,
        find: |scene| {
            let what = "cannot be used: events wait in the nodes, and nothing is counted";
            let found = |server: &ServerStatus| {
                let error = server.error.clone();
                let error = error.filter(|error| refusal(error).is_none())?;
                let remedy = server.remedy.clone();
                Some((place(server), what.to_owned(), error, remedy))
            };
            all(scene).filter_map(found).collect()
        },
        remedy: "start it, or look at store.url and the network; the nodes record what waits when it is back, in memory up to input.queue_events, beyond that from input.spool_dir",
    },
    Rule {
        id: "redis-read-only",
        severity: Critical,
        find: refuses_writes,
        remedy: "do what its message says; events wait in the nodes until then",
    },
    Rule {
        id: "redis-full",
        severity: Critical,
        find: |scene| {
            servers(scene, |server| {
                let (used, most) = (server.used_memory, server.maxmemory);
                let why = format!("it uses {used} bytes, and its maxmemory is {most}");
                (most > 0 && used > most)
                    .then(|| ("is full: events wait in the nodes".to_owned(), why))
            })
        },
        remedy: "raise maxmemory (`CONFIG SET maxmemory BYTES`, and redis.conf; docs/limits.md says how much is needed), or have fewer users or series",
    },
    Rule {
        id: "redis-unfit",
        severity: Critical,
        find: |scene| {
            // What it refuses by itself is said above.
            let told = |server: &ServerStatus| {
                let state = server.state.as_ref()?;
                let refuses = state.refuses_writes.as_deref().and_then(refusal);
                let is_said = state.role == "slave" || refuses.is_some();
                let why = state.unfit.clone().filter(|_| !is_said)?;
                let remedy = state.unfit_remedy.clone();
                Some((place(server), "cannot keep events".to_owned(), why, remedy))
            };
            all(scene).filter_map(told).collect()
        },
        remedy: "do what the message says",
    },
    Rule {
        id: "redis-fills",
        severity: Warning,
        find: |scene| {
            servers(scene, |server| {
                let (used, most) = (server.used_memory, server.maxmemory);
                let percent = used.saturating_mul(100) / most.max(1);
                let formula = scene.status.redis.as_ref();
                let formula = formula.and_then(|it| it.memory_by_formula);
                let why = match formula {
                    None | Some(0) => {
                        "what comes in needs next to nothing, by docs/limits.md".to_owned()
                    }
                    Some(bytes) => {
                        format!("what comes in needs about {bytes} bytes, by docs/limits.md")
                    }
                };
                let fills = most > 0 && used <= most && percent >= MEMORY_PERCENT_MAX;
                fills.then(|| (format!("uses {percent} % of its maxmemory"), why))
            })
        },
        remedy: "raise maxmemory: when it is full events wait in the nodes",
    },
    Rule {
        id: "redis-forgets",
        severity: Warning,
        find: |scene| {
            servers(scene, |server| {
                let has_none = !server.persistence.aof;
                let why = format!(
                    "when it ends it forgets what it confirmed since its last snapshot, {} changes now",
                    server.persistence.unsaved_changes
                );
                has_none.then(|| ("has no append-only file".to_owned(), why))
            })
        },
        remedy: "run `CONFIG SET appendonly yes`, and write it into redis.conf",
    },
    Rule {
        id: "redis-cannot-save",
        severity: Warning,
        find: |scene| {
            servers(scene, |server| {
                let fails = !server.persistence.last_save_ok;
                let why = "its disk is full, read-only or broken, or it cannot fork";
                fails.then(|| ("could not save its data".to_owned(), why.to_owned()))
            })
        },
        remedy: "look at the disk and the log of Redis: its data would not outlive it",
    },
    Rule {
        id: "redis-clock",
        severity: Note,
        find: |scene| {
            servers(scene, |server| {
                let offset = server.clock_offset_ms;
                let most = scene.expected.grace.as_millis() / 2;
                let is_off = u128::from(offset.unsigned_abs()) > most.max(1);
                let what = format!("its clock differs from this host's by {offset} ms");
                is_off.then(|| (what, "one of them is wrong".to_owned()))
            })
        },
        remedy: "look at the clocks of both hosts: `chronyc tracking`, `timedatectl`",
    },
];
