//! All that a store holds, as the keys in Redis: what is there, and what must be there by the model.

use std::collections::BTreeMap;

use std::iter;

use event_data_service::event::Minute;
use event_data_service::store::Quarantined;
use event_data_service::store::memory::{
    Held, MinuteState, OpenSets, PartitionState, Stamp, State,
};
use redis::{Connection, Value, from_redis_value, pipe};

/// Name → content, in an order of its own.
pub(crate) type Keys = BTreeMap<String, String>;

/// Reads every key. `number` gives the epochs the numbers by which both sides know them.
pub(crate) fn of_redis(connection: &mut Connection, mut number: impl FnMut(u64) -> usize) -> Keys {
    let mut names: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).unwrap();
    names.retain(|name| !is_of_logs(name));
    if names.is_empty() {
        return Keys::new();
    }
    let mut contents = pipe();
    for name in &names {
        match kind(name) {
            Kind::Hash => contents.hgetall(name),
            Kind::Counts => contents.hgetall(name).cmd("PEXPIRETIME").arg(name),
            Kind::SortedSet => contents.zrange_withscores(name, 0, -1),
            Kind::Set => contents.smembers(name),
        };
    }
    let contents: Vec<Value> = contents.query(connection).unwrap();
    let mut contents = contents.into_iter();
    let mut keys = Keys::new();
    for name in names {
        let kind = kind(&name);
        let content: Vec<String> = from_redis_value(contents.next().unwrap()).unwrap();
        let expires: Option<i64> = matches!(kind, Kind::Counts)
            .then(|| from_redis_value(contents.next().unwrap()).unwrap());
        // The nodes' settings are no part of what they keep.
        if name == "eds:settings" {
            continue;
        }
        let entries = if matches!(kind, Kind::Set) {
            content
        } else {
            let entry = |entry: &[String]| match &*entry[0] {
                "epoch" if name.ends_with(":witness") => {
                    format!("epoch={}", number(entry[1].parse().unwrap()))
                }
                field => format!("{field}={}", entry[1]),
            };
            content.chunks(2).map(entry).collect()
        };
        let content = joined(entries, expires.filter(|at| *at >= 0));
        keys.insert(name, content);
    }
    keys
}

/// The name of a minute's key, without the minute.
fn of_a_minute(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once("}:")?;
    let is_of_a_minute = rest.starts_with(|first: char| first.is_ascii_digit());
    is_of_a_minute.then(|| rest.splitn(3, ':').last())?
}

fn is_of_logs(name: &str) -> bool {
    of_a_minute(name).is_some_and(|what| matches!(what, "logs" | "cut") || what.starts_with("log:"))
}

/// What must be there where events are kept in logs: no sets.
pub(crate) fn without_sets(mut keys: Keys) -> Keys {
    keys.retain(|name, _| {
        let what = of_a_minute(name).and_then(|what| what.split(':').next());
        !matches!(
            what,
            Some("event_types" | "unique_user" | "cumulative_user")
        )
    });
    keys
}

/// What a key holds.
#[derive(Clone, Copy)]
enum Kind {
    Hash,
    /// A hash that may expire.
    Counts,
    SortedSet,
    Set,
}

/// Of a name such as `{eds:2}:minutes`, `{eds:2}:claims:one` or `{eds:2}:20161204:1118:counts`.
fn kind(name: &str) -> Kind {
    let Some((_, rest)) = name.split_once("}:") else {
        return Kind::Hash;
    };
    let of_partition = rest.split(':').next().unwrap();
    match of_a_minute(name).unwrap_or(of_partition) {
        "minutes" | "claims" | "closed" => Kind::SortedSet,
        "tokens" | "arrivals" | "idle" | "lagging" | "quarantine" | "witness" | "stamps" => {
            Kind::Hash
        }
        "counts" | "coverage" => Kind::Counts,
        _ => Kind::Set,
    }
}

/// What must be there. `tags` are the hash tags of the partitions.
pub(crate) fn of_memory(state: &State, tags: &[String], number: impl FnMut(u64) -> usize) -> Keys {
    let mut keys = Keys::new();
    let mut number = number;
    for (partition, tag) in state.partitions.iter().zip(tags) {
        let mut put = |name: &str, entries: Vec<String>, expires: Option<i64>| {
            if !entries.is_empty() {
                keys.insert(format!("{tag}:{name}"), joined(entries, expires));
            }
        };
        of_partition(partition, &mut number, &mut put);
        for (minute, state) in &partition.minutes {
            of_minute(*minute, state, |name, entries, expires| {
                put(&format!("{minute}:{name}"), entries, expires);
            });
        }
    }
    keys
}

fn of_partition(
    partition: &PartitionState,
    number: &mut impl FnMut(u64) -> usize,
    put: &mut impl FnMut(&str, Vec<String>, Option<i64>),
) {
    let waiting = partition.waiting.iter();
    let waiting = waiting.map(|minute| format!("{minute}={}", minute.epoch_minutes()));
    put("minutes", waiting.collect(), None);
    let to_send = partition.sending.iter();
    let to_send = to_send.map(|(output, claims)| (format!(":{output}"), claims));
    for (of, claims) in to_send.chain(iter::once((String::new(), &partition.claims))) {
        let deadlines = claims.iter();
        let deadlines = deadlines.map(|(minute, held)| format!("{minute}={}", held.deadline_ms));
        put(&format!("claims{of}"), deadlines.collect(), None);
        let is_held = |(_, held): &(_, &Held)| !held.token.is_empty();
        let tokens = claims.iter().filter(is_held);
        let tokens = tokens.map(|(minute, held)| format!("{minute}={}", held.token));
        put(&format!("tokens{of}"), tokens.collect(), None);
    }
    let outputs = partition.sending.keys().map(ToString::to_string);
    put("outputs", outputs.collect(), None);
    let minutes = || partition.minutes.iter();
    let arrivals = minutes().filter(|(_, state)| state.arrivals > 0);
    let arrivals = arrivals.map(|(minute, state)| format!("{minute}={}", state.arrivals));
    put("arrivals", arrivals.collect(), None);
    let idle = minutes().filter_map(|(minute, state)| {
        let idle = state.idle.as_ref()?;
        let (since, first) = (idle.since_ms, idle.first_ms);
        Some(format!("{minute}={}|{since}|{first}", idle.arrivals))
    });
    put("idle", idle.collect(), None);
    let lagging = partition.lagging.iter();
    put(
        "lagging",
        lagging
            .map(|(node, until)| format!("{node}={until}"))
            .collect(),
        None,
    );
    for (output, quarantine) in &partition.quarantine {
        let quarantine = quarantine.values().map(|entry| {
            let Quarantined {
                minute,
                series,
                unique,
                cumulative,
                since,
                message,
            } = entry;
            format!("{minute}:{series}={unique}:{cumulative}|{since}|{message}")
        });
        let name = format!("quarantine:{output}");
        put(&name, quarantine.collect(), None);
    }
    let witness = &partition.witness;
    let there =
        |name: &str, value: u64, is_there: bool| is_there.then(|| format!("{name}={value}"));
    let fields = [
        (witness.epoch != 0).then(|| format!("epoch={}", number(witness.epoch))),
        there("forgot_from", witness.forgot_from, witness.epoch != 0),
        (witness.epoch != 0).then(|| format!("forgot_from_ms={}", witness.forgot_from_ms)),
        there("stamp", witness.stamp, witness.stamp != 0),
        witness.clock_ms.map(|clock| format!("clock={clock}")),
        (witness.sequence != 0).then(|| format!("sequence={}", witness.sequence)),
        witness.since.map(|since| format!("since={since}")),
        witness.newest.map(|newest| format!("newest={newest}")),
    ];
    put("witness", fields.into_iter().flatten().collect(), None);
    let closed = witness.closed.iter();
    let closed = closed.map(|(minute, number)| format!("{}={number}", minute.epoch_minutes()));
    put("closed", closed.collect(), None);
    let stamps = witness.stamps.iter();
    put(
        "stamps",
        stamps
            .map(|(node, stamp)| {
                let Stamp {
                    number,
                    heard,
                    alive_until_ms,
                    late,
                } = stamp;
                format!("{node}={number}|{heard}|{alive_until_ms}|{late}")
            })
            .collect(),
        None,
    );
}

fn of_minute(
    minute: Minute,
    state: &MinuteState,
    mut put: impl FnMut(&str, Vec<String>, Option<i64>),
) {
    let counts = state.counts.iter();
    let counts = counts.map(|(series, (unique, all))| format!("{series}={unique}:{all}"));
    let admitted = state.admitted.iter().map(|series| format!("{series}="));
    put("counts", counts.chain(admitted).collect(), state.expires_ms);
    let coverage = state.coverage.iter();
    let coverage = coverage.map(|(process, events)| format!("{process}={events}"));
    put("coverage", coverage.collect(), state.coverage_until_ms);
    for (output, unsent) in &state.unsent {
        let name = format!("unsent:{output}");
        put(&name, unsent.iter().cloned().collect(), None);
    }
    put("event_types", state.sets.keys().cloned().collect(), None);
    for OpenSets {
        series,
        users,
        events,
    } in state.open_sets(minute)
    {
        put(&format!("unique_user:{series}"), users, None);
        put(&format!("cumulative_user:{series}"), events, None);
    }
}

fn joined(mut entries: Vec<String>, expires_ms: Option<i64>) -> String {
    entries.sort_unstable();
    let expires = expires_ms
        .map(|at| format!(" until {at}"))
        .unwrap_or_default();
    format!("{}{expires}", entries.join(" "))
}

/// The keys that are not the same, each with what Redis has and what the model has.
pub(crate) fn different(redis: &Keys, model: &Keys) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = redis.keys().chain(model.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| redis.get(*name) != model.get(*name));
    let shown =
        |keys: &Keys, name: &str| keys.get(name).map_or("nothing", String::as_str).to_owned();
    differ
        .map(|name| {
            format!(
                "{name}\n    redis:  {}\n    memory: {}",
                shown(redis, name),
                shown(model, name)
            )
        })
        .collect()
}
