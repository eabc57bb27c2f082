//! `eds check --connect`: tries what a node with this configuration would use, and says of each thing what came of it. It changes
//! nothing but the point of `output.probe_measurement`, which nodes write, too.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use chrono::Utc;

use super::build;
use super::status::{observer_of, runtime};
use crate::config::Config;
use crate::event::Minute;
use crate::http::CONNECTIONS_ENOUGH;
use crate::ingest::{ListenAddress, Table, holder};
use crate::status::{Finding, ServerState, ServerStatus, Severity, Status};

/// What came of one thing that was tried: a word for it, what was tried, what is wrong, and what to do.
struct Tried {
    is: Is,
    what: String,
    remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Well,
    Unwise,
    Wrong,
}

impl Tried {
    fn well(what: impl Into<String>) -> Self {
        Self {
            is: Is::Well,
            what: what.into(),
            remedy: String::new(),
        }
    }

    fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            is: Is::Wrong,
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    fn unwise(self) -> Self {
        Self {
            is: Is::Unwise,
            ..self
        }
    }
}

/// Tries everything, and prints a line for each thing; `quiet`: only for what is not well. Answers whether nothing is wrong.
pub fn connect(config: &Config, quiet: bool) -> anyhow::Result<bool> {
    let mut tried = runtime()?.block_on(async {
        let mut tried = store(config).await?;
        tried.extend(outputs(config).await?);
        anyhow::Ok(tried)
    })?;
    tried.extend(sockets(config));
    tried.extend(spool(config));
    tried.push(descriptors(config));
    tried.extend(receive_buffer(config));
    let mut out = io::stdout();
    for it in tried.iter().filter(|it| !quiet || it.is != Is::Well) {
        let word = match it.is {
            Is::Well => "ok      ",
            Is::Unwise => "unwise  ",
            Is::Wrong => "PROBLEM ",
        };
        writeln!(out, "{word} {}", it.what)?;
        if !it.remedy.is_empty() {
            writeln!(out, "         do: {}", it.remedy)?;
        }
    }
    Ok(tried.iter().all(|it| it.is != Is::Wrong))
}

async fn store(config: &Config) -> anyhow::Result<Vec<Tried>> {
    let Some((store, _)) = build::operated(config)? else {
        return Ok(vec![Tried::well("store: the memory of the process")]);
    };
    let rights = store.missing_rights().await;
    let status = observer_of(store, config)?.status().await;
    let mut tried: Vec<Tried> = status
        .findings
        .iter()
        .filter(|it| it.id.starts_with("redis-") || it.id == "settings")
        .map(of_finding)
        .collect();
    tried.extend(well_servers(&status));
    match rights {
        Ok(missing) if missing.is_empty() => tried.push(Tried::well("rights of the Redis user")),
        Ok(missing) => tried.push(Tried::wrong(
            format!("rights of the Redis user: {}", missing.join("; ")),
            "grant the commands and keys of config/redis-acl.conf",
        )),
        // Why it does not answer is said above.
        Err(_away) => {}
    }
    Ok(tried)
}

fn of_finding(finding: &Finding) -> Tried {
    let what = format!("{}: {} ({})", finding.r#where, finding.what, finding.why);
    let tried = Tried::wrong(what, finding.remedy.clone());
    match finding.severity {
        Severity::Critical => tried,
        Severity::Warning | Severity::Note => tried.unwise(),
    }
}

fn well_servers(status: &Status) -> Vec<Tried> {
    let servers = status.redis.iter().flat_map(|redis| &redis.servers);
    let well = |server: &ServerStatus| {
        let ServerState {
            version,
            policy,
            clock_offset_ms,
            ..
        } = server.state.as_ref()?;
        let address = &server.address;
        Some(Tried::well(format!(
            "Redis at {address}: {version}, maxmemory-policy {policy}, its clock differs by {clock_offset_ms} ms"
        )))
    };
    servers.filter_map(well).collect()
}

async fn outputs(config: &Config) -> anyhow::Result<Vec<Tried>> {
    let minute = Minute::of_nanos(Utc::now().timestamp_nanos_opt().unwrap_or(0));
    let destinations = build::outputs(config)?;
    let all = destinations.iter().map(async |it| {
        let place = format!("output {}: {}", it.name, it.output.describe());
        if !it.output.has_server() {
            return Tried::well(place);
        }
        match it.output.probe(minute).await {
            Ok(()) => Tried::well(format!(
                "{place}, takes a point of output.probe_measurement"
            )),
            Err(error) => Tried::wrong(format!("{place}: {}", error.reason()), error.remedy()),
        }
    });
    Ok(futures_util::future::join_all(all).await)
}

fn sockets(config: &Config) -> Vec<Tried> {
    let service = &config.service;
    let of = |what: String, bound: io::Result<()>, holder: &dyn Fn() -> String| match bound {
        Ok(()) => Tried::well(format!("{what} can be bound")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Tried::well(format!(
            "{what} is in use: {}; that is right if it is the service that runs, or eds.socket",
            holder()
        )),
        Err(error) => Tried::wrong(
            format!("{what} cannot be bound: {error}"),
            "name an address of this host, and a port that the service's user may bind",
        ),
    };
    let listen = service.listen.iter().map(|address| {
        let bound = match address {
            ListenAddress::Udp(udp) => UdpSocket::bind(udp).map(drop),
            ListenAddress::Unix(path) => unix(path),
        };
        of(
            format!("input.listen: {address}"),
            bound,
            &|| match address {
                ListenAddress::Udp(udp) => holder(Table::Udp, *udp),
                ListenAddress::Unix(path) => format!("there is {}", path.display()),
            },
        )
    });
    let http = service.http.map(|address| {
        of(
            format!("http.listen: {address}"),
            TcpListener::bind(address).map(drop),
            &|| holder(Table::Tcp, address),
        )
    });
    listen.chain(http).collect()
}

/// Whether a socket could be made there, without making one.
fn unix(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Err(ErrorKind::AddrInUse.into());
    }
    let parent = path.parent().unwrap_or(path);
    if parent.metadata()?.is_dir() {
        Ok(())
    } else {
        Err(ErrorKind::NotADirectory.into())
    }
}

/// Whether it can be written to is looked at with the configuration.
fn spool(config: &Config) -> Option<Tried> {
    let spool = config.service.spool.as_ref()?;
    let place = format!("input.spool_dir: {}", spool.directory.display());
    // One that is still to be made is made on the disk of the directory above.
    let is_there = spool.directory.ancestors().find(|it| it.is_dir())?;
    let free = match rustix::fs::statvfs(is_there) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => {
            let remedy = "name a directory that the service's user may write to";
            return Some(Tried::wrong(format!("{place}: {error}"), remedy));
        }
    };
    let sizes =
        [free, spool.bytes_max].map(|it| bytesize::ByteSize(it).display().iec().to_string());
    let [has, most] = sizes;
    Some(if free < spool.bytes_max {
        let what = format!("{place}: its disk has {has} free, and input.spool_max is {most}");
        Tried::wrong(what, "lower input.spool_max, or give the disk room").unwise()
    } else {
        Tried::well(format!(
            "{place}: can be written to, and its disk has {has} free"
        ))
    })
}

fn descriptors(config: &Config) -> Tried {
    let left = build::left_for_http(config);
    if left < CONNECTIONS_ENOUGH {
        let what = format!(
            "file descriptors: {left} are left for HTTP connections, of {CONNECTIONS_ENOUGH}"
        );
        Tried::wrong(what, "raise LimitNOFILE= in eds.service, or `ulimit -n`").unwise()
    } else {
        Tried::well("file descriptors")
    }
}

fn receive_buffer(config: &Config) -> Option<Tried> {
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?;
    let most: u64 = most.trim().parse().ok()?;
    let wanted = config.service.receive_buffer;
    Some(if most < wanted {
        let what = format!("input.receive_buffer: {wanted} bytes, and net.core.rmem_max is {most}");
        Tried::wrong(
            what,
            format!("sysctl net.core.rmem_max={wanted}, and write it to /etc/sysctl.d"),
        )
        .unwise()
    } else {
        Tried::well(format!("input.receive_buffer: {wanted} bytes"))
    })
}
