//! A TCP proxy for any protocol. It can cut, stall or delay connections, limit their rate, forward responses in small
//! pieces, and switch to another server. For single Redis commands, see [`crate::redis_proxy`].

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How the proxy forwards bytes. A change takes effect immediately, including on open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Bytes are forwarded as fast as they arrive.
    Open,
    /// All connections are closed, and new ones are closed immediately.
    Cut,
    /// Connections stay open and new ones are accepted, but no bytes are forwarded. The held bytes are forwarded when the
    /// traffic changes.
    Stall,
    /// Bytes are forwarded after this delay.
    Delay(Duration),
    /// Responses are forwarded in pieces of at most this many bytes, with this pause before each piece.
    Trickle(usize, Duration),
    /// All connections together forward this many bytes per second in each direction, as if they shared a network link.
    Rate(u32),
}

/// The number of bytes that a connection forwards at a time with [`Traffic::Rate`], so that connections take turns.
const PASSED_AT_ONCE: usize = 4 << 10;

#[derive(Debug)]
struct Shared {
    /// The traffic, the server, and how many times connections have been cut so far.
    state: Mutex<(Traffic, SocketAddr, u64)>,
    /// For requests and for responses, the time until which the simulated link is busy with the bytes forwarded so far.
    busy_until: [Mutex<Instant>; 2],
    changed: Condvar,
}

/// A running proxy. The threads of a connection exit when the connection ends.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl TcpProxy {
    /// Starts a proxy to this server on a free port.
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

    /// Switches to another server. Connections to the previous server are closed.
    pub fn lead_to(&self, server: SocketAddr) {
        let mut state = self.shared.state.lock().unwrap();
        state.1 = server;
        state.2 += 1;
        self.shared.changed.notify_all();
    }

    /// Leads new connections to another server.
    pub fn lead_new_to(&self, server: SocketAddr) {
        self.shared.state.lock().unwrap().1 = server;
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, client: &TcpStream) {
        // If the server is unreachable, the client's connection is closed, as if the server had closed it.
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
        // When the connection is cut, the threads are blocked in reads, which only the shutdown below ends.
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

    /// Waits for as long as it takes to send these bytes at this rate, after all bytes before them.
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

    /// Waits while connections are stalled, and returns the current state. Returns None if the connection, which was made
    /// after this number of cuts, has been cut since.
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
