//! An HTTP proxy in front of a database, or in place of one, which records all writes. It can simulate an outage by refusing
//! connections, hanging or responding with an error. It can also forward a write and lose the response.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memchr::memmem;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::http;

/// How the proxy treats requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards requests to the server, or responds with status 204 if there is no server behind the proxy.
    Pass,
    /// Does not listen, so that connections are refused.
    Refuse,
    /// Accepts a request but does not respond. The connection ends when the client leaves or the mode changes.
    Hang,
    /// Responds with this status.
    Answer(u16),
    /// Responds with this status to requests whose body contains this text, like a filtering firewall. Forwards all other
    /// requests.
    Filter(&'static str, u16),
    /// Responds with this status and a `Retry-After` of this many seconds.
    AnswerLater(u16, u32),
    /// Forwards a request, and then closes the connection to the client without a response.
    TakeAndCut,
    /// Does the same to writes. Forwards all other requests.
    TakeWriteAndCut,
    /// Forwards a request, and then does not respond. The connection ends when the client leaves or the mode changes.
    TakeAndHang,
    /// Forwards a request, but responds with this status.
    TakeAndAnswer(u16),
    /// Forwards requests, and returns the responses one byte at a time.
    Trickle,
    /// Treats each request according to a mode that is chosen at random with this seed: errors with and without
    /// `Retry-After`, lost responses, and sometimes [`Mode::Pass`].
    Storm(u64),
}

/// The modes that [`Mode::Storm`] chooses from.
const STORM: [Mode; 8] = [
    Mode::Answer(503),
    Mode::AnswerLater(503, 1),
    Mode::TakeAndAnswer(503),
    Mode::TakeAndCut,
    Mode::AnswerLater(429, 1),
    Mode::Answer(500),
    Mode::Pass,
    Mode::Trickle,
];
/// The maximum time until the proxy notices that a client has left.
const LEAVING_MAX: Duration = Duration::from_millis(300);
/// The pause between two bytes of a response.
const TRICKLE_PAUSE: Duration = Duration::from_millis(1);

/// A write request, successful or not.
#[derive(Debug, Clone)]
pub struct Received {
    /// When the whole body had been received.
    pub at: Instant,
    pub body: Vec<u8>,
    /// Whether the database accepted the write.
    pub taken: bool,
    /// Whether the client got a successful response.
    pub confirmed: bool,
}

impl Received {
    fn is_probe(&self) -> bool {
        self.body.starts_with(b"eds_probe ")
    }
}

#[derive(Debug)]
struct State {
    mode: Mode,
    writes: Vec<Received>,
    under_way: usize,
    under_way_max: usize,
    storm: SmallRng,
}

#[derive(Debug)]
struct Shared {
    upstream: Option<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub struct HttpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

impl HttpProxy {
    /// Starts a proxy on a free port. Without `upstream`, the proxy itself responds to all requests.
    pub fn start(upstream: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = State {
            mode: Mode::Pass,
            writes: Vec::new(),
            under_way: 0,
            under_way_max: 0,
            storm: SmallRng::seed_from_u64(0),
        };
        let shared =
            Arc::new(Shared { upstream, state: Mutex::new(state), changed: Condvar::new() });
        let listening = Some(listen(&shared, listener));
        Self { address, shared, listening }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes how requests are treated, with immediate effect.
    pub fn set(&mut self, mode: Mode) {
        let before = {
            let mut state = self.shared.state.lock().unwrap();
            if let Mode::Storm(seed) = mode {
                state.storm = SmallRng::seed_from_u64(seed);
            }
            std::mem::replace(&mut state.mode, mode)
        };
        self.shared.changed.notify_all();
        if before != Mode::Refuse && mode == Mode::Refuse {
            // A connection makes the listening thread check the mode and exit.
            let _ = TcpStream::connect(self.address);
            let listening = self.listening.take().expect("the proxy is listening");
            listening.join().expect("the listener does not panic");
        } else if before == Mode::Refuse && mode != Mode::Refuse {
            self.listening = Some(listen(&self.shared, self.bind_again()));
        }
    }

    fn bind_again(&self) -> TcpListener {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => return listener,
                Err(error) => assert!(Instant::now() < deadline, "{}: {error}", self.address),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns all writes of counts so far, in order of arrival.
    pub fn writes(&self) -> Vec<Received> {
        let mut writes = self.attempts();
        writes.retain(|write| !write.is_probe());
        writes
    }

    /// Returns all writes so far, including those with which nodes only test whether the database accepts points.
    pub fn attempts(&self) -> Vec<Received> {
        self.shared.state.lock().unwrap().writes.clone()
    }

    /// Returns the maximum number of writes that were in progress at the same time since the last call.
    pub fn take_under_way_max(&self) -> usize {
        let mut state = self.shared.state.lock().unwrap();
        let under_way = state.under_way;
        std::mem::replace(&mut state.under_way_max, under_way)
    }
}

fn listen(shared: &Arc<Shared>, listener: TcpListener) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if shared.state.lock().unwrap().mode == Mode::Refuse {
                return;
            }
            let shared = Arc::clone(&shared);
            // Errors are ignored: a client may leave at any time.
            thread::spawn(move || serve(&shared, &client));
        }
    })
}

impl State {
    /// Returns the mode for the next request.
    fn draw_mode(&mut self) -> Mode {
        match self.mode {
            Mode::Storm(_) => STORM[self.storm.random_range(0..STORM.len())],
            mode => mode,
        }
    }
}

/// Serves one request, after which the connection ends.
fn serve(shared: &Shared, client: &TcpStream) -> io::Result<()> {
    let Some(request) = Request::read(client)? else {
        return Ok(());
    };
    if !request.is_write() {
        let mode = match shared.state.lock().unwrap().draw_mode() {
            Mode::TakeWriteAndCut => Mode::Pass,
            mode => mode,
        };
        return exchange(shared, &request, client, mode).1?.send(client);
    }

    let (index, mode) = {
        let mut state = shared.state.lock().unwrap();
        // If a client has timed out and retries, wait until the proxy has noticed that the client left the previous request.
        if state.mode == Mode::Hang {
            let is_busy = |state: &mut State| state.under_way > 0;
            let left = shared.changed.wait_timeout_while(state, LEAVING_MAX, is_busy);
            state = left.unwrap().0;
        }
        state.under_way += 1;
        state.under_way_max = state.under_way_max.max(state.under_way);
        state.writes.push(Received {
            at: Instant::now(),
            body: request.plain.clone(),
            taken: false,
            confirmed: false,
        });
        // Choose the mode under the lock under which the write is added, so that a mode set by a test that has seen the
        // write applies only to later writes.
        (state.writes.len() - 1, state.draw_mode())
    };
    let (taken, answer) = exchange(shared, &request, client, mode);
    {
        let mut state = shared.state.lock().unwrap();
        state.under_way -= 1;
        shared.changed.notify_all();
        state.writes[index].taken = taken;
        state.writes[index].confirmed = answer.as_ref().is_ok_and(Answer::is_success);
    }
    answer?.send(client)
}

/// A response to the client.
struct Answer {
    status: u16,
    bytes: Vec<u8>,
    trickles: bool,
}

impl Answer {
    fn of(status: u16, header: &str) -> Self {
        let head = format!(
            "HTTP/1.1 {status} As told\r\nContent-Length: 0\r\nConnection: close\r\n{header}\r\n"
        );
        Self { status, bytes: head.into_bytes(), trickles: false }
    }

    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    fn send(&self, mut client: &TcpStream) -> io::Result<()> {
        if !self.trickles {
            return client.write_all(&self.bytes);
        }
        client.set_nodelay(true)?;
        self.bytes.iter().try_for_each(|byte| {
            thread::sleep(TRICKLE_PAUSE);
            client.write_all(&[*byte])
        })
    }
}

/// Treats a request according to the mode. Returns whether the database accepted it, and the response to the client.
fn exchange(
    shared: &Shared,
    request: &Request,
    client: &TcpStream,
    mode: Mode,
) -> (bool, io::Result<Answer>) {
    let away = |kind: io::ErrorKind| (false, Err(kind.into()));
    match mode {
        Mode::Refuse => return away(io::ErrorKind::ConnectionRefused),
        Mode::Hang => {
            let hung = hang(shared, client, mode);
            return (false, hung.and(Err(io::ErrorKind::TimedOut.into())));
        }
        Mode::Answer(status) => return (false, Ok(Answer::of(status, ""))),
        Mode::Filter(text, status) if memmem::find(&request.plain, text.as_bytes()).is_some() => {
            return (false, Ok(Answer::of(status, "")));
        }
        Mode::AnswerLater(status, secs) => {
            let asked = format!("Retry-After: {secs}\r\n");
            return (false, Ok(Answer::of(status, &asked)));
        }
        _ => {}
    }
    let passed = match shared.upstream {
        Some(upstream) => request.pass_to(upstream),
        None => Ok(Answer::of(204, "")),
    };
    let taken = passed.as_ref().is_ok_and(Answer::is_success);
    let answer = match mode {
        Mode::TakeAndCut | Mode::TakeWriteAndCut => Err(io::ErrorKind::ConnectionAborted.into()),
        Mode::TakeAndHang => hang(shared, client, mode).and(Err(io::ErrorKind::TimedOut.into())),
        Mode::TakeAndAnswer(status) => Ok(Answer::of(status, "")),
        Mode::Trickle => passed.map(|passed| Answer { trickles: true, ..passed }),
        _ => passed,
    };
    (taken, answer)
}

/// Waits until the mode changes or the client leaves.
fn hang(shared: &Shared, client: &TcpStream, mode: Mode) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_millis(1)))?;
    let mut state = shared.state.lock().unwrap();
    while state.mode == mode && !matches!((&*client).read(&mut [0]), Ok(0)) {
        state = shared.changed.wait_timeout(state, Duration::from_millis(10)).unwrap().0;
    }
    Ok(())
}

struct Request {
    /// The request line and the headers, without the empty line after them.
    head: String,
    body: Vec<u8>,
    /// The body after decompression.
    plain: Vec<u8>,
}

impl Request {
    /// Reads a request. Returns None if the client has left.
    fn read(client: &TcpStream) -> io::Result<Option<Self>> {
        let mut reader = BufReader::new(client);
        let mut head = String::new();
        loop {
            let begin = head.len();
            if reader.read_line(&mut head)? == 0 {
                return Ok(None);
            }
            if head[begin..].trim_end().is_empty() {
                head.truncate(begin);
                break;
            }
        }
        let lower = head.to_ascii_lowercase();
        assert!(!lower.contains("transfer-encoding:"), "bodies are sent with their length");
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |length| length.trim().parse().expect("a length"));
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let plain = http::decoded(&head, &body)?;
        Ok(Some(Self { head, body, plain }))
    }

    fn is_write(&self) -> bool {
        ["/write", "/api/v1/write", "/api/v2/write", "/v1/"]
            .iter()
            .any(|path| self.head.starts_with(&format!("POST {path}")))
    }

    fn pass_to(&self, upstream: SocketAddr) -> io::Result<Answer> {
        let mut server = TcpStream::connect(upstream)?;
        let (first, rest) = self.head.split_once("\r\n").unwrap_or((&self.head, ""));
        let rest: String = rest
            .split_inclusive("\r\n")
            .filter(|header| !header.to_ascii_lowercase().starts_with("connection:"))
            .collect();
        let head = format!("{first}\r\nConnection: close\r\n{rest}\r\n");
        server.write_all(&[head.as_bytes(), &self.body].concat())?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
        let status = status.and_then(|status| status.parse().ok());
        Ok(Answer {
            status: status.ok_or_else(|| io::Error::other("no status"))?,
            bytes: answer,
            trickles: false,
        })
    }
}
