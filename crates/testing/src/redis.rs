//! Runs a real Redis server on a free port and in its own directory, until [`RedisServer`] is dropped. The server can
//! be stopped, killed and started again on the same port and with the same data. The environment variable `EDS_TEST_REDIS`
//! specifies the program to run, for example the path of `valkey-server`.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use redis_link::{Address, Timeouts};
use tempfile::TempDir;

use crate::clock::Clock;
use crate::eventually::{SOON, eventually};
use crate::ports::free_port;
use crate::process::{self, signal};

/// Returns the program that all tests start as Redis, including sentinels and the nodes of a Redis Cluster.
pub fn program() -> OsString {
    std::env::var_os("EDS_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

#[derive(Debug)]
pub struct RedisServer {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// The user that runs the test's queries, in the form `name:password@`, or an empty string for the default user.
    asker: String,
    address: SocketAddr,
    directory: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server that keeps its data only in memory, and waits until it replies to PING. The arguments override the
    /// defaults of the tests, for example `&["--maxmemory-policy", "allkeys-lru"]`. With arguments that close the
    /// unencrypted port or require a password, use [`Self::launch`] and wait in another way.
    pub fn start(arguments: &[&str]) -> Self {
        let mut server = Self::down(arguments);
        server.restart();
        server
    }

    /// Like [`Self::start`], but for arguments that disable the default user. The queries of the test run as the user
    /// `admin`, who has all permissions and the password `admin`.
    pub fn start_asked_by_admin(arguments: &[&str]) -> Self {
        let admin = ["--user", "admin", "on", ">admin", "~*", "&*", "+@all"];
        let mut server = Self::down(&[&admin, arguments].concat());
        "admin:admin@".clone_into(&mut server.asker);
        server.restart();
        server
    }

    /// Starts a server without waiting until it is ready.
    pub fn launch(arguments: &[&str]) -> Self {
        let mut server = Self::down(arguments);
        server.spawn();
        server
    }

    /// Prepares a server without starting it. Nothing listens at its address until [`Self::restart`] is called.
    pub fn down(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(ToString::to_string).collect(),
            environment: Vec::new(),
            asker: String::new(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())),
            directory: TempDir::new().expect("a temporary directory"),
            child: None,
        }
    }

    /// Like [`Self::start`], but for a server that uses this clock.
    pub fn start_with_clock(clock: &Clock, arguments: &[&str]) -> Self {
        Self::start_with(Some(clock), arguments)
    }

    pub(crate) fn start_with(clock: Option<&Clock>, arguments: &[&str]) -> Self {
        let mut server = Self::down(arguments);
        server.environment = clock.map_or(Vec::new(), |clock| clock.environment().into());
        server.restart();
        server
    }

    fn spawn(&mut self) {
        let directory = self.directory.path().display().to_string();
        let child = Command::new(program())
            .args(["--bind", "127.0.0.1", "--port", &self.address.port().to_string()])
            .args(["--dir", &directory, "--logfile", "redis.log", "--save", ""])
            .args(["--unixsocket", &self.unix_socket(), "--maxmemory-policy", "noeviction"])
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed, or EDS_TEST_REDIS is its path");
        self.child = Some(child);
    }

    fn wait_ready(&self) {
        eventually("Redis responds", SOON, || {
            let client = redis::Client::open(self.asker_url())?;
            redis::cmd("PING").query::<String>(&mut client.get_connection()?)
        });
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the directory with the server's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn asker_url(&self) -> String {
        format!("redis://{}{}", self.asker, self.address)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Returns settings for a connection to this server, with timeouts that suit a test.
    pub fn settings(&self) -> redis_link::Settings {
        patient(Address::Server(self.address.into()))
    }

    /// Returns the path of the Unix socket on which the server also listens.
    pub fn unix_socket(&self) -> String {
        self.directory.path().join("redis.sock").display().to_string()
    }

    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.asker_url()).expect("a valid Redis URL");
        client.get_connection().expect("Redis accepts connections")
    }

    /// Runs a command and returns its reply. Panics if the command fails.
    #[track_caller]
    pub fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Like [`Self::query`], but returns errors. For servers whose connections may be cut, as sentinels do when a server
    /// changes its role.
    pub fn try_query<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.asker_url())?;
        let mut query = redis::Cmd::new();
        query.arg(command);
        query.query(&mut client.get_connection()?)
    }

    /// Returns all keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.sort_unstable();
        keys
    }

    /// Stops the server with SIGTERM, like `systemctl stop`, and waits until it has exited.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("Redis is running");
        signal(child.id(), "TERM");
        process::wait(&mut child, SOON);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("Redis is running").id()
    }

    /// Sends a signal to the server: `STOP` suspends it, and `CONT` resumes it.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("Redis is running");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// Starts the server, or restarts it on the same port and in the same directory after [`Self::stop`] or [`Self::kill`].
    /// Waits until it is ready.
    pub fn restart(&mut self) {
        self.relaunch();
        self.wait_ready();
    }

    /// Like [`Self::restart`], but without waiting until the server is ready.
    pub fn relaunch(&mut self) {
        assert!(self.child.is_none(), "Redis is already running");
        self.spawn();
    }
}

/// Returns settings for connections to this address, with timeouts that suit a test.
pub fn patient(address: Address) -> redis_link::Settings {
    redis_link::Settings {
        timeouts: Timeouts { connect: SOON, response: SOON },
        ..redis_link::Settings::new(address)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
