//! Finds the server that owns each slot: the master that the sentinels report, or the masters of a Redis Cluster.

use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::{Client, Cmd, FromRedisValue, Value};

use crate::server::Server;
use crate::settings::{Address, Endpoint, Settings, SettingsError};
use crate::{Fault, FaultKind};

pub(crate) const LAST_SLOT: u16 = 16383;

pub(crate) type Slots<S> = Vec<(RangeInclusive<u16>, S)>;

/// Queries the sentinels or cluster nodes one after another, and returns the first slot map received. Each call starts with
/// a different server, selected by `times`, because an isolated node returns an outdated map.
pub(crate) async fn find(
    settings: &Settings,
    times: usize,
    mut servers: Vec<Arc<Server>>,
) -> Result<Slots<Endpoint>, Fault> {
    let mut failure = Fault::unavailable("the address contains no host");
    match &settings.address {
        Address::Cluster(nodes) => {
            let first = times % servers.len().max(1);
            servers.rotate_left(first);
            // Connected servers go first, because each server that does not respond delays the map by a timeout.
            servers.sort_by_key(|server| !server.is_connected());
            let mut asked: Vec<_> = servers.iter().map(|server| server.endpoint()).collect();
            asked.extend(
                nodes.iter().filter(|node| servers.iter().all(|server| server.endpoint() != *node)),
            );
            for endpoint in asked {
                match ask_cluster(settings, endpoint).await {
                    Ok(slots) => return Ok(slots),
                    Err(fault) => failure = fault,
                }
            }
        }
        Address::Sentinel(sentinels, name) => {
            let mut silent = None;
            let first = times % sentinels.len().max(1);
            for endpoint in sentinels.iter().cycle().skip(first).take(sentinels.len()) {
                match ask_sentinel(settings, endpoint, name).await {
                    Ok(master) => return Ok(vec![(0..=LAST_SLOT, master)]),
                    Err(fault) if fault.is_refusal() => failure = fault,
                    Err(fault) => silent = Some(fault),
                }
            }
            // A sentinel that did not reply may know the master, so the name is rejected only if every sentinel rejects it.
            failure = silent.unwrap_or(failure);
        }
        Address::Server(_) => {}
    }
    Err(failure)
}

async fn ask_cluster(settings: &Settings, endpoint: &Endpoint) -> Result<Slots<Endpoint>, Fault> {
    let command = redis::cmd("CLUSTER").arg("SLOTS").take();
    let server = format!("Redis at {endpoint}");
    let answer: Vec<Vec<Value>> =
        ask(settings, settings.client(endpoint), &command, &server).await?;
    let slots: Option<Slots<_>> =
        answer.into_iter().map(|range| read_range(range, endpoint)).collect();
    let slots = slots.filter(|slots| !slots.is_empty());
    slots.ok_or_else(|| Fault::unavailable(format!("{endpoint} returned no slot map")))
}

async fn ask_sentinel(
    settings: &Settings,
    endpoint: &Endpoint,
    name: &str,
) -> Result<Endpoint, Fault> {
    let command = redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).take();
    let server = format!("the sentinel at {endpoint}");
    let answer: Option<(String, u16)> =
        ask(settings, settings.sentinel(endpoint), &command, &server).await?;
    answer.map(|(host, port)| Endpoint::Tcp(host, port)).ok_or_else(|| {
        let reason = format!("the sentinel at {endpoint} does not monitor a master named {name}");
        Fault::new(FaultKind::MasterName, reason)
    })
}

async fn ask<T: FromRedisValue>(
    settings: &Settings,
    client: Result<Client, SettingsError>,
    command: &Cmd,
    server: &str,
) -> Result<T, Fault> {
    let client =
        client.map_err(|error| Fault::unavailable(format!("cannot query {server}: {error}")))?;
    let asked = async { command.query_async(&mut settings.connect(&client).await?).await };
    asked.await.map_err(|error| Fault::of_greeting(&error, &client).at(&server))
}

/// Parses one entry of a `CLUSTER SLOTS` reply, and returns its slots and their master; None if it is malformed. If the
/// entry names no host, the master is on the host of the node that was `asked`.
fn read_range(range: Vec<Value>, asked: &Endpoint) -> Option<(RangeInclusive<u16>, Endpoint)> {
    let mut parts = range.into_iter();
    let first = redis::from_redis_value(parts.next()?).ok()?;
    let last = redis::from_redis_value(parts.next()?).ok()?;
    let Value::Array(master) = parts.next()? else {
        return None;
    };
    let mut master = master.into_iter();
    let host: Option<String> = redis::from_redis_value(master.next()?).ok()?;
    let port: u16 = redis::from_redis_value(master.next()?).ok()?;
    let host = match (host, asked) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        (_, Endpoint::Tcp(host, _)) => host.clone(),
        (_, Endpoint::Unix(_)) => return None,
    };
    Some((first..=last, Endpoint::Tcp(host, port)))
}
