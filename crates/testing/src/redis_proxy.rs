//! A TCP proxy between a node and Redis that recognizes the node's commands. It can run an action before or after it
//! forwards the n-th command that contains certain bytes. Alternatively, a [`Watcher`] decides whether and when each command
//! is forwarded.
//!
//! Commands are recognized by their framing, independently of the sizes of reads. Replies are not parsed.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use memchr::memmem;

/// When the action of a trigger runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the command is forwarded to Redis.
    Before,
    /// After the command has been forwarded. Redis may not have executed it yet.
    After,
}

/// What happens to the connection after an action. For a delay, the action itself sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection stays open.
    Pass,
    /// Both sides of the connection are closed. A command that has not been forwarded is lost.
    Cut,
    /// The connection stays open, but no further replies are forwarded, including the reply to the current command.
    SwallowAnswers,
}

type Action = Box<dyn FnOnce() -> Then + Send>;

struct Trigger {
    needle: Vec<u8>,
    /// How many commands that contain the needle are forwarded before the action runs.
    skip: usize,
    when: When,
    action: Action,
}

/// Decides what happens to commands and replies. The methods are called on the threads of the connection. A call may block,
/// which also delays everything that follows on the connection.
pub trait Watcher: Send + Sync {
    /// Called for each command before it is forwarded.
    fn command(&self, connection: u64, command: &[u8]) -> Then;
    /// Called for each chunk of replies before it is forwarded: a whole reply, part of a long reply, or several replies.
    fn answer(&self, connection: u64, answer: &[u8]) -> Then;
}

#[derive(Default)]
struct Shared {
    triggers: Mutex<Vec<Trigger>>,
    watcher: Option<Arc<dyn Watcher>>,
    /// The number of connections so far.
    connections: AtomicU64,
    /// The nodes' sides of the open connections, if there is a watcher.
    clients: Mutex<HashMap<u64, TcpStream>>,
    /// Whether all replies on all connections are swallowed.
    mute: AtomicBool,
}

/// A running proxy. The threads of a connection exit when the connection ends.
pub struct RedisProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl RedisProxy {
    /// Starts a proxy on a free port to the Redis server at this address.
    pub fn start(redis: SocketAddr) -> Self {
        Self::start_with(redis, Shared::default())
    }

    /// Starts a proxy with a watcher that decides what happens to every command and reply.
    pub fn watched(redis: SocketAddr, watcher: Arc<dyn Watcher>) -> Self {
        let shared = Shared { watcher: Some(watcher), ..Shared::default() };
        Self::start_with(redis, shared)
    }

    fn start_with(redis: SocketAddr, shared: Shared) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(shared);
        let accepted = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the Redis server is down, the client's connection is closed immediately.
                if let Ok(server) = TcpStream::connect(redis) {
                    carry(&accepted, &client, &server);
                }
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Runs `action` at the n-th command from now on that contains `needle`. If `n` is 1, this is the next such command.
    pub fn at(
        &self,
        n: usize,
        needle: impl Into<Vec<u8>>,
        when: When,
        action: impl FnOnce() -> Then + Send + 'static,
    ) {
        assert!(n > 0, "n counts from 1");
        let trigger =
            Trigger { needle: needle.into(), skip: n - 1, when, action: Box::new(action) };
        self.shared.triggers.lock().unwrap().push(trigger);
    }

    /// Closes the node's side of a connection. A command that a watcher is holding may still be forwarded to Redis.
    pub fn hang_up(&self, connection: u64) {
        if let Some(client) = self.shared.forget(connection) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Swallows all further replies if `mute` is true. Otherwise, forwards replies again on connections that missed none.
    pub fn mute(&self, mute: bool) {
        self.shared.mute.store(mute, Ordering::SeqCst);
    }
}

impl Shared {
    fn forget(&self, connection: u64) -> Option<TcpStream> {
        self.clients.lock().unwrap().remove(&connection)
    }

    /// Removes and returns the actions that have to run for this command.
    fn due(&self, command: &[u8], when: When) -> Vec<Action> {
        let mut triggers = self.triggers.lock().unwrap();
        let mut due = Vec::new();
        let mut i = 0;
        while i < triggers.len() {
            let trigger = &mut triggers[i];
            if trigger.when != when || memmem::find(command, &trigger.needle).is_none() {
                i += 1;
            } else if trigger.skip > 0 {
                trigger.skip -= 1;
                i += 1;
            } else {
                due.push(triggers.remove(i).action);
            }
        }
        due
    }
}

fn carry(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
    }
    let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
    let swallows = Arc::new(AtomicBool::new(false));
    let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be shared");

    let (from, to) = (clone(client), clone(server));
    let (commands, swallow) = (Arc::clone(shared), Arc::clone(&swallows));
    if shared.watcher.is_some() {
        let mut clients = shared.clients.lock().unwrap();
        clients.insert(connection, clone(client));
    }
    thread::spawn(move || pass_commands(&commands, connection, &swallow, from, to));

    let (from, to) = (clone(server), clone(client));
    let shared = Arc::clone(shared);
    thread::spawn(move || pass_answers(&shared, connection, &swallows, from, to));
}

fn pass_commands(
    shared: &Shared,
    connection: u64,
    swallows: &AtomicBool,
    mut from: TcpStream,
    mut to: TcpStream,
) {
    let mut waiting = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    // Close only the sending side, so that Redis can still send its remaining replies.
    let mut ending = Shutdown::Write;
    'connection: while let Ok(n @ 1..) = from.read(&mut chunk) {
        waiting.extend_from_slice(&chunk[..n]);
        // Commands up to `passed` have been forwarded to Redis; those up to `end` may be forwarded.
        let (mut passed, mut end) = (0, 0);
        while let Some(length) = command_length(&waiting[end..]) {
            let command = end..end + length;
            if let Some(watcher) = &shared.watcher {
                if to.write_all(&waiting[passed..end]).is_err() {
                    break 'connection;
                }
                passed = end;
                match watcher.command(connection, &waiting[command.clone()]) {
                    Then::Pass => {}
                    Then::Cut => {
                        ending = Shutdown::Both;
                        break 'connection;
                    }
                    Then::SwallowAnswers => swallows.store(true, Ordering::SeqCst),
                }
            }
            for when in [When::Before, When::After] {
                let due = shared.due(&waiting[command.clone()], when);
                if !due.is_empty() {
                    if to.write_all(&waiting[passed..end]).is_err() {
                        break 'connection;
                    }
                    passed = end;
                }
                for action in due {
                    match action() {
                        Then::Pass => {}
                        Then::Cut => {
                            ending = Shutdown::Both;
                            break 'connection;
                        }
                        Then::SwallowAnswers => swallows.store(true, Ordering::SeqCst),
                    }
                }
                end = command.end;
            }
        }
        if to.write_all(&waiting[passed..end]).is_err() {
            break;
        }
        waiting.drain(..end);
    }
    if ending == Shutdown::Both {
        let _ = from.shutdown(ending);
    }
    let _ = to.shutdown(ending);
}

fn pass_answers(
    shared: &Shared,
    connection: u64,
    swallows: &AtomicBool,
    mut from: TcpStream,
    mut to: TcpStream,
) {
    let mut chunk = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        if let Some(watcher) = &shared.watcher {
            match watcher.answer(connection, &chunk[..n]) {
                Then::Pass => {}
                Then::Cut => break,
                Then::SwallowAnswers => swallows.store(true, Ordering::SeqCst),
            }
        }
        if shared.mute.load(Ordering::SeqCst) {
            // Swallow everything from here on, because the client could not parse a stream with a gap.
            swallows.store(true, Ordering::SeqCst);
        }
        // A watcher is also called for replies that arrive after the node has closed the connection.
        let is_gone = !swallows.load(Ordering::SeqCst) && to.write_all(&chunk[..n]).is_err();
        if is_gone && shared.watcher.is_none() {
            break;
        }
    }
    shared.forget(connection);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns the length in bytes of the first command, such as `*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`. Returns None if the command
/// is incomplete.
fn command_length(bytes: &[u8]) -> Option<usize> {
    let (mut at, count) = header(bytes, 0, b'*')?;
    for _ in 0..count {
        let (begin, length) = header(bytes, at, b'$')?;
        at = begin + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

fn header(bytes: &[u8], at: usize, sigil: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
    assert_eq!(rest[0], sigil, "clients frame their commands: {:?}", String::from_utf8_lossy(rest));
    let end = rest.windows(2).position(|window| window == b"\r\n")?;
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().expect("a length is a number");
    Some((at + end + 2, number))
}
