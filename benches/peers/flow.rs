//! Sends a load: the same events to every program, in the protocol that the program supports, at a constant rate.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::{Event, Plan, Synthetic};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg};

use crate::measure::thread_cpu;

/// Maximum number of datagrams sent per system call.
const BATCH: usize = 64;
/// How long the sender sleeps between checks for events that are due.
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
    /// Events per datagram.
    pub(crate) lines: usize,
}

/// The CPU time and the elapsed time of sending a load, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) cpu: f64,
    pub(crate) seconds: f64,
}

impl Flow {
    /// Returns how long it takes to send the load.
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
        let sockets = to.iter().map(|to| {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.connect(to)?;
            std::io::Result::Ok(socket)
        });
        let sockets: Vec<_> = sockets.collect::<Result<_, _>>()?;
        let words = Words::new(self.series, protocol);
        let mut events = self.synthetic(start_nanos);
        let mut room = vec![Vec::new(); BATCH];
        let (mut sent, mut turns) = (0, sockets.iter().cycle());
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
                if let Some(socket) = turns.next() {
                    send_all(socket, &room[..full])?;
                }
            }
            thread::sleep(SLOT);
        }
        Ok(Sent { cpu: thread_cpu()? - cpu, seconds: began.elapsed().as_secs_f64() })
    }
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
