//! An HTTP proxy in front of a database (or in place of one) that records and counts the writes that pass, and
//! can be away: refuse connections, hang, or answer 503. It can also let a write pass, and lose the answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memchr::memmem;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// How the proxy treats requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes them on; or answers 204 itself when there is no server behind it.
    Pass,
    /// Does not listen: connections are refused.
    Refuse,
    /// Takes a request and is silent until the client leaves or the mode changes; then the connection ends.
    Hang,
    /// Replies with this status.
    Answer(u16),
    /// Replies with this status to bodies with this text, as a filtering firewall does; passes others on.
    Filter(&'static str, u16),
    /// Replies with this status and a `Retry-After` of this many seconds.
    AnswerLater(u16, u32),
    /// The database takes a write; then the connection ends without an answer.
    TakeAndCut,
    /// The database takes a write; then there is no reply until the client leaves or the mode changes.
    TakeAndHang,
    /// The database takes a write; the answer has this status all the same.
    TakeAndAnswer(u16),
    /// Passes them on, and the answer back a byte at a time.
    Trickle,
    /// For each write another of these, by chance from this seed: refusals with and without `Retry-After`, lost
    /// answers, and sometimes [`Mode::Pass`].
    Storm(u64),
}

/// The modes of a storm.
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
/// The longest time until a client that hangs up is noticed.
const LEAVING_MAX: Duration = Duration::from_millis(300);
/// Between two bytes of an answer.
const TRICKLE_PAUSE: Duration = Duration::from_millis(1);

/// A request to write, successful or not.
#[derive(Debug, Clone)]
pub struct Received {
    /// When its body was here in full.
    pub at: Instant,
    pub body: Vec<u8>,
    /// Whether the database took it.
    pub taken: bool,
    /// Whether the client got a success.
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
    /// Starts a proxy to `upstream`, on a free port.
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

    /// Changes how requests are treated, at once.
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
            // A connection makes the listening thread check the mode and leave.
            let _ = TcpStream::connect(self.address);
            let listening = self.listening.take().expect("it listens until it is to refuse");
            listening.join().expect("listening does not panic");
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

    /// Every write of counts so far, in the order of arrival.
    pub fn writes(&self) -> Vec<Received> {
        let mut writes = self.attempts();
        writes.retain(|write| !write.is_probe());
        writes
    }

    /// The same, and the writes of nodes that only look whether the database takes points.
    pub fn attempts(&self) -> Vec<Received> {
        self.shared.state.lock().unwrap().writes.clone()
    }

    /// How many writes were under way at one time at most, since the last call.
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
            // A client that leaves in the middle is no concern of ours.
            thread::spawn(move || serve(&shared, &client));
        }
    })
}

impl State {
    /// Returns the mode of the next request.
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
        let mode = shared.state.lock().unwrap().draw_mode();
        return exchange(shared, &request, client, mode).1?.send(client);
    }

    let (index, mode) = {
        let mut state = shared.state.lock().unwrap();
        // A client that gave up waiting, and asks again, is noticed to have left only a moment later.
        if state.mode == Mode::Hang {
            let is_busy = |state: &mut State| state.under_way > 0;
            let left = shared.changed.wait_timeout_while(state, LEAVING_MAX, is_busy);
            state = left.unwrap().0;
        }
        state.under_way += 1;
        state.under_way_max = state.under_way_max.max(state.under_way);
        state.writes.push(Received {
            at: Instant::now(),
            body: request.body.clone(),
            taken: false,
            confirmed: false,
        });
        // With the entry, so that a change of the mode after it is seen affects this write.
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

/// The answer to a request.
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

/// Returns whether the database took the request, and the answer, both by the mode.
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
        Mode::Filter(text, status) if memmem::find(&request.body, text.as_bytes()).is_some() => {
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
        Mode::TakeAndCut => Err(io::ErrorKind::ConnectionAborted.into()),
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
    /// The request line and the headers, without the line that ends them.
    head: String,
    body: Vec<u8>,
}

impl Request {
    /// `None` when the client has left.
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
        assert!(!lower.contains("content-encoding:"), "bodies are sent as they are");
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |length| length.trim().parse().expect("a length"));
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok(Some(Self { head, body }))
    }

    fn is_write(&self) -> bool {
        self.head.starts_with("POST /write") || self.head.starts_with("POST /api/v2/write")
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
