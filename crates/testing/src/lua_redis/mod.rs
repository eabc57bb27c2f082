//! A simulated Redis server inside a test process. It executes the commands and scripts of the store immediately and one
//! after another, with a clock that the test controls.
//!
//! [`LuaRedis::dial`] connects the service's client to the simulated server. `tests/store_contract.rs` also runs against a
//! real Redis server, and thereby shows that both behave the same.

pub mod keyspace;
mod script;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis_link::{Address, Dial, Endpoint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::keyspace::{Bytes, Keyspace, Reply};
use self::script::Script;
use crate::redis::patient;

/// A function that returns the current time in microseconds since the epoch.
pub type Clock = Box<dyn Fn() -> i64 + Send + Sync>;

/// A function that returns the changed text of a script.
pub type Change = Box<dyn Fn(&str) -> String + Send + Sync>;

/// A simulated Redis server.
pub struct LuaRedis {
    keyspace: Mutex<Keyspace>,
    scripts: Mutex<HashMap<Bytes, Script>>,
    clock: Clock,
    change: Option<Change>,
    held: Mutex<Vec<Held>>,
    /// The next number of a connection or held command.
    next: AtomicU64,
    /// The number of executed commands, including calls by scripts.
    commands: AtomicU64,
}

/// A command that waits until the test executes it: a script, a read of a log, or a transaction. Later commands on the same
/// connection wait behind it.
#[derive(Debug, Clone)]
pub struct Held {
    pub id: u64,
    pub node: usize,
    /// The number of the connection on which the command arrived.
    pub connection: u64,
    /// The commands of a transaction, or a single command.
    pub commands: Vec<Vec<Bytes>>,
    line: Arc<Mutex<Line>>,
}

impl std::fmt::Debug for LuaRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.keyspace().fmt(f)
    }
}

impl LuaRedis {
    /// Returns an empty server. If `change` is given, it is applied to each script before the script is run.
    pub fn new(clock: Clock, change: Option<Change>) -> Self {
        Self {
            keyspace: Mutex::default(),
            scripts: Mutex::default(),
            clock,
            change,
            held: Mutex::default(),
            next: AtomicU64::new(0),
            commands: AtomicU64::new(0),
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current keyspace, after removing expired keys.
    pub fn keyspace(&self) -> MutexGuard<'_, Keyspace> {
        let mut keyspace = Self::lock(&self.keyspace);
        keyspace.expire((self.clock)().div_euclid(1000));
        keyspace
    }

    /// Returns the number of commands executed so far, including calls by scripts.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// Executes a command, given as words.
    pub fn command(&self, words: &[&str]) -> Reply {
        let words: Vec<Bytes> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.execute(&mut self.keyspace(), 0, &words)
    }

    /// Returns settings with which a client connects to this server.
    pub fn settings(self: &Arc<Self>) -> redis_link::Settings {
        redis_link::Settings {
            dial: Some(self.dial(0, &Arc::default())),
            ..patient(Address::Server(Endpoint::Unix("nowhere".into())))
        }
    }

    /// Returns a function that makes connections. They see a clock that is ahead by this many microseconds, and break when
    /// the number of cuts changes.
    pub fn dial(self: &Arc<Self>, ahead_us: i64, cuts: &Arc<AtomicU64>) -> Dial {
        self.dial_by(ahead_us, cuts, None)
    }

    /// Returns a function that makes connections for a node whose commands are held.
    pub fn dial_held(self: &Arc<Self>, node: usize) -> Dial {
        self.dial_by(0, &Arc::default(), Some(node))
    }

    fn dial_by(
        self: &Arc<Self>,
        ahead_us: i64,
        cuts: &Arc<AtomicU64>,
        node: Option<usize>,
    ) -> Dial {
        let (redis, cuts) = (Arc::clone(self), Arc::clone(cuts));
        Arc::new(move || {
            let number = redis.next.fetch_add(1, Ordering::Relaxed);
            Box::new(Wire {
                redis: Arc::clone(&redis),
                made_after: cuts.load(Ordering::Relaxed),
                cuts: Arc::clone(&cuts),
                line: Arc::new(Mutex::new(Line { ahead_us, number, node, ..Line::default() })),
            })
        })
    }

    /// Returns the held commands in order of arrival.
    pub fn held(&self) -> Vec<Held> {
        Self::lock(&self.held).clone()
    }

    /// Releases a held command: executes it if `executes` is true, and otherwise drops it. Returns the reply, if any. If
    /// `answers` is false, the connection breaks instead of delivering the reply.
    pub fn release(&self, held: &Held, executes: bool, answers: bool) -> Option<Reply> {
        Self::lock(&self.held).retain(|other| other.connection != held.connection);
        let mut line = Self::lock(&held.line);
        let command = line.waiting.pop_front().expect("a command is held");
        let reply = executes.then(|| line.take(self, command));
        if let Some(reply) = reply.as_ref().filter(|_| answers) {
            write_reply(reply, &mut line.output);
        }
        line.is_cut |= !answers;
        line.wake();
        drop(line);
        self.proceed(&held.line);
        reply
    }

    /// Breaks the connection of a held command, which may still be executed.
    pub fn hang_up(held: &Held) {
        let mut line = Self::lock(&held.line);
        line.is_cut = true;
        line.wake();
    }

    /// Executes the commands of a connection up to the next command that has to be held.
    fn proceed(&self, line_of: &Arc<Mutex<Line>>) {
        let mut line = Self::lock(line_of);
        while !line.is_cut
            && let Some(command) = line.waiting.front()
        {
            let name = command[0].to_ascii_uppercase();
            let is_queued = line.transaction.is_some() && name != b"EXEC";
            let is_held = matches!(name.as_slice(), b"EXEC" | b"EVALSHA" | b"LRANGE");
            if let Some(node) = line.node
                && is_held
                && !is_queued
            {
                let commands = line.transaction.clone().unwrap_or_else(|| vec![command.clone()]);
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                let (connection, line) = (line.number, Arc::clone(line_of));
                Self::lock(&self.held).push(Held { id, node, connection, commands, line });
                return;
            }
            let Some(command) = line.waiting.pop_front() else { return };
            let reply = line.take(self, command);
            write_reply(&reply, &mut line.output);
        }
        line.wake();
    }

    fn execute(&self, keyspace: &mut Keyspace, ahead_us: i64, command: &[Bytes]) -> Reply {
        let now_us = (self.clock)() + ahead_us;
        let name = command[0].to_ascii_uppercase();
        self.commands.fetch_add(1, Ordering::Relaxed);
        match (name.as_slice(), command) {
            (b"SCRIPT", [_, load, text]) if load.eq_ignore_ascii_case(b"LOAD") => {
                let text = String::from_utf8(text.clone()).unwrap();
                let sha = redis::Script::new(&text).get_hash().to_owned();
                let text = self.change.as_ref().map_or(text.clone(), |change| change(&text));
                Self::lock(&self.scripts).insert(sha.clone().into_bytes(), Script::new(text));
                Reply::Bulk(sha.into_bytes())
            }
            (b"EVALSHA", [_, sha, number, rest @ ..]) => {
                let script = Self::lock(&self.scripts).get(sha).cloned();
                let Some(script) = script else {
                    return Reply::Error("NOSCRIPT No matching script.".to_owned());
                };
                let number = std::str::from_utf8(number).unwrap().parse().unwrap();
                let (keys, args) = rest.split_at(number);
                let (reply, calls) = script::run(keyspace, now_us, &script, keys, args);
                self.commands.fetch_add(calls, Ordering::Relaxed);
                reply
            }
            _ => keyspace.execute(now_us, command).unwrap_or_else(Reply::Error),
        }
    }
}

/// A connection: a command is executed when it is written, unless it is held.
struct Wire {
    redis: Arc<LuaRedis>,
    cuts: Arc<AtomicU64>,
    made_after: u64,
    line: Arc<Mutex<Line>>,
}

/// The state of a connection.
#[derive(Debug, Default)]
struct Line {
    ahead_us: i64,
    number: u64,
    /// The node whose commands are held.
    node: Option<usize>,
    is_cut: bool,
    input: Vec<u8>,
    waiting: VecDeque<Vec<Bytes>>,
    output: Vec<u8>,
    /// The commands since MULTI.
    transaction: Option<Vec<Vec<Bytes>>>,
    reader: Option<Waker>,
}

impl Wire {
    fn is_cut(&self) -> bool {
        self.cuts.load(Ordering::Relaxed) != self.made_after || LuaRedis::lock(&self.line).is_cut
    }
}

impl Line {
    fn take(&mut self, redis: &LuaRedis, command: Vec<Bytes>) -> Reply {
        match (command[0].to_ascii_uppercase().as_slice(), &mut self.transaction) {
            (b"MULTI", _) => {
                self.transaction = Some(Vec::new());
                Reply::Status("OK")
            }
            (b"EXEC", Some(_)) => {
                let commands = self.transaction.take().unwrap_or_default();
                // Lock the keyspace once, so that other connections see either all effects of the transaction or none.
                let mut keyspace = redis.keyspace();
                let mut execute =
                    |command: &Vec<_>| redis.execute(&mut keyspace, self.ahead_us, command);
                Reply::Array(commands.iter().map(&mut execute).collect())
            }
            (_, Some(commands)) => {
                commands.push(command);
                Reply::Status("QUEUED")
            }
            (_, None) => redis.execute(&mut redis.keyspace(), self.ahead_us, &command),
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// Removes a command, which is an array of bulk strings, from the front of the input and returns it. Returns None if the
/// command is incomplete.
fn take_command(input: &mut Vec<u8>) -> Option<Vec<Bytes>> {
    let mut at = 0;
    let number = |at: &mut usize| {
        let length = input[*at..].windows(2).position(|pair| pair == b"\r\n")?;
        let digits = std::str::from_utf8(&input[*at + 1..*at + length]).unwrap();
        *at += length + 2;
        digits.parse::<usize>().ok()
    };
    let mut command = Vec::new();
    for _ in 0..number(&mut at)? {
        let length = number(&mut at)?;
        let item = input.get(at..at + length + 2)?;
        command.push(item[..length].to_vec());
        at += length + 2;
    }
    input.drain(..at);
    Some(command)
}

fn write_reply(reply: &Reply, output: &mut Vec<u8>) {
    let line = match reply {
        Reply::Nil => "$-1".to_owned(),
        Reply::Status(status) => format!("+{status}"),
        Reply::Int(number) => format!(":{number}"),
        Reply::Error(error) => format!("-{error}"),
        Reply::Bulk(bytes) => format!("${}", bytes.len()),
        Reply::Array(items) => format!("*{}", items.len()),
    };
    output.extend_from_slice(line.as_bytes());
    output.extend_from_slice(b"\r\n");
    match reply {
        Reply::Bulk(bytes) => {
            output.extend_from_slice(bytes);
            output.extend_from_slice(b"\r\n");
        }
        Reply::Array(items) => items.iter().for_each(|item| write_reply(item, output)),
        _ => {}
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let wire = self.get_mut();
        if wire.is_cut() {
            return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()));
        }
        let mut line = LuaRedis::lock(&wire.line);
        line.input.extend_from_slice(bytes);
        let is_holding = !line.waiting.is_empty();
        while let Some(command) = take_command(&mut line.input) {
            line.waiting.push_back(command);
        }
        drop(line);
        if !is_holding {
            wire.redis.proceed(&wire.line);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let wire = self.get_mut();
        let is_cut = wire.is_cut();
        let mut line = LuaRedis::lock(&wire.line);
        if line.output.is_empty() && !is_cut {
            line.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = line.output.len().min(buffer.remaining());
        buffer.put_slice(&line.output[..length]);
        line.output.drain(..length);
        Poll::Ready(Ok(()))
    }
}
