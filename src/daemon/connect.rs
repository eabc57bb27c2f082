//! `eds check --connect`: tests every server, socket and system limit that a node would use. Only a probe point is written.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use bytesize::ByteSize;
use chrono::Utc;
use rustix::fs::Access;

use super::status::observer_of;
use super::{build, runtime};
use crate::config::{Config, Store};
use crate::diagnosis::{Cause, Diagnosis, Severity};
use crate::event::Minute;
use crate::http::CONNECTIONS_ENOUGH;
use crate::ingest::{ListenAddress, Table, holder};
use crate::output::OtlpClient;
use crate::output::server::Settings;
use crate::store::ServerFound;

type Tested = Result<String, Diagnosis>;

/// Runs all tests and prints their results, or with `quiet` only problems. Returns false if there is a critical problem.
pub(crate) fn connect(config: &Config, quiet: bool) -> anyhow::Result<bool> {
    let mut tested = runtime()?.block_on(async {
        let mut tested = store(config).await?;
        tested.extend(outputs(config).await?);
        if let Some(telemetry) = &config.telemetry {
            tested.push(collector(&telemetry.metrics).await);
        }
        anyhow::Ok(tested)
    })?;
    tested.extend(sockets(config));
    tested.extend(spool(config));
    tested.push(descriptors(config));
    tested.extend(receive_buffer(config));
    let is_critical = |finding: &Diagnosis| finding.cause.severity() == Severity::Critical;
    let mut out = io::stdout();
    for result in &tested {
        match result {
            Ok(_) if quiet => {}
            Ok(text) => writeln!(out, "ok       {text}")?,
            Err(found) => {
                let word = if is_critical(found) { "PROBLEM" } else { "WARNING" };
                writeln!(out, "{word}  {}\n         do: {}", found.head(), found.remedy)?;
            }
        }
    }
    Ok(!tested.iter().filter_map(|result| result.as_ref().err()).any(is_critical))
}

async fn store(config: &Config) -> anyhow::Result<Vec<Tested>> {
    if matches!(config.store, Store::Memory { .. }) {
        return Ok(vec![Ok("store: the memory of this process".to_owned())]);
    }
    let (store, _) = build::operated(config)?;
    let rights = store.missing_rights().await;
    let status = observer_of(store, config)?.status().await;
    let of_store = |finding: &&Diagnosis| {
        finding.cause.id().starts_with("redis-") || finding.cause.id() == Cause::Settings.id()
    };
    let found = status.findings.iter().filter(of_store);
    let mut tested: Vec<Tested> = found.cloned().map(Err).collect();
    for server in status.redis.iter().flat_map(|redis| &redis.servers) {
        if let Some(ServerFound { version, policy, clock_offset_ms, .. }) = &server.found {
            tested.push(Ok(format!(
                "Redis at {}: {version}, maxmemory-policy {policy}, clock offset {clock_offset_ms} ms",
                server.address
            )));
        }
    }
    // If the store is not responding, the findings already say so.
    if let Ok(missing) = rights {
        tested.push(if missing.is_empty() {
            Ok("the Redis user has all required permissions".to_owned())
        } else {
            Err(Diagnosis::new(Cause::RedisRights, missing.join("; ")).at("Redis"))
        });
    }
    Ok(tested)
}

async fn outputs(config: &Config) -> anyhow::Result<Vec<Tested>> {
    let minute = Minute::of_nanos(Utc::now().timestamp_nanos_opt().unwrap_or(0));
    let destinations = build::outputs(config)?;
    let all = destinations.iter().map(async |destination| {
        let place = format!("output {}: {}", destination.name, destination.output.describe());
        if !destination.output.has_server() {
            return Ok(place);
        }
        match destination.output.probe(minute).await {
            Ok(()) => Ok(format!("{place} accepts points (tested with output.probe_measurement)")),
            Err(error) => Err(error.found().clone().at(place)),
        }
    });
    Ok(futures_util::future::join_all(all).await)
}

/// Sends a request without metrics.
async fn collector(settings: &Settings) -> Tested {
    let failed = |why: String| Diagnosis::new(Cause::Collector, why).at("telemetry.otlp_url");
    let client = OtlpClient::new(settings).map_err(|error| failed(error.to_string()))?;
    match client.post(Vec::new()).await {
        Ok(()) => Ok(format!("telemetry.otlp_url: {} accepts metrics", client.describe())),
        Err(error) => Err(failed(error.found().why.clone())),
    }
}

fn sockets(config: &Config) -> Vec<Tested> {
    let tested = |subject: String, bound: io::Result<()>, holder: &dyn Fn() -> String| match bound {
        Ok(()) => Ok(format!("{subject} can be bound")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(format!(
            "{subject} is in use: {}; this is expected if the running service or eds.socket holds it",
            holder()
        )),
        Err(error) => Err(Diagnosis::new(Cause::CannotBind, error.to_string()).at(subject)),
    };
    let listen = config.input.listen.iter().map(|address| {
        let subject = format!("input.listen: {address}");
        match address {
            ListenAddress::Udp(udp) => {
                tested(subject, UdpSocket::bind(udp).map(drop), &|| holder(Table::Udp, *udp))
            }
            ListenAddress::Unix(path) => {
                tested(subject, unix(path), &|| format!("{} exists", path.display()))
            }
        }
    });
    let http = config.http.listen.map(|address| {
        let bound = TcpListener::bind(address).map(drop);
        tested(format!("http.listen: {address}"), bound, &|| holder(Table::Tcp, address))
    });
    listen.chain(http).collect()
}

/// Checks whether a socket can be created at this path. Returns [`ErrorKind::AddrInUse`] if the path exists.
fn unix(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Err(ErrorKind::AddrInUse.into());
    }
    let parent = path.parent().unwrap_or(path);
    if parent.metadata()?.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// Checks whether the spool's directory is writable, and whether its disk has room for it. Returns `None` if there is no spool.
fn spool(config: &Config) -> Option<Tested> {
    let spool = config.spool.as_ref()?;
    let place = format!("input.spool_dir: {}", spool.directory.display());
    // If the directory does not exist yet, it will be created on the disk of its parent.
    let existing = spool.directory.ancestors().find(|path| path.is_dir())?;
    let writable = rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK);
    let free = match writable.and_then(|()| rustix::fs::statvfs(existing)) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let why = format!("{}: {error}", existing.display());
            return Some(Err(Diagnosis::new(Cause::SpoolDirectory, why).at(place)));
        }
    };
    let [has, most] = [free, spool.bytes_max].map(|bytes| ByteSize(bytes).display().iec());
    Some(if free < spool.bytes_max {
        let why = format!("{has} are free, but input.spool_max is {most}");
        Err(Diagnosis::new(Cause::SpoolDisk, why).at(place))
    } else {
        Ok(format!("{place} is writable, and its disk has {has} free"))
    })
}

fn descriptors(config: &Config) -> Tested {
    let left = build::left_for_http(config);
    let place = "file descriptors";
    if left < CONNECTIONS_ENOUGH {
        let why =
            format!("{left} remain for HTTP connections; {CONNECTIONS_ENOUGH} are recommended");
        return Err(Diagnosis::new(Cause::FewDescriptors, why).at(place));
    }
    Ok(place.to_owned())
}

fn receive_buffer(config: &Config) -> Option<Tested> {
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?;
    let most: u64 = most.trim().parse().ok()?;
    let wanted = config.input.receive_buffer;
    Some(if most < wanted {
        let why = format!("{wanted} bytes are configured, but net.core.rmem_max is {most}");
        Err(Diagnosis::new(Cause::SmallBuffer, why).at("input.receive_buffer"))
    } else {
        Ok(format!("input.receive_buffer: {wanted} bytes"))
    })
}
