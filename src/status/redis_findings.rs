//! What is wrong with Redis. Pure.

use super::scene::{Scene, percent};
use crate::diagnosis::{Cause, Diagnosis};
use crate::store::{ServerFound, ServerSeen};

/// A server that uses so much of its memory has hardly any left, in percent.
const MEMORY_PERCENT_MAX: u64 = 90;

/// Whether every server has an append-only file.
pub(super) fn has_aof(scene: &Scene<'_>) -> bool {
    let mut states = all(scene).filter_map(|server| server.found.as_ref());
    states.all(|state| state.persistence.aof)
}

/// Whether nothing is wrong with the servers that would keep a node from recording.
pub(super) fn are_well(scene: &Scene<'_>) -> bool {
    let is_well = |server: &ServerSeen| {
        let state = server.found.as_ref();
        state.is_some_and(|it| it.refuses_writes.is_none() && it.unfit.is_none() && !is_full(it))
    };
    all(scene).all(is_well)
}

const fn is_full(state: &ServerFound) -> bool {
    state.maxmemory > 0 && state.used_memory > state.maxmemory
}

fn all<'a>(scene: &Scene<'a>) -> impl Iterator<Item = &'a ServerSeen> {
    scene.status.redis.iter().flat_map(|redis| &redis.servers)
}

pub(super) fn of(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let of_server = |server: &ServerSeen| {
        let mut found: Vec<_> = server.error.clone().into_iter().collect();
        if let Some(state) = &server.found {
            found.extend(refusal(state));
            found.extend(of_state(scene, state, found.is_empty()));
        }
        let place = format!("Redis at {}", server.address);
        // An error knows better, where a sentinel was asked.
        let at = move |it: Diagnosis| match &*it.r#where {
            "" => it.at(&place),
            _ => it,
        };
        found.into_iter().map(at)
    };
    all(scene).flat_map(of_server).collect()
}

/// Why a server takes no writes.
fn refusal(state: &ServerFound) -> Option<Diagnosis> {
    let is_replica = || {
        let why = "it has the data of another server, and may lack the last of it";
        Diagnosis::new(Cause::RedisReplica, why).what("is a replica")
    };
    let refuses = state.refuses_writes.clone();
    refuses.or_else(|| (state.role == "slave").then(is_replica))
}

fn of_state(scene: &Scene<'_>, state: &ServerFound, takes_writes: bool) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let (used, most) = (state.used_memory, state.maxmemory);
    let fill = percent(used, most);
    if is_full(state) {
        let why = format!("it uses {used} bytes, and its maxmemory is {most}");
        found.push(Diagnosis::new(Cause::RedisFull, why));
    } else if most > 0 && fill >= MEMORY_PERCENT_MAX {
        let formula = scene.status.redis.as_ref();
        let why = match formula.and_then(|it| it.memory_by_formula) {
            None | Some(0) => "what comes in needs next to nothing, by docs/limits.md".to_owned(),
            Some(bytes) => format!("what comes in needs about {bytes} bytes, by docs/limits.md"),
        };
        let what = format!("uses {fill} % of its maxmemory");
        found.push(Diagnosis::new(Cause::RedisFills, why).what(what));
    }
    // What it refuses by itself is told of already.
    found.extend(state.unfit.clone().filter(|_| takes_writes));
    if !state.persistence.aof {
        let why = format!(
            "when it ends it forgets what it confirmed since its last snapshot, {} changes now",
            state.persistence.unsaved_changes
        );
        found.push(Diagnosis::new(Cause::RedisForgets, why));
    }
    if !state.persistence.last_save_ok {
        let why = "its disk is full, read-only or broken, or it cannot fork";
        found.push(Diagnosis::new(Cause::RedisCannotSave, why));
    }
    let offset = state.clock_offset_ms;
    if u128::from(offset.unsigned_abs()) > (scene.expected.grace.as_millis() / 2).max(1) {
        let what = format!("{} by {offset} ms", Cause::RedisClock.what());
        found.push(Diagnosis::new(Cause::RedisClock, "one of them is wrong").what(what));
    }
    found
}
