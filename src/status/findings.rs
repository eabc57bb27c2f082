//! Derives the findings about losses, Redis, outputs and the cluster from a status. The functions are pure.

use super::answer::{OutputStatus, Status, percent};
use super::process_findings;
use crate::diagnosis::{ACKNOWLEDGE, Cause, Diagnosis, LossCause};
use crate::store::{ServerFound, ServerSeen};

/// The percentage of maxmemory at which a server counts as nearly full.
const MEMORY_PERCENT_MAX: u64 = 90;

pub(super) fn find(status: &Status) -> Vec<Diagnosis> {
    let mut found = find_in_redis(status);
    found.extend(process_findings::find(status, are_servers_well(status)));
    found.extend(find_losses(status));
    found.extend(find_in_cluster(status));
    found.extend(status.outputs.iter().flat_map(find_in_output));
    found.extend(unsent(status));
    sorted(found)
}

pub(super) fn find_in_relays(status: &Status) -> Vec<Diagnosis> {
    let mut found = process_findings::find(status, are_servers_well(status));
    found.extend(find_losses(status));
    sorted(found)
}

fn sorted(mut found: Vec<Diagnosis>) -> Vec<Diagnosis> {
    found.sort_by_key(|finding| (finding.cause.severity(), finding.cause));
    found
}

fn find_losses(status: &Status) -> Vec<Diagnosis> {
    let has_aof = servers(status)
        .filter_map(|server| server.found.as_ref())
        .all(|server| server.persistence.aof);
    let fullest = status.outputs.iter().max_by_key(|output| output.quarantined);
    let mut found = Vec::new();
    for loss in status.losses.iter().flatten() {
        let Some(cause) = LossCause::labelled(&loss.cause) else {
            continue;
        };
        let kind = if cause.is_of_relay() { "relay" } else { "node" };
        let place = match &loss.nodes[..] {
            [] => format!("{kind}s"),
            [node] => format!("{kind} {node}"),
            all => format!("{kind}s {}", all.join(", ")),
        };
        let minutes = match (&loss.first, &loss.last) {
            (Some(first), Some(last)) if first == last => format!(" in the minute {first}"),
            (Some(first), Some(last)) => format!(" in the minutes from {first} to {last}"),
            _ => String::new(),
        };
        let mut remedy = match cause {
            LossCause::Forgotten if has_aof => Cause::ForgottenDespiteAppendOnly.remedy(),
            LossCause::Unconfirmed if has_aof => Cause::UnconfirmedDespiteAppendOnly.remedy(),
            _ => cause.remedy(),
        }
        .to_owned();
        if status.redis.is_some() {
            remedy = format!("{remedy}; {ACKNOWLEDGE}");
        }
        let why = format!("{} {}{minutes}: {}", loss.amount, cause.what(), cause.why());
        let finding = Diagnosis::new(cause.cause(), why).at(place).remedy(remedy);
        found.push(finding.named(fullest.map_or("NAME", |output| &output.name)));
    }
    found
}

fn servers(status: &Status) -> impl Iterator<Item = &ServerSeen> {
    status.redis.iter().flat_map(|redis| &redis.servers)
}

fn are_servers_well(status: &Status) -> bool {
    servers(status).all(|server| {
        server.found.as_ref().is_some_and(|found| {
            found.refuses_writes.is_none() && found.unfit.is_none() && !is_full(found)
        })
    })
}

const fn is_full(server: &ServerFound) -> bool {
    server.maxmemory > 0 && server.used_memory > server.maxmemory
}

fn find_in_redis(status: &Status) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    for server in servers(status) {
        let mut found: Vec<_> = server.error.clone().into_iter().collect();
        if let Some(server) = &server.found {
            found.extend(find_in_server(status, server));
        }
        let place = format!("Redis at {}", server.address);
        // An error from a Sentinel already contains the address of that Sentinel.
        let at_server = |finding: Diagnosis| match &*finding.r#where {
            "" => finding.at(&place),
            _ => finding,
        };
        all.extend(found.into_iter().map(at_server));
    }
    all
}

fn find_in_server(status: &Status, server: &ServerFound) -> Vec<Diagnosis> {
    let refusal = server.refuses_writes.as_ref().or(server.unfit.as_ref());
    let mut found: Vec<_> = refusal.cloned().into_iter().collect();
    let mut add = |cause, why: String| found.push(Diagnosis::new(cause, why));
    let (used, most) = (server.used_memory, server.maxmemory);
    let fill = percent(used, most);
    if is_full(server) {
        add(Cause::RedisFull, format!("it uses {used} of {most} bytes"));
    } else if most > 0 && fill >= MEMORY_PERCENT_MAX {
        let formula = status.redis.as_ref().and_then(|redis| redis.memory_by_formula);
        let needs = formula.filter(|bytes| *bytes > 0).map_or(String::new(), |bytes| {
            format!("; according to the formula in docs/limits.md, the current input needs about {bytes} bytes")
        });
        add(Cause::RedisFills, format!("{fill}% is in use{needs}"));
    }
    let persistence = &server.persistence;
    if !persistence.aof {
        let unsaved = persistence.unsaved_changes;
        let why = format!("a crash would currently lose {unsaved} acknowledged changes");
        add(Cause::RedisForgets, why);
    }
    if !persistence.last_save_ok {
        let why = "the disk may be full, read-only or broken, or Redis may be unable to fork";
        add(Cause::RedisCannotSave, why.to_owned());
    }
    if status.is_far_off(server.clock_offset_ms) {
        let why = format!("by {} ms; one of the two clocks is wrong", server.clock_offset_ms);
        add(Cause::RedisClock, why);
    }
    found
}

fn find_in_cluster(status: &Status) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    if status.nodes.is_empty() && servers(status).all(|server| server.error.is_none()) {
        let why = "no reports in the last five minutes";
        found.push(Diagnosis::new(Cause::NoNode, why).at("nodes"));
    }
    if let Some(difference) = &status.difference {
        found.push(difference.clone().at("this configuration or version"));
    }
    if let Some(old) = &status.partitions.old {
        let rate = match old.done_in_seconds {
            Some(seconds) => format!("all will be sealed in about {seconds} s at the current rate"),
            None => "none are being sealed".to_owned(),
        };
        let (minutes, partitions) = (old.waiting, status.partitions.count);
        let why =
            format!("{minutes} minutes, each counted in up to {partitions} partitions; {rate}");
        found.push(Diagnosis::new(Cause::OldMinutes, why).at("store"));
    }
    if status.redis.is_none() {
        let why = "store.url is memory:, so only one node can use the store, and open minutes are lost on exit";
        found.push(Diagnosis::new(Cause::MemoryStore, why).at("store"));
    }
    found
}

fn find_in_output(output: &OutputStatus) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    if output.up == Some(false) {
        let why = output.last_error.clone().unwrap_or_default();
        let down = Diagnosis::new(Cause::OutputDown, why);
        found.push(match &output.remedy {
            Some(remedy) => down.remedy(remedy.clone()),
            None => down,
        });
    }
    if let Some(quarantined) = output.quarantined.filter(|counts| *counts > 0) {
        let fill = percent(quarantined, output.quarantined_max);
        let cause = if fill >= 50 { Cause::QuarantineFull } else { Cause::Quarantine };
        let why = format!("{quarantined} counts that the output rejected, {fill}% of the limit");
        found.push(Diagnosis::new(cause, why).named(&output.name));
    }
    let place = format!("output {}", output.name);
    found.into_iter().map(|finding| finding.at(&place)).collect()
}

fn unsent(status: &Status) -> Option<Diagnosis> {
    let oldest = status.partitions.oldest_unsent.as_ref()?;
    let mut outputs = status.outputs.iter();
    let output = outputs.find(|output| output.name == oldest.output);
    let is_down = output.is_some_and(|output| output.up == Some(false));
    let (minute, age) = (&oldest.minute, oldest.age_seconds);
    let closed_within = status.expected.grace + status.expected.max_hold;
    if is_down || age < 2 * closed_within.as_secs() + 120 {
        return None;
    }
    let is_gone = output.is_some_and(|output| output.url.is_empty());
    let cause = if is_gone { Cause::OutputGone } else { Cause::Unsent };
    let why = format!("minute {minute}, which ended {age} s ago; {}", oldest.why);
    let place = format!("output {}", oldest.output);
    Some(Diagnosis::new(cause, why).at(place).named(&oldest.output))
}
