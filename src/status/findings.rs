//! The findings of a status; here those about losses, outputs and the cluster. Pure.

use super::answer::{Expected, OutputStatus, Scene, Status, percent};
use super::{process_findings, redis_findings};
use crate::diagnosis::{ACKNOWLEDGE, Cause, Diagnosis, LossCause};

/// Returns all findings, worst first.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let mut found = redis_findings::find(scene);
    found.extend(process_findings::find(scene));
    found.extend(find_losses(scene));
    found.extend(find_in_cluster(scene));
    found.extend(scene.status.outputs.iter().flat_map(find_in_output));
    found.extend(unsent(scene));
    sorted(found)
}

/// Returns the findings about relays, worst first.
pub(super) fn find_in_relays(status: &Status) -> Vec<Diagnosis> {
    let scene = Scene { status, expected: &Expected::default(), difference: None };
    let mut found = process_findings::find(&scene);
    found.extend(find_losses(&scene));
    sorted(found)
}

fn sorted(mut found: Vec<Diagnosis>) -> Vec<Diagnosis> {
    found.sort_by_key(|finding| (finding.cause.severity(), finding.cause));
    found
}

/// Returns the unacknowledged losses.
fn find_losses(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    for loss in scene.status.losses.iter().flatten() {
        let Some(cause) = LossCause::labelled(&loss.cause) else {
            continue;
        };
        let kind = if cause.is_of_relay() { "relay" } else { "node" };
        let place = match &loss.nodes[..] {
            [] => format!("{kind}s"),
            [one] => format!("{kind} {one}"),
            all => format!("{kind}s {}", all.join(", ")),
        };
        let minutes = match (&loss.first, &loss.last) {
            (Some(first), Some(last)) if first == last => format!(" of the minute {first}"),
            (Some(first), Some(last)) => format!(" of minutes from {first} to {last}"),
            _ => String::new(),
        };
        let has_aof = redis_findings::has_aof(scene);
        let mut remedy = match cause {
            LossCause::Forgotten if has_aof => Cause::ForgottenDespiteAppendOnly.remedy(),
            LossCause::Unconfirmed if has_aof => Cause::UnconfirmedDespiteAppendOnly.remedy(),
            _ => cause.remedy(),
        }
        .to_owned();
        if scene.status.redis.is_some() {
            remedy = format!("{remedy}; then {ACKNOWLEDGE}");
        }
        let outputs = scene.status.outputs.iter();
        let fullest = outputs.max_by_key(|output| output.quarantined);
        let finding = Diagnosis::new(cause.cause(), cause.why())
            .at(place)
            .what(format!("{} {}{minutes}", loss.amount, cause.what()))
            .remedy(remedy)
            .named(fullest.map_or("NAME", |output| &output.name));
        found.push(finding);
    }
    found
}

fn find_in_cluster(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let (status, mut found) = (scene.status, Vec::new());
    let mut servers = status.redis.iter().flat_map(|redis| &redis.servers);
    if status.nodes.is_empty() && servers.all(|server| server.error.is_none()) {
        let why = "none has done so in the last five minutes";
        found.push(Diagnosis::new(Cause::NoNode, why).at("nodes"));
    }
    if let Some(difference) = scene.difference {
        found.push(difference.clone().at("this configuration and version"));
    }
    if let Some(old) = &status.partitions.old {
        let why = match old.done_in_seconds {
            Some(seconds) => format!(
                "old events come in; at the present rate they are sealed in about {seconds} s"
            ),
            None => "old events come in, and none of their minutes is being sealed".to_owned(),
        };
        let what = format!(
            "{} {} (each in up to {} partitions)",
            old.waiting,
            Cause::OldMinutes.what(),
            status.partitions.count
        );
        found.push(Diagnosis::new(Cause::OldMinutes, why).at("minutes").what(what));
    }
    if status.redis.is_none() {
        let why = "store.url is memory:, which is for one node and ends with it";
        found.push(Diagnosis::new(Cause::MemoryStore, why).at("store"));
    }
    found
}

fn find_in_output(output: &OutputStatus) -> Vec<Diagnosis> {
    let (place, mut found) = (format!("output {}", output.name), Vec::new());
    if output.up == Some(false) {
        let why = output.last_error.clone().unwrap_or_default();
        let down = Diagnosis::new(Cause::OutputDown, why).at(&place);
        found.push(match &output.remedy {
            Some(remedy) => down.remedy(remedy.clone()),
            None => down,
        });
    }
    if let Some(quarantined) = output.quarantined.filter(|counts| *counts > 0) {
        let fill = percent(quarantined, output.quarantined_max);
        let cause = if fill >= 50 { Cause::QuarantineFull } else { Cause::Quarantine };
        let what = format!("{quarantined} counts are quarantined, {fill} % of what fits");
        let why = "the output refused them for good";
        found.push(Diagnosis::new(cause, why).at(&place).what(what).named(&output.name));
    }
    found
}

/// Returns the oldest unsent minute if it is overdue although its output is up.
fn unsent(scene: &Scene<'_>) -> Option<Diagnosis> {
    let oldest = scene.status.partitions.oldest_unsent.as_ref()?;
    let mut outputs = scene.status.outputs.iter();
    let output = outputs.find(|output| output.name == oldest.output);
    let is_down = output.is_some_and(|output| output.up == Some(false));
    let (minute, age) = (&oldest.minute, oldest.age_seconds);
    let closed_within = scene.expected.grace + scene.expected.max_hold;
    if is_down || age < 2 * closed_within.as_secs() + 120 {
        return None;
    }
    let is_gone = output.is_some_and(|output| output.url.is_empty());
    let cause = if is_gone { Cause::OutputGone } else { Cause::Unsent };
    let what = format!("lacks the minute {minute}, which ended {age} s ago");
    let found = Diagnosis::new(cause, &oldest.why).what(what);
    Some(found.at(format_args!("output {}", oldest.output)).named(&oldest.output))
}
