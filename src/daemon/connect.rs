//! `eds check --connect`: tries everything that a node with this configuration would use. It only writes the point of
//! `output.probe_measurement`, which nodes write, too.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use chrono::Utc;

use super::build;
use super::status::observer_of;
use super::watch::runtime;
use crate::config::Config;
use crate::diagnosis::{Cause, Diagnosis, Severity};
use crate::event::Minute;
use crate::http::CONNECTIONS_ENOUGH;
use crate::ingest::{ListenAddress, Table, holder};
use crate::store::ServerFound;

/// The result of one trial: a description, or a problem.
type Tried = Result<String, Diagnosis>;

/// Tries everything, and prints a line for each trial; `quiet`: only for problems. Returns whether there is no critical problem.
pub(crate) fn connect(config: &Config, quiet: bool) -> anyhow::Result<bool> {
    let mut tried = runtime()?.block_on(async {
        let mut tried = store(config).await?;
        tried.extend(outputs(config).await?);
        anyhow::Ok(tried)
    })?;
    tried.extend(sockets(config));
    tried.extend(spool(config));
    tried.push(descriptors(config));
    tried.extend(receive_buffer(config));
    let is_wrong = |it: &Diagnosis| it.cause.severity() == Severity::Critical;
    let mut out = io::stdout();
    for it in &tried {
        match it {
            Ok(_) if quiet => {}
            Ok(what) => writeln!(out, "ok       {what}")?,
            Err(found) => {
                let word = if is_wrong(found) { "PROBLEM" } else { "unwise " };
                writeln!(out, "{word}  {}\n         do: {}", found.head(), found.remedy)?;
            }
        }
    }
    Ok(!tried.iter().filter_map(|it| it.as_ref().err()).any(is_wrong))
}

async fn store(config: &Config) -> anyhow::Result<Vec<Tried>> {
    let Some((store, _)) = build::operated(config)? else {
        return Ok(vec![Ok("store: the memory of the process".to_owned())]);
    };
    let rights = store.missing_rights().await;
    let status = observer_of(store, config)?.status().await;
    let of_store = |it: &&Diagnosis| {
        it.cause.id().starts_with("redis-") || it.cause.id() == Cause::Settings.id()
    };
    let found = status.findings.iter().filter(of_store);
    let mut tried: Vec<Tried> = found.cloned().map(Err).collect();
    for server in status.redis.iter().flat_map(|redis| &redis.servers) {
        if let Some(ServerFound { version, policy, clock_offset_ms, .. }) = &server.found {
            tried.push(Ok(format!(
                "Redis at {}: {version}, maxmemory-policy {policy}, its clock differs by {clock_offset_ms} ms",
                server.address
            )));
        }
    }
    // A store that does not answer is among the findings already.
    if let Ok(missing) = rights {
        tried.push(if missing.is_empty() {
            Ok("the Redis user has all permissions".to_owned())
        } else {
            Err(Diagnosis::new(Cause::RedisRights, missing.join("; ")).at("Redis"))
        });
    }
    Ok(tried)
}

async fn outputs(config: &Config) -> anyhow::Result<Vec<Tried>> {
    let minute = Minute::of_nanos(Utc::now().timestamp_nanos_opt().unwrap_or(0));
    let destinations = build::outputs(config)?;
    let all = destinations.iter().map(async |it| {
        let place = format!("output {}: {}", it.name, it.output.describe());
        if !it.output.has_server() {
            return Ok(place);
        }
        match it.output.probe(minute).await {
            Ok(()) => Ok(format!("{place}, takes a point of output.probe_measurement")),
            Err(error) => Err(error.found().clone().at(place)),
        }
    });
    Ok(futures_util::future::join_all(all).await)
}

fn sockets(config: &Config) -> Vec<Tried> {
    let service = &config.service;
    let tried = |what: String, bound: io::Result<()>, holder: &dyn Fn() -> String| match bound {
        Ok(()) => Ok(format!("{what} can be bound")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(format!(
            "{what} is in use: {}; that is right if it is the service that runs, or eds.socket",
            holder()
        )),
        Err(error) => Err(Diagnosis::new(Cause::CannotBind, error.to_string()).at(what)),
    };
    let listen = service.input.listen.iter().map(|address| {
        let bound = match address {
            ListenAddress::Udp(udp) => UdpSocket::bind(udp).map(drop),
            ListenAddress::Unix(path) => unix(path),
        };
        tried(format!("input.listen: {address}"), bound, &|| match address {
            ListenAddress::Udp(udp) => holder(Table::Udp, *udp),
            ListenAddress::Unix(path) => format!("there is {}", path.display()),
        })
    });
    let http = service.http.listen.map(|address| {
        tried(format!("http.listen: {address}"), TcpListener::bind(address).map(drop), &|| {
            holder(Table::Tcp, address)
        })
    });
    listen.chain(http).collect()
}

/// Checks whether a socket could be created there, without creating one.
fn unix(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Err(ErrorKind::AddrInUse.into());
    }
    let parent = path.parent().unwrap_or(path);
    if parent.metadata()?.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// The configuration has checked already that the directory is writable.
fn spool(config: &Config) -> Option<Tried> {
    let spool = config.service.spool.as_ref()?;
    let place = format!("input.spool_dir: {}", spool.directory.display());
    // A missing directory is created on the disk of its parent.
    let is_there = spool.directory.ancestors().find(|it| it.is_dir())?;
    let free = match rustix::fs::statvfs(is_there) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let found = Diagnosis::new(Cause::SpoolDirectory, error.to_string());
            return Some(Err(found.at(place)));
        }
    };
    let sizes =
        [free, spool.bytes_max].map(|it| bytesize::ByteSize(it).display().iec().to_string());
    let [has, most] = sizes;
    Some(if free < spool.bytes_max {
        let why = format!("{has} are free, and input.spool_max is {most}");
        Err(Diagnosis::new(Cause::SpoolDisk, why).at(place))
    } else {
        Ok(format!("{place}: can be written to, and its disk has {has} free"))
    })
}

fn descriptors(config: &Config) -> Tried {
    let left = build::left_for_http(config);
    if left < CONNECTIONS_ENOUGH {
        let why = format!("{left} are left for HTTP connections, of {CONNECTIONS_ENOUGH}");
        return Err(Diagnosis::new(Cause::FewDescriptors, why).at("file descriptors"));
    }
    Ok("file descriptors".to_owned())
}

fn receive_buffer(config: &Config) -> Option<Tried> {
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?;
    let most: u64 = most.trim().parse().ok()?;
    let wanted = config.service.input.receive_buffer;
    Some(if most < wanted {
        let why = format!("{wanted} bytes, and net.core.rmem_max is {most}");
        Err(Diagnosis::new(Cause::SmallBuffer, why).at("input.receive_buffer"))
    } else {
        Ok(format!("input.receive_buffer: {wanted} bytes"))
    })
}
