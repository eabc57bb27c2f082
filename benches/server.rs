//! A Redis of our own: on a free port, without a file, ended with its owner.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use redis::{Client, Connection, cmd};

const START_MAX: Duration = Duration::from_secs(10);

/// A process that ends with its owner.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_owned();
        let child = command.spawn();
        Ok(Self(child.with_context(|| {
            format!("cannot start {}", program.display())
        })?))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about either at the end of a measurement.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running Redis.
pub(crate) struct Server {
    pub(crate) port: u16,
    connection: Connection,
    _process: Process,
    _directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = free_port()?;
        let process = Process::start(
            Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no"])
                .args(["--maxmemory-policy", "noeviction"])
                .current_dir(directory.path())
                .stdout(Stdio::null()),
        )?;
        let client = Client::open(("127.0.0.1", port))?;
        let began = Instant::now();
        let connection = loop {
            match client.get_connection() {
                Ok(connection) => break connection,
                Err(error) if began.elapsed() > START_MAX => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        Ok(Self {
            port,
            connection,
            _process: process,
            _directory: directory,
        })
    }

    /// Forgets everything, and does not come back before it has.
    pub(crate) fn empty(&mut self) -> anyhow::Result<()> {
        Ok(cmd("FLUSHALL").arg("SYNC").exec(&mut self.connection)?)
    }

    /// The CPU seconds that it has used.
    pub(crate) fn cpu(&mut self) -> anyhow::Result<f64> {
        let info: String = cmd("INFO").arg("cpu").query(&mut self.connection)?;
        let seconds = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.parse::<f64>().ok())
                .with_context(|| format!("no {name} in INFO cpu"))
        };
        Ok(seconds("used_cpu_user:")? + seconds("used_cpu_sys:")?)
    }

    /// The members of all sets whose name holds this word.
    pub(crate) fn members(&mut self, word: &str) -> anyhow::Result<usize> {
        let keys: Vec<String> = cmd("KEYS")
            .arg(format!("*{word}*"))
            .query(&mut self.connection)?;
        let mut members = 0;
        for key in keys {
            let count: usize = cmd("SCARD").arg(key).query(&mut self.connection)?;
            members += count;
        }
        Ok(members)
    }
}

/// A TCP port that nobody listens on.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
