//! Reserves free ports, and starts servers on them.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STARTS_MAX: usize = 5;

/// The ports that may be reserved. They are below the ephemeral ports, so that the system does not assign one of them to a
/// process.
const PORTS: Range<u16> = 10_000..32_000;

/// Returns a free TCP and UDP port of 127.0.0.1 that is reserved for this process, so that it can be bound, closed and bound
/// again. A lock on a file keeps other test processes from using the port.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let locks = std::env::temp_dir().join("eds-test-ports");
    std::fs::create_dir_all(&locks).unwrap();
    loop {
        let port = rand::random_range(PORTS);
        let open = File::options().create(true).append(true).open(locks.join(port.to_string()));
        // Opening the file fails if another user has created it.
        let Ok(lock) = open else { continue };
        let address = (Ipv4Addr::LOCALHOST, port);
        let is_free = || TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok();
        if lock.try_lock().is_ok() && is_free() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return port;
        }
    }
}

/// A process and its directory. When this is dropped, the process is killed and the directory removed.
#[derive(Debug)]
pub struct Server {
    process: Child,
    pub port: u16,
    /// Removed when this is dropped, after the process has ended.
    _directory: TempDir,
}

impl Server {
    /// Starts the command that `command` returns for a port and a directory, and waits until the port accepts connections.
    /// If the server exits immediately, starts it again on another port, because another process may have taken the first
    /// one.
    pub fn start(name: &str, command: impl Fn(u16, &Path) -> Command) -> Self {
        let mut log = String::new();
        for _ in 0..STARTS_MAX {
            let directory = tempfile::tempdir().unwrap();
            let log_path = directory.path().join("log");
            let log_file = File::create(&log_path).unwrap();
            let port = free_port();
            let process = command(port, directory.path())
                .stdin(Stdio::null())
                .stdout(log_file.try_clone().unwrap())
                .stderr(log_file)
                .spawn()
                .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
            let mut server = Self { process, port, _directory: directory };
            if server.accepts_connections() {
                return server;
            }
            log = std::fs::read_to_string(&log_path).unwrap();
        }
        panic!("{name} did not start; its last log:\n{log}");
    }

    fn accepts_connections(&mut self) -> bool {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline && self.process.try_wait().unwrap().is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
