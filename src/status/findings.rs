//! What is wrong, from what was seen. Here is what concerns outputs and the whole. Pure.

use super::answer::{OutputStatus, Status};
use super::scene::{Expected, Scene, percent};
use super::{node_findings, redis_findings, relay_findings};
use crate::diagnosis::{ACKNOWLEDGE, Cause, Diagnosis, LossCause};

/// All that is wrong, worst first.
pub(super) fn of(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let mut found = redis_findings::of(scene);
    found.extend(node_findings::of(scene));
    found.extend(relay_findings::of(scene));
    found.extend(lost(scene));
    found.extend(of_the_whole(scene));
    found.extend(scene.status.outputs.iter().flat_map(of_output));
    found.extend(unsent(scene));
    sorted(found)
}

/// What is wrong with the relays alone, worst first.
pub(super) fn of_relays(status: &Status) -> Vec<Diagnosis> {
    let scene = Scene { status, expected: &Expected::default(), difference: None };
    let mut found = relay_findings::of(&scene);
    found.extend(lost(&scene));
    sorted(found)
}

fn sorted(mut found: Vec<Diagnosis>) -> Vec<Diagnosis> {
    found.sort_by_key(|it| (it.cause.severity(), it.cause));
    found
}

/// What is lost and not acknowledged.
fn lost(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let all = scene.status.losses.iter().flatten();
    let found = all.filter_map(|loss| {
        let known = LossCause::labelled(&loss.cause)?;
        let kind = if known.is_of_relay() { "relay" } else { "node" };
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
        let mut remedy = match known {
            LossCause::Forgotten if redis_findings::has_aof(scene) => {
                Cause::ForgottenDespiteAppendOnly.remedy()
            }
            LossCause::Unconfirmed if redis_findings::has_aof(scene) => {
                Cause::UnconfirmedDespiteAppendOnly.remedy()
            }
            known => known.remedy(),
        }
        .to_owned();
        if scene.status.redis.is_some() {
            remedy = format!("{remedy}; then {ACKNOWLEDGE}");
        }
        let found = Diagnosis::new(known.cause(), known.why()).at(place);
        let found = found.what(format!("{} {}{minutes}", loss.amount, known.what()));
        // The output whose quarantine is fullest.
        let outputs = scene.status.outputs.iter();
        let fullest = outputs.max_by_key(|output| output.quarantined);
        Some(found.remedy(remedy).named(fullest.map_or("NAME", |it| &it.name)))
    });
    found.collect()
}

fn of_the_whole(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let (status, mut found) = (scene.status, Vec::new());
    let servers = status.redis.as_ref().map(|redis| &redis.servers);
    let is_known = servers.is_none_or(|all| all.iter().all(|it| it.error.is_none()));
    if is_known && status.nodes.is_empty() {
        let why = "none has done so in the last five minutes";
        found.push(Diagnosis::new(Cause::NoNode, why).at("nodes"));
    }
    let difference = scene.difference.cloned();
    found.extend(difference.map(|it| it.at("this configuration and version")));
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

fn of_output(output: &OutputStatus) -> Vec<Diagnosis> {
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
        let what = format!("{quarantined} counts are quarantined, {fill} % of what fits");
        let why = "the output refused them for good";
        found.push(Diagnosis::new(cause, why).what(what).named(&output.name));
    }
    let place = format!("output {}", output.name);
    found.into_iter().map(|it| it.at(&place)).collect()
}

fn unsent(scene: &Scene<'_>) -> Option<Diagnosis> {
    let oldest = scene.status.partitions.oldest_unsent.as_ref()?;
    let mut outputs = scene.status.outputs.iter();
    let output = outputs.find(|it| it.name == oldest.output);
    let is_down = output.is_some_and(|it| it.up == Some(false));
    let expected = scene.expected.grace + scene.expected.max_hold;
    if is_down || oldest.age_seconds < 2 * expected.as_secs() + 120 {
        return None;
    }
    let (minute, age) = (&oldest.minute, oldest.age_seconds);
    let cause = match output {
        Some(output) if output.url.is_empty() => Cause::OutputGone,
        _ => Cause::Unsent,
    };
    let found = Diagnosis::new(cause, &oldest.why).at(format_args!("output {}", oldest.output));
    let found = found.what(format!("lacks the minute {minute}, which ended {age} s ago"));
    Some(found.named(&oldest.output))
}
