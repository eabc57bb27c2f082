//! [`Outlet`]: sends datagrams to a UDP address, and [`follow_name`]: the task that resolves its name. The socket is
//! connected, so that the kernel reports if no process is listening. A line counts as sent once the kernel has accepted it.

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

/// The requested size of a socket's send buffer, in bytes. The kernel grants at most `net.core.wmem_max`.
const SEND_BUFFER: usize = 4 << 20;
/// Maximum number of attempts to send a datagram if the send returns an error caused by an earlier datagram.
const TRIES_MAX: usize = 4;
/// The time for which an outlet counts as down after a failure. The kernel reports an unreachable port at most once a second.
const DOWN_FOR: Duration = Duration::from_secs(5);
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(30);
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Outlet {
    name: String,
    /// The addresses on which this relay listens, to which the outlet never sends.
    listens: Vec<ListenAddress>,
    state: Mutex<State>,
    /// Notified after a failure that a different address might fix, so that [`follow_name`] looks the name up.
    failed: Notify,
    is_loop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until an address is known.
    link: Option<Arc<Link>>,
    failed_at: Option<Instant>,
    /// The time of the last failure that a different address might fix.
    address_failed_at: Option<Instant>,
    own_address: Option<SocketAddr>,
    log_due: Throttle,
}

#[derive(Debug)]
struct Link {
    socket: Socket,
    address: SocketAddr,
    /// Whether the kernel can split a buffer into datagrams for this address.
    segments: AtomicBool,
}

impl Outlet {
    /// Creates an outlet for an address, or for a name that is looked up later. `listens` are this relay's own addresses.
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

    /// Returns whether the outlet has an address and no send has failed recently, not counting datagrams that were too long.
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
                "passthrough lines no longer loop back to this relay; sending them again"
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

    /// Connects to an address. Keeps the previous one and returns false if that fails or this relay itself listens there.
    fn connect(&self, address: SocketAddr) -> bool {
        let link = if leads_to_any(&self.listens, address) {
            lock(&self.state).own_address = Some(address);
            Err(io::Error::other(format!("this relay itself listens on {address}")))
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
            tracing::debug!(%error, to = self.name, %address, "found no other usable address; keeping the current one");
        } else {
            self.report(error, "found no usable address for");
        }
    }

    /// Sends a pack, and counts its lines in `events`. Returns the accepted datagrams as a bit mask, lowest bit first.
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
                    tracing::debug!(to = self.name, %error, "the kernel does not support UDP segmentation for this address; sending one datagram at a time");
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

    /// Sends passthrough lines, or drops them if they would come back to this relay. Counts them in `passthrough`.
    pub(super) fn send_one(&self, datagram: &[u8], lines: u64, passthrough: &mut Destination) {
        match self.link() {
            _ if self.is_loop() => passthrough.lose(Loss::Looped, lines),
            None => passthrough.lose(Loss::NoAddress, lines),
            Some(link) => _ = self.send_by(&link, datagram, lines, passthrough),
        }
    }

    /// Sends a datagram of a loop probe, even if a loop has already been detected.
    pub(super) fn send_probe(&self, datagram: &[u8]) {
        if let Some(link) = self.link() {
            self.send_by(&link, datagram, 0, &mut Destination::default());
        }
    }

    fn send_by(&self, link: &Link, datagram: &[u8], lines: u64, to: &mut Destination) -> bool {
        let result = self.attempt(to, || link.socket.send(datagram));
        self.count(&result, 1, lines, to)
    }

    /// Calls `send`, and calls it again if the error may have been caused by an earlier datagram.
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
                    self.report(error, "no process is listening at");
                }
                // A router may report that an earlier datagram was too long.
                Some(libc::EINTR | libc::EMSGSIZE) => {}
                _ => break,
            }
            result = send();
        }
        result
    }

    /// Counts the lines of a send as sent or dropped, depending on its result. Returns whether the kernel accepted them.
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
        self.report(error, "cannot send to");
        false
    }

    fn report(&self, error: &io::Error, problem: &str) {
        let mut state = lock(&self.state);
        let now = Some(Instant::now());
        // An oversized datagram does not mean that the address is failing.
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
                "{problem} {}; lines for it are dropped and counted, and other destinations are not affected; {}",
                self.name,
                Cause::RelayNodeDown.remedy()
            );
        }
    }

    /// Resolves the name. Connects to a different address if the current one is failing or no longer belongs to the name.
    pub(crate) async fn look_up(&self) {
        match tokio::net::lookup_host(&self.name).await {
            Ok(found) => {
                let before = self.address();
                let candidates = candidates(found.collect(), before, self.has_good_address());
                let connected = candidates.into_iter().find(|address| self.connect(*address));
                if let Some(address) = connected.filter(|address| before != Some(*address)) {
                    tracing::info!(to = self.name, %address, "sending to this address");
                }
            }
            Err(error) => self.has_no_address(&error),
        }
    }
}

/// Keeps an outlet's address up to date by resolving its name periodically and soon after a failed send. Never returns.
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

/// Returns whether a datagram sent to `address` would arrive at one of the addresses on which this process listens.
pub(crate) fn leads_to_any(listens: &[ListenAddress], address: SocketAddr) -> bool {
    let to = match address.ip().to_canonical() {
        // The kernel delivers datagrams for an unspecified address to this host.
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let is_of_host = || to.is_loopback() || UdpSocket::bind((to, 0)).is_ok();
    listens.iter().any(|listens| match listens {
        ListenAddress::Udp(at) if at.port() == address.port() => match at.ip().to_canonical() {
            // A socket bound to `::` also receives IPv4 datagrams.
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

/// Returns whether the error may be due to UDP segmentation, e.g. in an old kernel, in a tunnel, or above the path MTU.
fn is_of_segmentation(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// Returns the addresses to try in order, IPv4 first; none if the address in use works and still belongs to the name. If
/// that address is failing, the list starts after it and ends with it: reconnecting helps if this host's address changed.
fn candidates(found: Vec<SocketAddr>, in_use: Option<SocketAddr>, works: bool) -> Vec<SocketAddr> {
    if works && in_use.is_some_and(|address| found.contains(&address)) {
        return Vec::new();
    }
    let mut candidates = found;
    candidates.sort_by_key(|address| (address.is_ipv6(), *address));
    candidates.dedup();
    let place = candidates.iter().position(|address| Some(*address) == in_use);
    candidates.rotate_left(place.map_or(0, |place| place + 1));
    candidates
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
