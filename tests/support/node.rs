//! A node or a relay that runs the real binary in a temporary directory. If a test fails, the end of its log is printed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use socket2::SockRef;
use tempfile::TempDir;
use testing::assert_contains;
use testing::clock::Clock;
use testing::eventually::{SOON, eventually, when};
use testing::http::{Answer, answer, get};
use testing::metrics::Metrics;
use testing::ports::free_port;
use testing::process::{self, signal};
use toml::{Table, Value};

const LOG_LINES_SHOWN: usize = 60;

/// Returns a command that runs the binary without the `EDS_` variables of the environment.
pub(crate) fn eds() -> Command {
    untouched(env!("CARGO_BIN_EXE_eds"))
}

/// Returns a command that runs a program without the `EDS_` variables of the environment.
pub(crate) fn untouched(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("EDS_") {
            command.env_remove(variable);
        }
    }
    command
}

/// Like [`eds`], but started by a shell script.
fn eds_by(script: &str) -> Command {
    let mut command = untouched("sh");
    command.args(["-c", script, "sh"]).arg(eds().get_program());
    command
}

/// Like [`eds`], but with a socket passed as descriptor 3, as systemd does. The shell avoids `unsafe` code.
fn eds_with(socket: &UdpSocket) -> Command {
    let mut command = eds_by("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"");
    let socket = socket.try_clone().expect("the descriptor can be duplicated");
    command.stdin(OwnedFd::from(socket));
    command
}

#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    /// The subcommand, `run` or `relay`.
    command: &'static str,
    config: Table,
    environment: Vec<(String, String)>,
    /// The node's clock, or `None` for the system clock.
    clock: Option<Clock>,
    udp: SocketAddr,
    http: SocketAddr,
    directory: TempDir,
    child: Option<Child>,
    /// The socket that is passed to the node, or `None` if the node binds a socket itself.
    held: Option<UdpSocket>,
    /// The binary, or `None` for the binary of this build.
    binary: Option<PathBuf>,
    /// The limit of open file descriptors, or `None` for the default limit.
    descriptors_max: Option<u32>,
}

impl Node {
    /// Returns a node without starting it. The keys, such as `("flush.grace", "2s")`, override the defaults of the tests.
    pub(crate) fn new(name: &str, keys: &[(&str, &str)]) -> Self {
        let mut node = Self::of("run", name);
        node.set("node", name);
        node.set("input.max_age", "36500days");
        node.set("flush.interval", "200ms");
        node.set("flush.grace", "2s");
        node.set("flush.lease", "5s");
        if let Some(layout) = layout() {
            node.set("store.layout", &layout);
        }
        for (key, value) in keys {
            node.set(key, value);
        }
        node
    }

    /// Returns a relay to these addresses without starting it.
    pub(crate) fn relay(name: &str, to: &[&str], keys: &[(&str, &str)]) -> Self {
        let mut relay = Self::of("relay", name);
        relay.set_list("relay.to", to);
        for (key, value) in keys {
            relay.set(key, value);
        }
        relay
    }

    fn of(command: &'static str, name: &str) -> Self {
        let udp = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut node = Self {
            name: name.to_owned(),
            command,
            config: Table::new(),
            environment: Vec::new(),
            clock: None,
            udp,
            http,
            directory: TempDir::new().expect("a temporary directory"),
            child: None,
            held: None,
            binary: None,
            descriptors_max: None,
        };
        node.set("log.level", "debug");
        node.listen_on(&[udp]);
        node.set("http.listen", &http.to_string());
        node
    }

    #[track_caller]
    pub(crate) fn start(name: &str, keys: &[(&str, &str)]) -> Self {
        let mut node = Self::new(name, keys);
        node.run();
        node
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        let typed = match value.parse::<Value>() {
            Ok(value @ (Value::Integer(_) | Value::Boolean(_))) => value,
            _ => Value::String(value.to_owned()),
        };
        let (table, key) = match key.rsplit_once('.') {
            Some((section, key)) => (self.table(section), key),
            None => (&mut self.config, key),
        };
        table.insert(key.to_owned(), typed);
    }

    /// Replaces the outputs, each given by its keys, for the next launch.
    pub(crate) fn set_outputs(&mut self, outputs: &[&[(&str, &str)]]) {
        self.set_sections("output", outputs);
    }

    /// Sets the keys of each `[[section]]`. A value that is a list or a whole number in TOML is written as such.
    pub(crate) fn set_sections(&mut self, section: &str, sections: &[&[(&str, &str)]]) {
        let value = |text: &str| match text.parse::<Value>() {
            Ok(value @ (Value::Array(_) | Value::Integer(_))) => value,
            _ => Value::String(text.to_owned()),
        };
        let table = |keys: &&[(&str, &str)]| {
            let keys = keys.iter();
            let keys = keys.map(|(key, text)| ((*key).to_owned(), value(text)));
            Value::Table(keys.collect())
        };
        let sections = sections.iter().map(table).collect();
        self.config.insert(section.to_owned(), Value::Array(sections));
    }

    /// Sets the addresses on which the node receives events, for the next launch.
    pub(crate) fn listen_on(&mut self, addresses: &[impl ToString]) {
        self.set_list("input.listen", addresses);
    }

    pub(crate) fn set_list(&mut self, key: &str, values: &[impl ToString]) {
        let values = values.iter().map(|value| Value::String(value.to_string()));
        let values = Value::Array(values.collect());
        let (section, key) = key.rsplit_once('.').expect("every list is in a section");
        self.table(section).insert(key.to_owned(), values);
    }

    fn table(&mut self, section: &str) -> &mut Table {
        section.split('.').fold(&mut self.config, |outer, name| {
            let table = outer.entry(name).or_insert_with(|| Value::Table(Table::new()));
            table.as_table_mut().expect("a section is a table")
        })
    }

    pub(crate) fn set_environment(&mut self, key: &str, value: &str) {
        self.environment.push((key.to_owned(), value.to_owned()));
    }

    /// Sets the node's wall clock, but not its monotonic clock, this many seconds ahead for the next launch.
    pub(crate) fn skew(&mut self, seconds: i64) {
        self.set_clock(Clock::ahead_by(seconds * 1_000_000));
    }

    /// Makes the next launch use this clock.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.share_clock(&clock);
        self.clock = Some(clock);
    }

    /// Like [`Self::set_clock`], but the caller must keep the clock.
    pub(crate) fn share_clock(&mut self, clock: &Clock) {
        self.environment.extend(clock.environment());
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.environment.clone()
    }

    pub(crate) fn write_config(&self) {
        fs::write(self.config_path(), self.config.to_string()).expect("a file can be written");
    }

    pub(crate) fn hold_socket(&mut self) {
        assert!(self.child.is_none(), "{} is already running", self.name);
        self.held = Some(UdpSocket::bind(self.udp).expect("the port is free"));
    }

    /// Closes the held socket, so that the node binds a socket itself at the next launch.
    pub(crate) fn let_go_of_socket(&mut self) {
        self.held = None;
    }

    /// Sets the binary for the next launch. `None` means the binary of this build.
    pub(crate) fn set_binary(&mut self, binary: Option<&Path>) {
        self.binary = binary.map(Path::to_owned);
    }

    /// Limits the number of open file descriptors for the next launch. The node cannot raise the limit.
    pub(crate) fn limit_descriptors(&mut self, most: u32) {
        self.descriptors_max = Some(most);
    }

    /// Makes the held socket fail permanently.
    pub(crate) fn shut_down_held_socket(&self) {
        let held = self.held.as_ref().expect("the socket is held");
        // Linux can only shut down connected sockets.
        held.connect(self.udp).expect("a socket can be connected");
        let shut_down = SockRef::from(held).shutdown(std::net::Shutdown::Read);
        shut_down.expect("a connected socket can be shut down");
    }

    pub(crate) fn held_buffer_bytes(&self) -> u64 {
        let socket = self.held.as_ref().expect("the socket is held");
        let bytes = SockRef::from(socket).recv_buffer_size();
        bytes.expect("the buffer size can be read") as u64
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        self.write_config();
        let mut command = eds();
        command.args(arguments).arg("--config").arg(self.config_path()).envs(self.environment());
        command.output().expect("the binary starts")
    }

    pub(crate) fn command_text(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } = self.command(arguments);
        (status.code(), String::from_utf8([stdout, stderr].concat()).expect("text"))
    }

    /// Runs a command with the node's configuration, asserts the exit code and the words in the output, and returns it.
    #[track_caller]
    pub(crate) fn says(&self, arguments: &[&str], code: i32, words: &str) -> String {
        let (status, text) = self.command_text(arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?} does not print {words:?}: {text}");
        text
    }

    pub(crate) fn send(&self, datagram: impl AsRef<[u8]>) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.send_to(datagram.as_ref(), self.udp).expect("loopback takes a datagram");
    }

    /// Waits until no received events are queued. The ledger must add up all the time.
    #[track_caller]
    pub(crate) fn wait_recorded(&self) {
        self.wait_count("eds_events_queued", |queued| queued == 0);
    }

    /// Makes the node's settings the cluster-wide settings. Returns the output of the command.
    #[track_caller]
    pub(crate) fn apply_settings(&self) -> String {
        self.says(&["settings", "apply"], 0, "")
    }

    pub(crate) fn launch(&mut self) {
        assert!(self.child.is_none(), "{} is already running", self.name);
        self.write_config();
        let append = |name| {
            let path = self.path(name);
            File::options().create(true).append(true).open(path).expect("a file can be opened")
        };
        let mut command = match (&self.held, self.descriptors_max) {
            (Some(socket), _) => eds_with(socket),
            (None, Some(most)) => eds_by(&format!("ulimit -n {most} && exec \"$@\"")),
            (None, None) => self.binary.as_deref().map_or_else(eds, untouched),
        };
        if self.held.is_none() {
            command.stdin(Stdio::null());
        }
        let child = command
            .args([self.command, "--config"])
            .arg(self.config_path())
            // The log of a test must not depend on the environment of the developer.
            .env_remove("RUST_LOG")
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdout(append("stdout"))
            .stderr(append("stderr"))
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
    }

    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.launch();
        self.wait_ready();
    }

    #[track_caller]
    pub(crate) fn wait_ready(&mut self) {
        eventually(&format!("{} is ready", self.name), SOON, || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "{} ended: {ended:?}", self.name);
            match self.get("/readyz") {
                Ok(Answer { status: 200, .. }) => Ok(()),
                not_ready => Err(format!("{not_ready:?}")),
            }
        });
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.http
    }

    pub(crate) fn udp(&self) -> SocketAddr {
        self.udp
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::Result<Answer> {
        answer(get(self.http, path))
    }

    #[track_caller]
    fn body(&self, path: &str) -> String {
        let answer = self.get(path).expect("the node responds");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> Json {
        serde_json::from_str(&self.body(path)).expect("JSON")
    }

    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&self.body("/metrics"))
    }

    #[track_caller]
    pub(crate) fn wait_answer(&self, path: &str, status: u16, words: &str) {
        eventually(&format!("{} answers {status} with {words:?}", self.name), SOON, || {
            let answer = self.get(path).map_err(|error| error.to_string())?;
            when(answer.status == status && answer.body.contains(words), answer.body)
        });
    }

    #[track_caller]
    pub(crate) fn wait_log(&self, words: &str) {
        eventually(&format!("{} logs {words:?}", self.name), SOON, || {
            let log = self.log();
            when(log.contains(words), log)
        });
    }

    pub(crate) fn count_of_output(&self, name: &str, output: &str) -> u64 {
        self.metrics().count_of(name, &[("output", output)])
    }

    /// Waits until a metric, summed over all labels, satisfies the condition. The ledger must add up all the time.
    #[track_caller]
    pub(crate) fn wait_count(&self, name: &str, holds: impl Fn(u64) -> bool) {
        eventually(&format!("{name} of {}", self.name), SOON, || {
            let metrics = self.metrics();
            metrics.assert_ledger_adds_up();
            let count = metrics.count(name);
            when(holds(count), count)
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node is running").id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().expect("the node is running");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    #[track_caller]
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait_for_exit(SOON)
    }

    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self, within: Duration) -> ExitStatus {
        let child = self.child.as_mut().expect("the node is running");
        let status = process::wait(child, within);
        self.child = None;
        status
    }

    /// Launches the node, and asserts that it exits with code 1 and logs these words.
    #[track_caller]
    pub(crate) fn assert_refused(mut self, words: &[&str]) {
        self.launch();
        assert_eq!(self.wait_for_exit(SOON).code(), Some(1));
        let log = self.log();
        assert_contains(&log, words);
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(self.path("stdout")).unwrap_or_default()
    }

    /// Returns the line that the node logged when it last stopped.
    #[track_caller]
    pub(crate) fn last_ledger(&self) -> String {
        let log = self.log();
        log.lines()
            .rfind(|line| line.contains(" stopped"))
            .expect("the node logs that it has stopped")
            .to_owned()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.path("eds.toml")
    }

    /// Returns the spool directory, which the node creates when it starts.
    pub(crate) fn spool(&self) -> PathBuf {
        self.path("spool")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns the layout of every node from `EDS_TEST_LAYOUT`, if it is set.
fn layout() -> Option<String> {
    std::env::var("EDS_TEST_LAYOUT").ok()
}

pub(crate) fn has_logs() -> bool {
    layout().is_some_and(|layout| layout == "log")
}

/// Returns a metric, summed over these nodes and all labels.
pub(crate) fn count<'a>(nodes: impl IntoIterator<Item = &'a Node>, name: &str) -> u64 {
    let counts = nodes.into_iter().map(|node| node.metrics().count(name));
    counts.sum()
}

/// Waits until a metric, summed over these nodes and all labels, satisfies the condition.
#[track_caller]
pub(crate) fn wait_count(nodes: &[Node], name: &str, holds: impl Fn(u64) -> bool) {
    eventually(&format!("{name} of all"), SOON, || {
        let count = count(nodes, name);
        when(holds(count), count)
    });
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
            let tail: Vec<_> = log.lines().skip(skipped).collect();
            eprintln!("--- the end of the log of {}:\n{}\n---", self.name, tail.join("\n"));
        }
    }
}
