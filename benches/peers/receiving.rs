//! Measures receiving alone: threads read many datagrams per system call, as the listener of `eds` does, and discard them.
//! There is one thread, or two that share a socket or have separate sockets with `SO_REUSEPORT`.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use event_data_service::ingest::{Receiver, read_timeout};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Socket, Type};

use super::flow::{Flow, Protocol, Sent};
use super::{BASE, Figures, QUICK_EVENTS, ROUNDS};
use crate::measure::{Way, figure, side_by_side, thread_cpu};
use crate::report::{Report, column};

/// The size of the receive buffer in the default configuration.
const RECEIVE_BUFFER: usize = 16 << 20;
const DATAGRAM_MAX: usize = 65_536;
const LINGER: Duration = Duration::from_millis(100);
const EVENTS: u32 = 900_000;
/// A rate in events per second that a single sender does not reach.
const FULL_SPEED: u32 = 10_000_000;

/// The threads that read, their sockets, and when they read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// One thread, which reads as soon as data is available.
    OneAtOnce,
    /// One thread that pauses while datagrams arrive in quick succession, as a node's thread does. The threads of all
    /// variants below also pause.
    One,
    TwoOfOneSocket,
    /// Two threads with separate sockets. The kernel selects one by a hash of both addresses, so a flow stays on one socket.
    TwoByHash,
    /// Two threads with separate sockets. A BPF program selects one of the sockets by this field of the kernel, such as the
    /// processor or a random number.
    TwoBy(libc::c_int),
}

/// The result of a measurement.
struct Read {
    /// The number of datagrams read by each thread.
    datagrams: Vec<usize>,
    cpu: f64,
    sent: Sent,
    lost: usize,
}

impl Read {
    /// Returns the numbers for the columns of [`run`].
    fn figures(&self, lines: usize) -> Vec<f64> {
        let all: usize = self.datagrams.iter().sum();
        let most = self.datagrams.iter().copied().max().unwrap_or_default();
        let sent = all + self.lost;
        vec![
            self.cpu * 1e6 / figure(all * lines),
            self.sent.cpu * 1e6 / figure(sent * lines),
            figure(self.lost) * 100.0 / figure(sent),
            figure(most) * 100.0 / figure(all),
        ]
    }
}

pub(super) fn count(flow: &Flow) -> anyhow::Result<Figures> {
    let read = read(flow, 1, Readers::OneAtOnce)?;
    Ok(Figures {
        cpu: read.cpu,
        sender_cpu: read.sent.cpu,
        datagrams_dropped: read.lost as u64,
        events_lost: figure(read.lost * flow.lines),
        users: f64::NAN,
        redis_bytes: f64::NAN,
        memory_mb: f64::NAN,
        ..Figures::default()
    })
}

/// Compares one thread with two.
pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    for (id, lines, rate, flows) in [
        ("threads-15-1", 15, BASE.rate, 1),
        ("threads-15-4", 15, BASE.rate, 4),
        ("threads-1-1", 1, BASE.rate, 1),
        ("threads-1-4", 1, BASE.rate, 4),
        ("threads-full-1", 1, FULL_SPEED, 1),
        ("threads-full-4", 1, FULL_SPEED, 4),
    ] {
        let events = if report.is_quick() { QUICK_EVENTS } else { EVENTS };
        let flow = Flow { events, rate, lines, ..BASE };
        let way = |name, readers| Way {
            name,
            run: Box::new(move || Ok(read(&flow, flows, readers)?.figures(lines))),
        };
        let speed = match rate {
            FULL_SPEED => "as fast as it goes".to_owned(),
            rate => format!("{rate} events/s"),
        };
        side_by_side(
            report,
            id,
            &format!("Receiving alone, lines per datagram: {lines}, flows: {flows}, {speed}"),
            ROUNDS,
            &[
                column("CPU s/M", 3),
                column("of the sender", 3),
                column("datagrams lost, %", 2),
                column("read by the busier, %", 0),
            ],
            &mut [
                way("one thread", Readers::One),
                way("one thread, reading at once", Readers::OneAtOnce),
                way("two threads, one socket", Readers::TwoOfOneSocket),
                way("two sockets, by hash", Readers::TwoByHash),
                way("two sockets, at random", Readers::TwoBy(libc::SKF_AD_RANDOM)),
                way("two sockets, by processor", Readers::TwoBy(libc::SKF_AD_CPU)),
            ],
        )?;
    }
    Ok(())
}

/// Sends a load from `flows` sockets to the readers. Returns the numbers of datagrams read and lost, and the cost.
fn read(flow: &Flow, flows: usize, readers: Readers) -> anyhow::Result<Read> {
    let sockets = match readers {
        Readers::OneAtOnce | Readers::One | Readers::TwoOfOneSocket => 1,
        Readers::TwoByHash | Readers::TwoBy(_) => 2,
    };
    let mut to = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut open = Vec::new();
    for _ in 0..sockets {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.set_reuse_port(sockets > 1)?;
        // Two sockets share the buffer size of one. If exceeding the system's limit is not permitted, stay within the limit.
        let room = RECEIVE_BUFFER / sockets;
        if set_socket_recv_buffer_size_force(&socket, room).is_err() {
            socket.set_recv_buffer_size(room)?;
        }
        socket.set_read_timeout(Some(read_timeout(LINGER)))?;
        socket.bind(&to.into())?;
        to = socket.local_addr()?.as_socket().context("an IP address")?;
        open.push(socket);
    }
    if let Readers::TwoBy(number) = readers {
        steer(&open[0], number)?;
    }
    if readers == Readers::TwoOfOneSocket {
        open.push(open[0].try_clone()?);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let start = |socket| {
        let (mut receiver, stop) = (Receiver::new(socket, DATAGRAM_MAX), Arc::clone(&stop));
        let receive = if readers == Readers::OneAtOnce { Receiver::wait } else { Receiver::gather };
        thread::spawn(move || -> anyhow::Result<(usize, f64)> {
            let (before, mut datagrams) = (thread_cpu()?, 0);
            // After the load has been sent, continue until the socket is empty.
            while receive(&mut receiver)? || !stop.load(Ordering::Relaxed) {
                datagrams += receiver.datagrams().count();
            }
            Ok((datagrams, thread_cpu()? - before))
        })
    };
    let threads: Vec<_> = open.into_iter().map(start).collect();
    let sent = flow.send(&vec![to; flows], Protocol::Events, 0)?;
    stop.store(true, Ordering::Relaxed);
    let (mut datagrams, mut cpu) = (Vec::new(), 0.0);
    for thread in threads {
        let (read, own) = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        datagrams.push(read);
        cpu += own;
    }
    let sent_datagrams = (flow.events as usize).div_ceil(flow.lines);
    let lost = sent_datagrams.checked_sub(datagrams.iter().sum()).context("more than was sent")?;
    Ok(Read { datagrams, cpu, sent, lost })
}

/// Attaches a BPF program to the two sockets on a port. It selects one of the sockets by the kernel field `by`.
#[expect(unsafe_code, reason = "SO_ATTACH_REUSEPORT_CBPF has no safe wrapper")]
fn steer(socket: &Socket, by: libc::c_int) -> anyhow::Result<()> {
    let step = |code, k| -> anyhow::Result<_> {
        let (code, jt, jf) = (u16::try_from(code)?, 0, 0);
        Ok(libc::sock_filter { code, jt, jf, k })
    };
    let offset = (libc::SKF_AD_OFF + by).cast_unsigned();
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_ABS, offset)?,
        step(libc::BPF_ALU | libc::BPF_MOD, 2)?,
        step(libc::BPF_RET | libc::BPF_A, 0)?,
    ];
    let (len, filter) = (u16::try_from(steps.len())?, steps.as_mut_ptr());
    let program = libc::sock_fprog { len, filter };
    // SAFETY: the kernel reads a `sock_fprog`, whose size is passed, and the `len` instructions that it points to.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            libc::socklen_t::try_from(size_of_val(&program))?,
        )
    };
    ensure!(result == 0, std::io::Error::last_os_error());
    Ok(())
}
