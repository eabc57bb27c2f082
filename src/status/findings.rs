//! The table of findings: each has a condition on what was seen, the words for it, and a remedy. Here are those about outputs and the
//! whole. Pure.

use super::answer::{Finding, OutputStatus, Severity, Status};
use super::observer::Expected;
use super::{node_findings, redis_findings, relay_findings};
use crate::node::LossCause;
use crate::store::StoreError;
use Severity::{Critical, Note, Warning};

/// What a condition looks at.
pub(super) struct Scene<'a> {
    pub(super) status: &'a Status,
    pub(super) expected: &'a Expected,
    /// How the configuration of who asks differs from that of the nodes.
    pub(super) difference: Option<&'a StoreError>,
}

/// What a condition found: where, what, why, and a remedy if it knows a better one than the table.
pub(super) type Found = (String, String, String, Option<String>);

/// A line of the table.
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    pub(super) find: fn(&Scene<'_>) -> Vec<Found>,
    pub(super) remedy: &'static str,
}

/// What ends the finding of a loss, where a record outlives the process.
pub(super) const ACKNOWLEDGE: &str =
    "`eds loss acknowledge`, once you know of it (`eds loss` lists it)";
/// What to do about a Redis that forgot although it has an append-only file.
const FORGOT_DESPITE_AOF: &str = "it has an append-only file, so look at its log: it was emptied or restored, a replica that lacked the last \
     writes took over (give a master with replicas min-replicas-to-write 1), or its host crashed; raise \
     store.replay_window beyond what a crash costs";

/// All that is wrong, worst first.
pub(super) fn of(
    status: &Status,
    expected: &Expected,
    difference: Option<&StoreError>,
) -> Vec<Finding> {
    let scene = Scene {
        status,
        expected,
        difference,
    };
    let redis_and_nodes = redis_findings::RULES.iter().chain(node_findings::RULES);
    found(
        &scene,
        redis_and_nodes.chain(relay_findings::RULES).chain(RULES),
    )
}

fn found<'a>(scene: &Scene<'_>, rules: impl Iterator<Item = &'a Rule>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = rules
        .flat_map(|rule| {
            let found = (rule.find)(scene).into_iter();
            found.map(|(place, what, why, remedy)| Finding {
                id: rule.id,
                severity: rule.severity,
                r#where: place,
                what,
                why,
                remedy: remedy.unwrap_or_else(|| rule.remedy.to_owned()),
            })
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// What is wrong with the relays alone, worst first.
pub(super) fn of_relays(status: &Status) -> Vec<Finding> {
    let scene = Scene {
        status,
        expected: &Expected::default(),
        difference: None,
    };
    found(&scene, relay_findings::RULES.iter())
}

/// What is lost for such a cause and not acknowledged.
pub(super) fn lost(scene: &Scene<'_>, is_meant: fn(LossCause) -> bool) -> Vec<Found> {
    let all = scene.status.losses.iter().flatten();
    let found = all.filter_map(|loss| {
        let cause = LossCause::labelled(&loss.cause).filter(|cause| is_meant(*cause))?;
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
        let what = format!("{} {}{minutes}", loss.amount, cause.what());
        let mut remedy = remedy(scene, cause);
        if scene.status.redis.is_some() {
            remedy = format!("{remedy}; then {ACKNOWLEDGE}");
        }
        Some((place, what, cause.why().to_owned(), Some(remedy)))
    });
    found.collect()
}

/// Returns what to do about a cause, as things stand here.
fn remedy(scene: &Scene<'_>, cause: LossCause) -> String {
    match cause {
        LossCause::Forgotten if redis_findings::has_aof(scene) => FORGOT_DESPITE_AOF.to_owned(),
        LossCause::Unconfirmed if redis_findings::has_aof(scene) => {
            format!(
                "compare the points of these minutes with what you expect; {FORGOT_DESPITE_AOF}"
            )
        }
        LossCause::Discarded => {
            // The output whose quarantine is fullest.
            let outputs = scene.status.outputs.iter();
            let fullest = outputs.max_by_key(|output| output.quarantined);
            let named = fullest.map(|output| cause.remedy().replace("NAME", &output.name));
            named.unwrap_or_else(|| cause.remedy().to_owned())
        }
        cause => cause.remedy().to_owned(),
    }
}

/// Those who have not reported for long: what they are, and of each its name and for how many seconds.
pub(super) fn silent<'a>(
    kind: &str,
    silent: impl Iterator<Item = (&'a String, u64)>,
) -> Vec<Found> {
    let found = silent.map(|(name, seconds)| {
        let what = format!("has been silent for {seconds} s");
        let why = "it sleeps, hangs, died, or is cut off from Redis";
        (format!("{kind} {name}"), what, why.to_owned(), None)
    });
    found.collect()
}

fn outputs(
    scene: &Scene<'_>,
    find: impl Fn(&OutputStatus) -> Option<(String, String, Option<String>)>,
) -> Vec<Found> {
    let all = scene.status.outputs.iter();
    all.filter_map(|output| {
        let (what, why, remedy) = find(output)?;
        Some((format!("output {}", output.name), what, why, remedy))
    })
    .collect()
}

pub(super) fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100) / all.max(1)
}

fn quarantine(scene: &Scene<'_>, is_meant: fn(u64) -> bool) -> Vec<Found> {
    outputs(scene, |output| {
        let quarantined = output.quarantined?;
        let fill = percent(quarantined, output.quarantined_max);
        let what = format!("{quarantined} counts are quarantined, {fill} % of what fits");
        let why = "the output refused them for good".to_owned();
        let remedy = QUARANTINE_REMEDY.replace("NAME", &output.name);
        (quarantined > 0 && is_meant(fill)).then_some((what, why, Some(remedy)))
    })
}

const QUARANTINE_REMEDY: &str = "see `eds quarantine list --output NAME`, and have the server fixed; then `eds quarantine retry --all \
                                 --output NAME`, or `eds quarantine drop --all --output NAME`. Beyond the limit counts are discarded";

/// Every finding that there may be, and each remedy in the tables.
#[must_use]
pub fn catalogue() -> Vec<(&'static str, &'static str)> {
    let rules = redis_findings::RULES.iter().chain(node_findings::RULES);
    let tables =
        (rules.chain(RULES).chain(relay_findings::RULES)).map(|rule| (rule.id, rule.remedy));
    let refusals = redis_findings::REFUSALS.iter();
    let refusals = refusals.map(|(_, _, remedy)| ("redis-read-only", *remedy));
    let others = [
        ("forgotten", FORGOT_DESPITE_AOF),
        ("unsent", GONE_REMEDY),
        ("relay-loop", relay_findings::REST_LOOP_REMEDY),
    ];
    tables.chain(refusals).chain(others).collect()
}

const GONE_REMEDY: &str =
    "configure it again to have that sent, or have it dropped: `eds outputs drop NAME`";

static RULES: &[Rule] = &[
    Rule {
        id: "no-node",
        severity: Critical,
        find: |scene| {
            let is_known = scene.status.redis.as_ref();
            let is_known = is_known.is_none_or(|it| it.servers.iter().all(|it| it.error.is_none()));
            let found = (
                "nodes".to_owned(),
                "no node reports".to_owned(),
                "none has done so in the last five minutes".to_owned(),
                None,
            );
            (is_known && scene.status.nodes.is_empty())
                .then_some(found)
                .into_iter()
                .collect()
        },
        remedy: "start the nodes (`systemctl start eds`), and look whether their store.url and store.prefix are those of this configuration",
    },
    Rule {
        id: "discarded",
        severity: Critical,
        find: |scene| lost(scene, |cause| cause == LossCause::Discarded),
        remedy: QUARANTINE_REMEDY,
    },
    Rule {
        id: "output-down",
        severity: Critical,
        find: |scene| {
            outputs(scene, |output| {
                let why = || output.last_error.clone().unwrap_or_default();
                let what = || "takes no points; counts wait in the store".to_owned();
                (output.up == Some(false)).then(|| (what(), why(), output.remedy.clone()))
            })
        },
        remedy: "start the server, or look at output.url and the network; what waits is sent when it is back",
    },
    Rule {
        id: "quarantine-full",
        severity: Critical,
        find: |scene| quarantine(scene, |percent| percent >= 50),
        remedy: QUARANTINE_REMEDY,
    },
    Rule {
        id: "quarantine",
        severity: Warning,
        find: |scene| quarantine(scene, |percent| percent < 50),
        remedy: QUARANTINE_REMEDY,
    },
    Rule {
        id: "settings",
        severity: Warning,
        find: |scene| {
            let found = |difference: &StoreError| {
                let (why, remedy) = match difference {
                    StoreError::Refused { reason, hint } => (reason.clone(), Some(hint.clone())),
                    error => (error.to_string(), None),
                };
                let what = "cannot work with what the nodes keep in the store";
                let place = "this configuration and version".to_owned();
                (place, what.to_owned(), why, remedy)
            };
            scene.difference.map(found).into_iter().collect()
        },
        remedy: "`eds settings show` prints what differs; `eds settings apply` changes it for all nodes",
    },
    Rule {
        id: "unsent",
        severity: Warning,
        find: |scene| {
            let Some(oldest) = &scene.status.partitions.oldest_unsent else {
                return Vec::new();
            };
            let expected = scene.expected.grace + scene.expected.max_hold;
            let is_down = scene
                .status
                .outputs
                .iter()
                .any(|it| it.name == oldest.output && it.up == Some(false));
            if is_down || oldest.age_seconds < 2 * expected.as_secs() + 120 {
                return Vec::new();
            }
            let what = format!(
                "lacks the minute {}, which ended {} s ago",
                oldest.minute, oldest.age_seconds
            );
            let mut outputs = scene.status.outputs.iter();
            let is_gone = outputs.any(|it| it.name == oldest.output && it.url.is_empty());
            let remedy = is_gone.then(|| GONE_REMEDY.replace("NAME", &oldest.output));
            vec![(
                format!("output {}", oldest.output),
                what,
                oldest.why.clone(),
                remedy,
            )]
        },
        remedy: "see `eds outputs list`, and the logs of the nodes: they say what keeps it back",
    },
    Rule {
        id: "old-minutes",
        severity: Note,
        find: |scene| {
            let Some(old) = &scene.status.partitions.old else {
                return Vec::new();
            };
            let what = format!(
                "{} minutes that ended long ago wait to be sealed (each in up to {} partitions)",
                old.waiting, scene.status.partitions.count
            );
            let why = match old.done_in_seconds {
                Some(seconds) => format!(
                    "old events come in; at the present rate they are sealed in about {seconds} s"
                ),
                None => "old events come in, and none of their minutes is being sealed".to_owned(),
            };
            vec![("minutes".to_owned(), what, why, None)]
        },
        remedy: "nothing, if an archive is replayed: minutes that have just ended come first; otherwise look for a host whose clock is wrong, or lower input.max_age",
    },
    Rule {
        id: "memory-store",
        severity: Note,
        find: |scene| {
            let what = "what is recorded is in the memory of this process";
            let why = "store.url is memory:, which is for one node and ends with it";
            let found = ("store".to_owned(), what.to_owned(), why.to_owned(), None);
            scene
                .status
                .redis
                .is_none()
                .then_some(found)
                .into_iter()
                .collect()
        },
        remedy: "name a Redis in store.url, so that a restart loses no open minute and other nodes can share the work",
    },
];
