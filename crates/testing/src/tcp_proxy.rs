//! A TCP proxy for any protocol: it can cut, stall, delay, limit the rate, pass answers in small pieces, and switch to another
//! server. [`crate::redis_proxy`] sees single commands.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How bytes pass. A change is felt at once, by connections that are open, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// As fast as they come.
    Open,
    /// Connections end, and new ones end at once.
    Cut,
    /// Connections stay open and can be made, but no byte passes until the traffic changes. Then all bytes pass that
    /// were held.
    Stall,
    /// Whatever is read passes this much later.
    Delay(Duration),
    /// Answers pass in pieces of this many bytes, with this pause between them.
    Trickle(usize, Duration),
    /// The bytes a second each way, of all connections together, as over a link that they share.
    Rate(u32),
}

/// What passes at once at a [`Traffic::Rate`], so that connections take turns.
const PASSED_AT_ONCE: usize = 4 << 10;

#[derive(Debug)]
struct Shared {
    /// The traffic, the server, and how often connections were cut so far.
    state: Mutex<(Traffic, SocketAddr, u64)>,
    /// Until when the bytes that passed take either way, of commands and of answers.
    busy_until: [Mutex<Instant>; 2],
    changed: Condvar,
}

/// Its threads end with their connections.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl TcpProxy {
    /// Starts a proxy to this server, on a free port.
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            state: Mutex::new((Traffic::Open, server, 0)),
            busy_until: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.carry(&client));
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

    pub fn set(&self, traffic: Traffic) {
        let mut state = self.shared.state.lock().unwrap();
        state.0 = traffic;
        state.2 += u64::from(traffic == Traffic::Cut);
        self.shared.changed.notify_all();
    }

    /// Switches to another server; connections to the old one end.
    pub fn lead_to(&self, server: SocketAddr) {
        let mut state = self.shared.state.lock().unwrap();
        state.1 = server;
        state.2 += 1;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: &TcpStream) {
        // A server that cannot be reached looks like a server that hangs up.
        let Some((traffic, address, cuts)) = self.passable(None) else {
            return;
        };
        if traffic == Traffic::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(address) else {
            return;
        };
        for stream in [client, &server] {
            stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        }
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be shared");
        let (shared, from, to) = (Arc::clone(self), clone(client), clone(&server));
        let asking = thread::spawn(move || shared.pass(from, to, cuts, false));
        let (shared, from, to) = (Arc::clone(self), clone(&server), clone(client));
        let answering = thread::spawn(move || shared.pass(from, to, cuts, true));
        // Only this ends the reads of a connection that is cut.
        let mut state = self.state.lock().unwrap();
        while state.2 == cuts && !(asking.is_finished() && answering.is_finished()) {
            let wait = Duration::from_millis(50);
            state = self.changed.wait_timeout(state, wait).unwrap().0;
        }
        drop(state);
        for stream in [client, &server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, cuts: u64, answers: bool) {
        let mut chunk = vec![0; 1 << 16];
        'connection: while let Ok(n @ 1..) = from.read(&mut chunk) {
            let mut rest = &chunk[..n];
            let mut delayed = false;
            while !rest.is_empty() {
                let Some((traffic, _, _)) = self.passable(Some(cuts)) else {
                    break 'connection;
                };
                let mut bytes = rest.len();
                match traffic {
                    Traffic::Delay(delay) if !delayed => {
                        delayed = true;
                        thread::sleep(delay);
                        continue;
                    }
                    Traffic::Trickle(most, pause) if answers => {
                        bytes = bytes.min(most);
                        thread::sleep(pause);
                    }
                    Traffic::Rate(rate) => {
                        bytes = bytes.min(PASSED_AT_ONCE);
                        self.take_turn(bytes, rate, answers);
                    }
                    _ => {}
                }
                if to.write_all(&rest[..bytes]).is_err() {
                    break 'connection;
                }
                rest = &rest[bytes..];
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Waits until these bytes have passed at this rate, behind the bytes before them.
    fn take_turn(&self, bytes: usize, rate: u32, answers: bool) {
        let bytes = u32::try_from(bytes).expect("a chunk is small");
        let took = Duration::from_secs(1) * bytes / rate;
        let mut busy = self.busy_until[usize::from(answers)].lock().unwrap();
        let now = Instant::now();
        *busy = (*busy).max(now) + took;
        let wait = *busy - now;
        drop(busy);
        thread::sleep(wait);
    }

    /// Waits while everything is stalled. `None` when the connection, made after this number of cuts, was cut.
    fn passable(&self, made_after: Option<u64>) -> Option<(Traffic, SocketAddr, u64)> {
        let mut state = self.state.lock().unwrap();
        loop {
            if made_after.is_some_and(|cuts| cuts != state.2) {
                return None;
            }
            if state.0 != Traffic::Stall {
                return Some(*state);
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}
