//! [`Outlet`]: a UDP address to which datagrams are sent, and [`follow_name`]: the task that resolves its name. The socket is
//! connected, so the kernel reports ports on which no process listens. A line counts as sent once the kernel has accepted it.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, MsgHdr, Protocol, Socket, Type};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Destination, Loss, Pack};
use crate::diagnosis::Cause;
use crate::ingest::ListenAddress;
use crate::node::{Throttle, lock};

/// The send buffer of a socket; the kernel grants at most `net.core.wmem_max`.
const SEND_BUFFER: usize = 4 << 20;
/// Maximum number of attempts at a send that returns the error of an earlier one.
const TRIES_MAX: usize = 4;
/// How long an outlet counts as down after its last failure. The kernel reports unreachable ports at most once per second.
const DOWN_FOR: Duration = Duration::from_secs(5);
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(30);
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Outlet {
    name: String,
    /// The addresses on which this relay listens. The outlet never sends to them.
    listens: Vec<ListenAddress>,
    state: Mutex<State>,
    /// Notified if a different address may help. This triggers a lookup of the name.
    failed: Notify,
    is_loop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until an address is known.
    link: Option<Arc<Link>>,
    failed_at: Option<Instant>,
    /// The last failure that a different address might fix.
    address_failed_at: Option<Instant>,
    /// An address of the name on which this relay itself listens.
    own_address: Option<SocketAddr>,
    log_due: Throttle,
}

#[derive(Debug)]
struct Link {
    socket: Socket,
    address: SocketAddr,
    /// Whether the kernel splits buffers for this address.
    segments: AtomicBool,
}

impl Outlet {
    /// An address can be sent to at once, but a name only after its first lookup. The relay listens on `listens`.
    pub(crate) fn new(name: &str, listens: &[ListenAddress]) -> Self {
        let outlet = Self { name: name.to_owned(), listens: listens.to_vec(), ..Self::default() };
        if let Ok(address) = name.parse() {
            outlet.connect(address);
        }
        outlet
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether there is an address and no send has failed recently, other than because a datagram was too long.
    pub(crate) fn is_up(&self) -> bool {
        let state = lock(&self.state);
        state.link.is_some() && !is_recent(state.failed_at)
    }

    fn has_good_address(&self) -> bool {
        let state = lock(&self.state);
        state.link.is_some() && !is_recent(state.address_failed_at)
    }

    pub(crate) fn is_loop(&self) -> bool {
        self.is_loop.load(Ordering::Relaxed)
    }

    pub(super) fn set_loop(&self, is_loop: bool) {
        let was_loop = self.is_loop.swap(is_loop, Ordering::Relaxed);
        if is_loop && !was_loop {
            tracing::error!(to = self.name, "{}", Cause::RelayPassthroughLoop);
        } else if was_loop && !is_loop {
            tracing::info!(
                to = self.name,
                "passthrough lines no longer come back; sending them again"
            );
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.link().map(|link| link.address)
    }

    /// Returns an address of the name on which this relay itself listens, if the name has no other address.
    pub(crate) fn leads_back(&self) -> Option<SocketAddr> {
        let state = lock(&self.state);
        state.own_address.filter(|_| state.link.is_none())
    }

    fn link(&self) -> Option<Arc<Link>> {
        lock(&self.state).link.clone()
    }

    /// Returns false and keeps the previous address if connecting fails, or if this relay listens on the new one.
    fn connect(&self, address: SocketAddr) -> bool {
        let link = if leads_to_any(&self.listens, address) {
            lock(&self.state).own_address = Some(address);
            Err(io::Error::other(format!("this relay itself listens at {address}")))
        } else {
            Link::open(address)
        };
        let link = link.inspect_err(|error| self.has_no_address(error)).ok();
        let is_connected = link.is_some();
        if let Some(link) = link {
            let mut state = lock(&self.state);
            (state.link, state.address_failed_at) = (Some(Arc::new(link)), None);
        }
        is_connected
    }

    fn has_no_address(&self, error: &io::Error) {
        if let Some(address) = self.address() {
            tracing::debug!(%error, to = self.name, %address, "found no other address; keeping this one");
        } else {
            self.report(error, "has no address");
        }
    }

    /// Sends the datagrams of a pack, and counts its lines. Returns which datagrams the kernel accepted, one bit each.
    pub(super) fn send(&self, pack: &Pack, events: &mut Destination) -> u64 {
        let Some(link) = self.link() else {
            events.lose(Loss::NoAddress, pack.lines());
            return 0;
        };
        let (bytes, length) = pack.whole();
        if bytes.len() > length && link.segments.load(Ordering::Relaxed) {
            let parts = [IoSlice::new(bytes)];
            let message = MsgHdr::new().with_buffers(&parts).with_control(&pack.control);
            match self.attempt(events, || link.socket.sendmsg(&message, 0)) {
                Err(error) if is_of_segmentation(&error) => {
                    link.segments.store(false, Ordering::Relaxed);
                    tracing::debug!(to = self.name, %error, "the kernel does not cut buffers for this address; sending one datagram at a time");
                }
                result => {
                    let datagrams = pack.datagrams().count() as u64;
                    let is_sent = self.count(&result, datagrams, pack.lines(), events);
                    return if is_sent { u64::MAX } else { 0 };
                }
            }
        }
        let mut taken = 0;
        for (place, (datagram, lines)) in pack.datagrams().enumerate() {
            taken |= u64::from(self.send_by(&link, datagram, lines, events)) << place;
        }
        taken
    }

    /// Sends a datagram of passthrough lines, unless it would come back. Counts the lines.
    pub(super) fn send_one(&self, datagram: &[u8], lines: u64, passthrough: &mut Destination) {
        match self.link() {
            _ if self.is_loop() => passthrough.lose(Loss::Looped, lines),
            None => passthrough.lose(Loss::NoAddress, lines),
            Some(link) => _ = self.send_by(&link, datagram, lines, passthrough),
        }
    }

    /// Sends a datagram that is allowed to come back.
    pub(super) fn send_probe(&self, datagram: &[u8]) {
        if let Some(link) = self.link() {
            self.send_by(&link, datagram, 0, &mut Destination::default());
        }
    }

    fn send_by(&self, link: &Link, datagram: &[u8], lines: u64, to: &mut Destination) -> bool {
        let result = self.attempt(to, || link.socket.send(datagram));
        self.count(&result, 1, lines, to)
    }

    /// Sends, and retries if the error was caused by an earlier datagram.
    fn attempt(
        &self,
        to: &mut Destination,
        send: impl Fn() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut result = send();
        for _ in 1..TRIES_MAX {
            let Err(error) = &result else { break };
            match error.raw_os_error() {
                Some(libc::ECONNREFUSED) => {
                    to.refusals += 1;
                    self.report(error, "refuses datagrams (no process listens)");
                }
                // A router may report that an earlier datagram was too long.
                Some(libc::EINTR | libc::EMSGSIZE) => {}
                _ => break,
            }
            result = send();
        }
        result
    }

    /// Counts the lines in a send. Returns whether the kernel accepted them.
    fn count(
        &self,
        result: &io::Result<usize>,
        datagrams: u64,
        lines: u64,
        to: &mut Destination,
    ) -> bool {
        let Err(error) = result else {
            to.datagrams += datagrams;
            to.sent += lines;
            return true;
        };
        to.lose(if is_busy(error) { Loss::Busy } else { Loss::Unreachable }, lines);
        self.report(error, "cannot be sent to");
        false
    }

    fn report(&self, error: &io::Error, what: &str) {
        let mut state = lock(&self.state);
        let now = Some(Instant::now());
        // One oversized datagram says nothing about others.
        if error.raw_os_error() != Some(libc::EMSGSIZE) {
            state.failed_at = now;
            if !is_busy(error) {
                state.address_failed_at = now;
                self.failed.notify_one();
            }
        }
        if state.log_due.is_due() {
            tracing::error!(
                %error,
                "{} {what}: lines for it are dropped and counted; other destinations receive theirs; {}",
                self.name,
                Cause::RelayNodeDown.remedy()
            );
        }
    }

    /// Resolves the name, and connects to a different address if the current one is failing.
    pub(crate) async fn look_up(&self) {
        match tokio::net::lookup_host(&self.name).await {
            Ok(found) => {
                let before = self.address();
                let others = others(found.collect(), before, self.has_good_address());
                let connected = others.into_iter().find(|address| self.connect(*address));
                if let Some(address) = connected.filter(|address| before != Some(*address)) {
                    tracing::info!(to = self.name, %address, "sending to this address");
                }
            }
            Err(error) => self.has_no_address(&error),
        }
    }
}

/// Resolves an outlet's name again: at once if it has no address, then periodically and soon after a failed send. Never returns.
pub(crate) async fn follow_name(outlet: Arc<Outlet>) {
    if outlet.address().is_none() {
        outlet.look_up().await;
    }
    loop {
        tokio::time::sleep(LOOK_UP_PAUSE).await;
        let _ = tokio::time::timeout(LOOK_UP_INTERVAL, outlet.failed.notified()).await;
        outlet.look_up().await;
    }
}

/// Returns whether a datagram sent to this address arrives at one of these addresses on this host.
pub(crate) fn leads_to_any(listens: &[ListenAddress], address: SocketAddr) -> bool {
    let to = match address.ip().to_canonical() {
        // The kernel sends these to the host itself.
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let is_of_host = || to.is_loopback() || UdpSocket::bind((to, 0)).is_ok();
    listens.iter().any(|listens| match listens {
        ListenAddress::Udp(at) if at.port() == address.port() => match at.ip().to_canonical() {
            // It also receives IPv4.
            IpAddr::V6(ip) if ip.is_unspecified() => is_of_host(),
            IpAddr::V4(ip) if ip.is_unspecified() => to.is_ipv4() && is_of_host(),
            ip => ip == to,
        },
        ListenAddress::Udp(_) | ListenAddress::Unix(_) => false,
    })
}

fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < DOWN_FOR)
}

impl Link {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.connect(&address.into())?;
        Ok(Self { socket, address, segments: AtomicBool::new(true) })
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns whether the error hints at a problem with segmentation: an old kernel, a tunnel, datagrams beyond the path's MTU.
fn is_of_segmentation(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// Returns the addresses to connect to, in order, IPv4 first. If the address in use is failing, the one after it comes first, and
/// the same one last, in case it is this host's own address that has changed.
fn others(found: Vec<SocketAddr>, in_use: Option<SocketAddr>, works: bool) -> Vec<SocketAddr> {
    if works && in_use.is_some_and(|address| found.contains(&address)) {
        return Vec::new();
    }
    let mut others = found;
    others.sort_by_key(|address| (address.is_ipv6(), *address));
    others.dedup();
    let place = others.iter().position(|address| Some(*address) == in_use);
    others.rotate_left(place.map_or(0, |place| place + 1));
    others
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
