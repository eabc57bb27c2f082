//! Measures other programs that count events: collectd from Debian and statsd from npm. Both accept the statsd protocol and
//! publish to Graphite, which is replaced by a thread that collects the values.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tempfile::TempDir;
use testing::eventually::{SOON, eventually, when};
use testing::ports::free_port;

use super::Figures;
use super::flow::{Flow, Protocol};
use crate::measure::{float, peak_memory_mb, process_cpu};

/// Where `scripts/bench` installs statsd with npm.
const STATSD: &str = "target/bench/peers/node_modules/statsd";
/// The publication interval. It is longer than a load, so that a load is not split into two publications.
const INTERVAL: Duration = Duration::from_secs(15);
/// How long to wait before sending a load, because collectd publishes for the first time right after it starts to listen,
/// which would split the load.
const FIRST_READ: Duration = Duration::from_millis(500);
/// Everything has been published once nothing has arrived for this long.
const QUIET: Duration = Duration::from_millis(700);
const POLL: Duration = Duration::from_millis(50);

/// Returns how to install collectd; `None` if it is installed.
pub(crate) fn collectd_is_missing() -> Option<String> {
    let found =
        Command::new("collectd").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let remedy = "as root: apt-get install --no-install-recommends collectd-core";
    found.is_err().then(|| remedy.to_owned())
}

/// Returns how to install statsd; `None` if it is installed.
pub(crate) fn statsd_is_missing() -> Option<String> {
    let is_there = Path::new(STATSD).join("stats.js").exists();
    let remedy = "npm install --prefix target/bench/peers statsd@0.9.0, with Node.js";
    (!is_there).then(|| remedy.to_owned())
}

/// Counts a load with collectd, and returns the cost and the losses.
pub(crate) fn collectd(flow: &Flow, protocol: Protocol) -> anyhow::Result<Figures> {
    count(flow, protocol, |directory, port, graphite| {
        let path = directory.display();
        let seconds = INTERVAL.as_secs();
        let config = format!(
            "BaseDir \"{path}\"\nPIDFile \"{path}/pid\"\nInterval {seconds}\n\
             LoadPlugin statsd\nLoadPlugin write_graphite\n\
             <Plugin statsd>\nHost \"127.0.0.1\"\nPort \"{port}\"\nDeleteSets true\nDeleteCounters true\n</Plugin>\n\
             <Plugin write_graphite>\n<Node \"graphite\">\nHost \"127.0.0.1\"\nPort \"{graphite}\"\nStoreRates false\n\
             </Node>\n</Plugin>\n"
        );
        let file = directory.join("collectd.conf");
        fs::write(&file, config)?;
        let mut command = Command::new("collectd");
        command.arg("-f").arg("-C").arg(file);
        Ok(command)
    })
}

/// Counts a load with statsd, and returns the cost and the losses.
pub(crate) fn statsd(flow: &Flow, protocol: Protocol) -> anyhow::Result<Figures> {
    count(flow, protocol, |directory, port, graphite| {
        let config = format!(
            "{{ address: '127.0.0.1', port: {port}, mgmt_address: '127.0.0.1', mgmt_port: {}, flushInterval: {}, \
             graphiteHost: '127.0.0.1', graphitePort: {graphite}, graphite: {{ legacyNamespace: false }}, \
             deleteSets: true, deleteCounters: true }}",
            free_port(),
            INTERVAL.as_millis()
        );
        let file = directory.join("config.js");
        fs::write(&file, config)?;
        let mut command = Command::new("node");
        command.arg(format!("{STATSD}/stats.js")).arg(file);
        Ok(command)
    })
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program, sends a load to it, and returns the cost and the losses. `command` returns the command that runs the
/// program, given a directory for its files, the port on which it should listen, and the port of Graphite.
fn count(
    flow: &Flow,
    protocol: Protocol,
    command: impl FnOnce(&Path, u16, u16) -> anyhow::Result<Command>,
) -> anyhow::Result<Figures> {
    ensure!(flow.lasts() + Duration::from_secs(2) < INTERVAL, "a load longer than an interval");
    let directory = TempDir::new()?;
    let graphite = Graphite::start()?;
    let port = free_port();
    let mut command = command(directory.path(), port, graphite.port)?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let pid = child.id();
    let _running = Running(child);
    eventually("it is listening", SOON, || when(kernel_drops(port).is_some(), "no such socket"));
    thread::sleep(FIRST_READ);
    let before = process_cpu(pid)?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let sent = flow.send(&[to], protocol, 0)?;
    let sums = graphite.wait(INTERVAL * 3);
    let dropped = kernel_drops(port).unwrap_or_default();
    let unread = float(dropped * flow.lines as u64);
    Ok(Figures {
        cpu: process_cpu(pid)? - before,
        sender_cpu: sent.cpu,
        datagrams_dropped: dropped,
        // If the program counts only users, the only known losses are the datagrams that the kernel dropped.
        events_lost: match protocol {
            Protocol::SetsAndCounters => f64::from(flow.events) - sums.events,
            Protocol::Sets | Protocol::Events => unread,
        },
        users: sums.users,
        redis_bytes: f64::NAN,
        memory_mb: peak_memory_mb(pid)?,
        ..Figures::default()
    })
}

/// Returns how many datagrams the kernel dropped because the socket with this port was full; `None` if there is no such
/// socket.
pub(crate) fn kernel_drops(port: u16) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/udp").ok()?;
    let local = format!(":{port:04X}");
    let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = sockets.find(|fields| fields.get(1).is_some_and(|at| at.ends_with(&local)))?;
    socket.last()?.parse().ok()
}

/// The published totals: users and events of all series.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    users: f64,
    events: f64,
}

/// A replacement for Graphite that receives `path value time` lines over TCP. It keeps only the greatest value of each path,
/// because all other values are from intervals without load.
struct Graphite {
    port: u16,
    values: Arc<Mutex<HashMap<String, f64>>>,
}

impl Graphite {
    fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let values = Arc::<Mutex<HashMap<String, f64>>>::default();
        let kept = Arc::clone(&values);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || {
                    for line in BufReader::new(connection).lines().map_while(Result::ok) {
                        let mut words = line.split(' ');
                        let (path, value) = (words.next(), words.next());
                        let value = value.and_then(|value| value.parse::<f64>().ok());
                        if let Some((path, value)) = path.zip(value) {
                            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                            let greatest = kept.entry(path.to_owned()).or_insert(value);
                            *greatest = greatest.max(value);
                        }
                    }
                });
            }
        });
        Ok(Self { port, values })
    }

    /// Waits until users have been published and no more lines arrive, or until the timeout. Returns the totals.
    fn wait(&self, most: Duration) -> Sums {
        let deadline = Instant::now() + most;
        let (mut last, mut since) = (Sums::default(), Instant::now());
        while Instant::now() < deadline && (last.users <= 0.0 || since.elapsed() < QUIET) {
            thread::sleep(POLL);
            let sums = self.sums();
            if sums.users + sums.events > last.users + last.events {
                (last, since) = (sums, Instant::now());
            }
        }
        last
    }

    fn sums(&self) -> Sums {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |names: [&str; 2]| -> f64 {
            let is_meant = |path: &str| {
                names.iter().any(|name| path.contains(name))
                    && path.rsplit('.').next() != Some("rate")
            };
            let values = values.iter().filter(|(path, _)| is_meant(path));
            values.map(|(_, value)| value).sum()
        };
        // collectd uses the first name in each list, and statsd the second.
        Sums {
            users: sum(["objects-users", ".sets.users"]),
            events: sum(["derive-events", ".counters.events"]),
        }
    }
}
