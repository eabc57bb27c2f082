//! Sends a load: the same events to every program, in the protocol that the program supports, at a constant rate.

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use loadgen::{Event, Plan, Synthetic};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

use crate::measure::thread_cpu;

/// Maximum number of datagrams sent per system call.
const BATCH: usize = 64;
/// The time the sender sleeps between checks for events that are due.
const SLOT: Duration = Duration::from_millis(1);

/// The protocol in which events are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The lines of `eds`, with a timestamp.
    Events,
    /// A set member in the statsd protocol, which counts only users.
    Sets,
    /// A set member and a counter increment in the statsd protocol, which together count users and events, as `eds` does.
    SetsAndCounters,
}

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) events: u32,
    /// Events per second.
    pub(crate) rate: u32,
    pub(crate) series: u32,
    /// Users per series.
    pub(crate) users: u32,
    /// Events per datagram, or per request.
    pub(crate) lines: usize,
    /// The number of connections on which requests are sent; 0 if events are sent in datagrams.
    pub(crate) clients: usize,
}

/// The CPU time and the elapsed time of sending a load, in seconds.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) cpu: f64,
    pub(crate) seconds: f64,
    /// For each request, the time from when it was due until its answer, in ms, sorted.
    pub(crate) waits_ms: Vec<f64>,
}

impl Flow {
    /// Returns the time it takes to send the load.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs(1) * self.events / self.rate
    }

    fn synthetic(&self, start_nanos: i64) -> Synthetic {
        let nonzero = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Synthetic::new(Plan {
            seed: 42,
            events: self.events.into(),
            series: nonzero(self.series),
            users: nonzero(self.users),
            start_nanos,
            span_nanos: i64::try_from(self.lasts().as_nanos()).unwrap_or(i64::MAX),
            repeat: 0.0,
            shuffle: false,
        })
    }

    /// Returns the sum of the numbers of distinct users in each series.
    pub(crate) fn users_of_all(&self) -> usize {
        let mut users: Vec<_> =
            self.synthetic(0).map(|event| (event.kind, event.product, event.user)).collect();
        users.sort_unstable();
        users.dedup();
        users.len()
    }

    /// Sends the load at its rate, divided among these addresses, and returns the cost. The timestamps begin with
    /// `start_nanos`.
    pub(crate) fn send(
        &self,
        to: &[SocketAddr],
        protocol: Protocol,
        start_nanos: i64,
    ) -> anyhow::Result<Sent> {
        let sockets = connected(to)?;
        let mut turns = sockets.iter().cycle();
        self.send_with(protocol, start_nanos, |datagrams| {
            turns.next().map_or(Ok(()), |socket| send_all(socket, datagrams))
        })
    }

    /// Sends the load at its rate to each of these addresses, one datagram per system call, as an application would. Returns
    /// the cost. The timestamps begin with `start_nanos`.
    pub(crate) fn send_to_each(&self, to: &[SocketAddr], start_nanos: i64) -> anyhow::Result<Sent> {
        let sockets = connected(to)?;
        self.send_with(Protocol::Events, start_nanos, |datagrams| {
            for datagram in datagrams {
                for socket in &sockets {
                    socket.send(datagram)?;
                }
            }
            Ok(())
        })
    }

    fn send_with(
        &self,
        protocol: Protocol,
        start_nanos: i64,
        mut dispatch: impl FnMut(&[Vec<u8>]) -> anyhow::Result<()>,
    ) -> anyhow::Result<Sent> {
        let words = Words::new(self.series, protocol);
        let mut events = self.synthetic(start_nanos);
        let mut room = vec![Vec::new(); BATCH];
        let mut sent = 0;
        let (began, cpu) = (Instant::now(), thread_cpu()?);
        while sent < u64::from(self.events) {
            let nanos = u64::try_from(began.elapsed().as_nanos())?;
            let due = nanos * u64::from(self.rate) / 1_000_000_000;
            let due = due.min(self.events.into());
            while sent < due {
                let mut full = 0;
                while full < BATCH && sent < due {
                    room[full].clear();
                    for event in events.by_ref().take(self.lines) {
                        words.write(&event, &mut room[full]);
                        sent += 1;
                    }
                    full += 1;
                }
                dispatch(&room[..full])?;
            }
            thread::sleep(SLOT);
        }
        let (cpu, seconds) = (thread_cpu()? - cpu, began.elapsed().as_secs_f64());
        Ok(Sent { cpu, seconds, waits_ms: Vec::new() })
    }

    /// Sends the load at its rate in requests, each of which waits for its answer. The CPU time is only that of writing lines.
    pub(crate) fn request(&self, to: SocketAddr, start_nanos: i64) -> anyhow::Result<Sent> {
        let words = Words::new(self.series, Protocol::Events);
        let (bodies, due) = mpsc::sync_channel::<(Instant, Vec<u8>)>(self.clients);
        let due = Mutex::new(due);
        let send_all = || -> anyhow::Result<Vec<f64>> {
            let mut stream = BufReader::new(TcpStream::connect(to)?);
            stream.get_ref().set_nodelay(true)?;
            let mut waits = Vec::new();
            loop {
                let next = due.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((due, body)) = next else {
                    return Ok(waits);
                };
                let head = format!(
                    "POST /write HTTP/1.1\r\nHost: {to}\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.get_mut().write_all(&[head.as_bytes(), &body].concat())?;
                let mut status = String::new();
                stream.read_line(&mut status)?;
                ensure!(status.starts_with("HTTP/1.1 204 "), "a request was answered: {status}");
                let mut header = status;
                while header != "\r\n" {
                    header.clear();
                    stream.read_line(&mut header)?;
                }
                waits.push(due.elapsed().as_secs_f64() * 1000.0);
            }
        };
        let (began, cpu) = (Instant::now(), thread_cpu()?);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients).map(|_| scope.spawn(send_all)).collect();
            let mut events = self.synthetic(start_nanos).peekable();
            let mut sent = 0;
            while events.peek().is_some() {
                let mut body = Vec::new();
                for event in events.by_ref().take(self.lines) {
                    words.write(&event, &mut body);
                    sent += 1;
                }
                let due = began + Duration::from_secs(1) * sent / self.rate;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                bodies.send((due, body)).context("all clients have failed")?;
            }
            let cpu = thread_cpu()? - cpu;
            drop(bodies);
            let mut waits_ms = Vec::new();
            for client in clients {
                waits_ms.extend(client.join().map_err(|_| anyhow!("a client panicked"))??);
            }
            waits_ms.sort_by(f64::total_cmp);
            Ok(Sent { cpu, seconds: began.elapsed().as_secs_f64(), waits_ms })
        })
    }
}

fn connected(to: &[SocketAddr]) -> std::io::Result<Vec<UdpSocket>> {
    let connect = |to: &SocketAddr| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(to)?;
        Ok(socket)
    };
    to.iter().map(connect).collect()
}

fn send_all(socket: &UdpSocket, datagrams: &[Vec<u8>]) -> anyhow::Result<()> {
    let parts: Vec<_> = datagrams.iter().map(|datagram| [IoSlice::new(datagram)]).collect();
    let mut controls: Vec<_> = parts.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let headers = parts.iter().zip(&mut controls);
    let mut headers: Vec<_> = headers.map(|(part, control)| MMsgHdr::new(part, control)).collect();
    let mut sent = 0;
    while sent < headers.len() {
        sent += sendmmsg(socket, &mut headers[sent..], SendFlags::empty())?;
    }
    Ok(())
}

/// The constant parts of the lines of each series.
struct Words {
    protocol: Protocol,
    /// The beginning of each line, indexed by kind and product.
    heads: Vec<Vec<String>>,
    counters: Vec<Vec<String>>,
}

impl Words {
    fn new(series: u32, protocol: Protocol) -> Self {
        // The load has approximately as many kinds as products.
        let most = series.isqrt() + 1;
        let of_all = |word: &dyn Fn(u32, u32) -> String| -> Vec<Vec<String>> {
            let of_kind = |kind| (0..=most).map(|product| word(kind, product)).collect();
            (0..=most).map(of_kind).collect()
        };
        let event =
            |kind, product| format!("event_type=type-{kind},product=product-{product} value=user-");
        let set = |kind, product| format!("users.type-{kind}.product-{product}:user-");
        let counter = |kind, product| format!("events.type-{kind}.product-{product}:1|c\n");
        Self {
            protocol,
            heads: match protocol {
                Protocol::Events => of_all(&event),
                Protocol::Sets | Protocol::SetsAndCounters => of_all(&set),
            },
            counters: of_all(&counter),
        }
    }

    fn write(&self, event: &Event, line: &mut Vec<u8>) {
        let (kind, product) = (event.kind as usize, event.product as usize);
        let mut number = itoa::Buffer::new();
        line.extend_from_slice(self.heads[kind][product].as_bytes());
        line.extend_from_slice(number.format(event.user).as_bytes());
        match self.protocol {
            Protocol::Events => {
                line.push(b' ');
                line.extend_from_slice(number.format(event.nanos).as_bytes());
                line.push(b'\n');
            }
            Protocol::Sets => line.extend_from_slice(b"|s\n"),
            Protocol::SetsAndCounters => {
                line.extend_from_slice(b"|s\n");
                line.extend_from_slice(self.counters[kind][product].as_bytes());
            }
        }
    }
}
