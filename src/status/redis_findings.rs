//! Findings about Redis. Pure.

use super::answer::{Scene, percent};
use crate::diagnosis::{Cause, Diagnosis};
use crate::store::{ServerFound, ServerSeen};

/// The fill level of a server from which it has hardly any memory left, in percent.
const MEMORY_PERCENT_MAX: u64 = 90;

/// Returns whether every server has an append-only file.
pub(super) fn has_aof(scene: &Scene<'_>) -> bool {
    let mut found = servers(scene).filter_map(|server| server.found.as_ref());
    found.all(|server| server.persistence.aof)
}

/// Returns whether no server keeps a node from recording.
pub(super) fn are_well(scene: &Scene<'_>) -> bool {
    servers(scene).all(|server| {
        server.found.as_ref().is_some_and(|found| {
            found.refuses_writes.is_none() && found.unfit.is_none() && !is_full(found)
        })
    })
}

const fn is_full(server: &ServerFound) -> bool {
    server.maxmemory > 0 && server.used_memory > server.maxmemory
}

fn servers<'a>(scene: &Scene<'a>) -> impl Iterator<Item = &'a ServerSeen> {
    scene.status.redis.iter().flat_map(|redis| &redis.servers)
}

pub(super) fn find(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    for server in servers(scene) {
        let mut found: Vec<_> = server.error.clone().into_iter().collect();
        if let Some(server) = &server.found {
            found.extend(refusal(server));
            found.extend(find_in_state(scene, server, found.is_empty()));
        }
        let place = format!("Redis at {}", server.address);
        // An error of a sentinel names the sentinel.
        let at_server = |finding: Diagnosis| match &*finding.r#where {
            "" => finding.at(&place),
            _ => finding,
        };
        all.extend(found.into_iter().map(at_server));
    }
    all
}

/// Returns why a server takes no writes.
fn refusal(server: &ServerFound) -> Option<Diagnosis> {
    let replica = || {
        let why = "it has the data of another server, and may lack the last of it";
        Diagnosis::new(Cause::RedisReplica, why).what("is a replica")
    };
    let refuses = server.refuses_writes.clone();
    refuses.or_else(|| (server.role == "slave").then(replica))
}

fn find_in_state(scene: &Scene<'_>, server: &ServerFound, takes_writes: bool) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let (used, most) = (server.used_memory, server.maxmemory);
    let fill = percent(used, most);
    if is_full(server) {
        let why = format!("it uses {used} bytes, and its maxmemory is {most}");
        found.push(Diagnosis::new(Cause::RedisFull, why));
    } else if most > 0 && fill >= MEMORY_PERCENT_MAX {
        let formula = scene.status.redis.as_ref().and_then(|redis| redis.memory_by_formula);
        let why = match formula {
            None | Some(0) => "what comes in needs next to nothing, by docs/limits.md".to_owned(),
            Some(bytes) => format!("what comes in needs about {bytes} bytes, by docs/limits.md"),
        };
        let what = format!("uses {fill} % of its maxmemory");
        found.push(Diagnosis::new(Cause::RedisFills, why).what(what));
    }
    // A refusal tells the cause already.
    found.extend(server.unfit.clone().filter(|_| takes_writes));
    if !server.persistence.aof {
        let why = format!(
            "when it ends it forgets what it confirmed since its last snapshot, {} changes now",
            server.persistence.unsaved_changes
        );
        found.push(Diagnosis::new(Cause::RedisForgets, why));
    }
    if !server.persistence.last_save_ok {
        let why = "its disk is full, read-only or broken, or it cannot fork";
        found.push(Diagnosis::new(Cause::RedisCannotSave, why));
    }
    if scene.is_far_off(server.clock_offset_ms) {
        let what = format!("{} by {} ms", Cause::RedisClock.what(), server.clock_offset_ms);
        found.push(Diagnosis::new(Cause::RedisClock, "one of them is wrong").what(what));
    }
    found
}
