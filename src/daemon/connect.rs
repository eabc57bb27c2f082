//! `eds check --connect`: tests everything a node would use. It writes only the `output.probe_measurement` point, as nodes do.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use bytesize::ByteSize;
use chrono::Utc;

use super::status::observer_of;
use super::{build, runtime};
use crate::config::{Config, Store};
use crate::diagnosis::{Cause, Diagnosis, Severity};
use crate::event::Minute;
use crate::http::CONNECTIONS_ENOUGH;
use crate::ingest::{ListenAddress, Table, holder};
use crate::store::ServerFound;

type Tested = Result<String, Diagnosis>;

/// Tests everything and prints each result, or with `quiet` only problems. Returns whether there is no critical problem.
pub(crate) fn connect(config: &Config, quiet: bool) -> anyhow::Result<bool> {
    let mut tested = runtime()?.block_on(async {
        let mut tested = store(config).await?;
        tested.extend(outputs(config).await?);
        anyhow::Ok(tested)
    })?;
    tested.extend(sockets(config));
    tested.extend(spool(config));
    tested.push(descriptors(config));
    tested.extend(receive_buffer(config));
    let is_critical = |it: &Diagnosis| it.cause.severity() == Severity::Critical;
    let mut out = io::stdout();
    for it in &tested {
        match it {
            Ok(_) if quiet => {}
            Ok(what) => writeln!(out, "ok       {what}")?,
            Err(found) => {
                let word = if is_critical(found) { "PROBLEM" } else { "unwise " };
                writeln!(out, "{word}  {}\n         do: {}", found.head(), found.remedy)?;
            }
        }
    }
    Ok(!tested.iter().filter_map(|it| it.as_ref().err()).any(is_critical))
}

async fn store(config: &Config) -> anyhow::Result<Vec<Tested>> {
    if matches!(config.store, Store::Memory { .. }) {
        return Ok(vec![Ok("store: the memory of the process".to_owned())]);
    }
    let (store, _) = build::operated(config)?;
    let rights = store.missing_rights().await;
    let status = observer_of(store, config)?.status().await;
    let of_store = |it: &&Diagnosis| {
        it.cause.id().starts_with("redis-") || it.cause.id() == Cause::Settings.id()
    };
    let found = status.findings.iter().filter(of_store);
    let mut tested: Vec<Tested> = found.cloned().map(Err).collect();
    for server in status.redis.iter().flat_map(|redis| &redis.servers) {
        if let Some(ServerFound { version, policy, clock_offset_ms, .. }) = &server.found {
            tested.push(Ok(format!(
                "Redis at {}: {version}, maxmemory-policy {policy}, its clock differs by {clock_offset_ms} ms",
                server.address
            )));
        }
    }
    // A store that is not responding is already among the findings.
    if let Ok(missing) = rights {
        tested.push(if missing.is_empty() {
            Ok("the Redis user has all permissions".to_owned())
        } else {
            Err(Diagnosis::new(Cause::RedisRights, missing.join("; ")).at("Redis"))
        });
    }
    Ok(tested)
}

async fn outputs(config: &Config) -> anyhow::Result<Vec<Tested>> {
    let minute = Minute::of_nanos(Utc::now().timestamp_nanos_opt().unwrap_or(0));
    let destinations = build::outputs(config)?;
    let all = destinations.iter().map(async |it| {
        let place = format!("output {}: {}", it.name, it.output.describe());
        if !it.output.has_server() {
            return Ok(place);
        }
        match it.output.probe(minute).await {
            Ok(()) => Ok(format!("{place}, accepts a point of output.probe_measurement")),
            Err(error) => Err(error.found().clone().at(place)),
        }
    });
    Ok(futures_util::future::join_all(all).await)
}

fn sockets(config: &Config) -> Vec<Tested> {
    let tested = |what: String, bound: io::Result<()>, holder: &dyn Fn() -> String| match bound {
        Ok(()) => Ok(format!("{what} can be bound")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(format!(
            "{what} is in use: {}; this is expected if the running service or eds.socket holds it",
            holder()
        )),
        Err(error) => Err(Diagnosis::new(Cause::CannotBind, error.to_string()).at(what)),
    };
    let listen = config.input.listen.iter().map(|address| {
        let what = format!("input.listen: {address}");
        match address {
            ListenAddress::Udp(udp) => {
                tested(what, UdpSocket::bind(udp).map(drop), &|| holder(Table::Udp, *udp))
            }
            ListenAddress::Unix(path) => {
                tested(what, unix(path), &|| format!("{} exists", path.display()))
            }
        }
    });
    let http = config.http.listen.map(|address| {
        let bound = TcpListener::bind(address).map(drop);
        tested(format!("http.listen: {address}"), bound, &|| holder(Table::Tcp, address))
    });
    listen.chain(http).collect()
}

/// Checks whether a socket could be created at this path, without creating one.
fn unix(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Err(ErrorKind::AddrInUse.into());
    }
    let parent = path.parent().unwrap_or(path);
    if parent.metadata()?.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// The configuration check has already verified that the directory is writable.
fn spool(config: &Config) -> Option<Tested> {
    let spool = config.spool.as_ref()?;
    let place = format!("input.spool_dir: {}", spool.directory.display());
    // A missing directory will be created on its parent's disk.
    let existing = spool.directory.ancestors().find(|it| it.is_dir())?;
    let free = match rustix::fs::statvfs(existing) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let found = Diagnosis::new(Cause::SpoolDirectory, error.to_string());
            return Some(Err(found.at(place)));
        }
    };
    let [has, most] = [free, spool.bytes_max].map(|it| ByteSize(it).display().iec());
    Some(if free < spool.bytes_max {
        let why = format!("{has} are free, and input.spool_max is {most}");
        Err(Diagnosis::new(Cause::SpoolDisk, why).at(place))
    } else {
        Ok(format!("{place}: is writable, and its disk has {has} free"))
    })
}

fn descriptors(config: &Config) -> Tested {
    let left = build::left_for_http(config);
    let place = "file descriptors";
    if left < CONNECTIONS_ENOUGH {
        let why = format!("{left} remain for HTTP connections; {CONNECTIONS_ENOUGH} are enough");
        return Err(Diagnosis::new(Cause::FewDescriptors, why).at(place));
    }
    Ok(place.to_owned())
}

fn receive_buffer(config: &Config) -> Option<Tested> {
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?;
    let most: u64 = most.trim().parse().ok()?;
    let wanted = config.input.receive_buffer;
    Some(if most < wanted {
        let why = format!("{wanted} bytes are configured, and net.core.rmem_max is {most}");
        Err(Diagnosis::new(Cause::SmallBuffer, why).at("input.receive_buffer"))
    } else {
        Ok(format!("input.receive_buffer: {wanted} bytes"))
    })
}
