//! A real Redis on a free port, with its own directory; it ends with its owner. It can be stopped, killed and started
//! again on the same port with the same data. `EDS_TEST_REDIS` names the program of all of them: a `valkey-server`, say.

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

/// The program that every test starts as Redis, also with `--sentinel` and as a node of a Cluster.
pub fn program() -> OsString {
    std::env::var_os("EDS_TEST_REDIS").unwrap_or_else(|| "redis-server".into())
}

#[derive(Debug)]
pub struct RedisServer {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// The user of the test's queries: nothing, or `name:password@`.
    asker: String,
    address: SocketAddr,
    directory: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// A server that keeps everything in memory, with these arguments over the defaults of the tests:
    /// `&["--maxmemory-policy", "allkeys-lru"]`. It answers PING when this returns; with arguments that close
    /// the plain port, or want a password, use [`Self::launch`] and wait in another way.
    pub fn start(arguments: &[&str]) -> Self {
        let mut server = Self::down(arguments);
        server.restart();
        server
    }

    /// As [`Self::start`], with arguments that disable the default user. The test asks as the user `admin`, who may do all and whose password is
    /// `admin`, too.
    pub fn start_asked_by_admin(arguments: &[&str]) -> Self {
        let admin = ["--user", "admin", "on", ">admin", "~*", "&*", "+@all"];
        let mut server = Self::down(&[&admin, arguments].concat());
        "admin:admin@".clone_into(&mut server.asker);
        server.restart();
        server
    }

    /// The same, without waiting.
    pub fn launch(arguments: &[&str]) -> Self {
        let mut server = Self::down(arguments);
        server.spawn();
        server
    }

    /// The same, not yet started: nothing listens at its address until [`Self::restart`].
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

    /// Starts a server with this clock.
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
            .expect("redis-server is installed, or EDS_TEST_REDIS is the path of one");
        self.child = Some(child);
    }

    fn wait_ready(&self) {
        eventually("Redis answers", SOON, || {
            let client = redis::Client::open(self.asker_url())?;
            redis::cmd("PING").query::<String>(&mut client.get_connection()?)
        });
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn asker_url(&self) -> String {
        format!("redis://{}{}", self.asker, self.address)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// For a link to it that waits as long as a test does.
    pub fn settings(&self) -> redis_link::Settings {
        patient(Address::Server(self.address.into()))
    }

    /// The path of the socket at which it listens, too.
    pub fn unix_socket(&self) -> String {
        self.directory.path().join("redis.sock").display().to_string()
    }

    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.asker_url()).expect("a URL of Redis");
        client.get_connection().expect("Redis takes a connection")
    }

    /// Returns the answer of a command.
    #[track_caller]
    pub fn query<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The same where connections may be cut: sentinels do so at a server that changes its part.
    pub fn try_query<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.asker_url())?;
        let mut query = redis::Cmd::new();
        query.arg(command);
        query.query(&mut client.get_connection()?)
    }

    /// Every key, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.sort_unstable();
        keys
    }

    /// Ends it as `systemctl stop` does.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("Redis runs");
        signal(child.id(), "TERM");
        process::wait(&mut child, SOON);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("Redis runs").id()
    }

    /// Stops it in its tracks, `STOP`, or lets it go on, `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Ends it by SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("Redis runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// Starts it, or starts it again after [`Self::stop`] on the same port and directory.
    pub fn restart(&mut self) {
        self.relaunch();
        self.wait_ready();
    }

    /// The same, without waiting until it answers.
    pub fn relaunch(&mut self) {
        assert!(self.child.is_none(), "Redis runs already");
        self.spawn();
    }
}

/// For a link to there that waits as long as a test does.
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
