//! [`Outlet`]: a UDP address that datagrams are sent to, and [`follow_name`]: the task that looks its name up.
//!
//! The socket is connected, so that the kernel reports a port at which no process listens: when the next datagram is sent, for one
//! that was sent before. It never blocks: a datagram that the kernel does not take at once is dropped and counted, so an outlet in
//! trouble does not delay the others. A line that the kernel took counts as sent, whether or not a process listens: UDP promises
//! no more.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use socket2::{Domain, MsgHdr, Protocol, Socket, Type};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Loss, Pack, Place};
use crate::diagnosis::Cause;
use crate::ingest::ListenAddress;
use crate::node::Throttle;

/// Linux' number of the option by which the kernel cuts one buffer into datagrams.
const UDP_SEGMENT: i32 = 103;
/// The send buffer of a socket; the kernel gives at most `net.core.wmem_max`.
const SEND_BUFFER: usize = 4 << 20;
/// The most attempts of a send that returns the error of an earlier one.
const TRIES_MAX: usize = 4;
/// How long after its last failure an outlet counts as down. The kernel reports refusals once a second at most.
const TROUBLE_LASTS: Duration = Duration::from_secs(5);
/// The interval of log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of look-ups of a name.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two look-ups.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// A UDP address that datagrams are sent to.
#[derive(Debug)]
pub struct Outlet {
    name: String,
    /// `None` while no address is known.
    link: RwLock<Option<Arc<Link>>>,
    trouble: Mutex<Trouble>,
    /// The addresses at which this relay listens. It never sends to them.
    listens: Vec<ListenAddress>,
    /// Notified when another address may help, which starts a look-up of the name.
    failed: Notify,
    datagrams: AtomicU64,
    refusals: AtomicU64,
    /// Whether datagrams come back to this relay.
    is_loop: AtomicBool,
}

/// A connected socket.
#[derive(Debug)]
struct Link {
    socket: Socket,
    address: SocketAddr,
    /// Whether the kernel cuts buffers on the way to this address.
    segments: AtomicBool,
}

#[derive(Debug)]
struct Trouble {
    last: Option<Instant>,
    /// The last failure for which another address may help.
    of_address: Option<Instant>,
    /// An address of the name at which this relay itself listens.
    own: Option<SocketAddr>,
    throttle: Throttle,
}

impl Outlet {
    /// Returns an outlet to this `HOST:PORT` for a relay that listens at these addresses. An address can be sent to at once, a
    /// name after its first look-up.
    #[must_use]
    pub fn new(name: &str, listens: &[ListenAddress]) -> Self {
        let throttle = Throttle::new(LOG_INTERVAL);
        let outlet = Self {
            name: name.to_owned(),
            link: RwLock::new(None),
            listens: listens.to_vec(),
            trouble: Mutex::new(Trouble { last: None, of_address: None, own: None, throttle }),
            failed: Notify::new(),
            datagrams: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            is_loop: AtomicBool::new(false),
        };
        if let Ok(address) = name.parse() {
            outlet.connect(address);
        }
        outlet
    }

    /// Returns the configured `HOST:PORT`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of datagrams that the kernel took.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Returns the number of reports of the kernel that no process listens at the address.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Returns whether there is an address and no send failed recently, except for a datagram that was too long.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.address().is_some() && !is_recent(self.trouble().last)
    }

    fn has_good_address(&self) -> bool {
        self.address().is_some() && !is_recent(self.trouble().of_address)
    }

    /// Returns whether datagrams come back to this relay, so that no more are sent.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.is_loop.load(Ordering::Relaxed)
    }

    pub(super) fn set_loop(&self, is_loop: bool) {
        let was_loop = self.is_loop.swap(is_loop, Ordering::Relaxed);
        if is_loop && !was_loop {
            tracing::error!(to = self.name, "{}", Cause::RelayRestLoop);
        } else if was_loop && !is_loop {
            tracing::info!(
                to = self.name,
                "lines of the rest do not come back any more, and are sent again"
            );
        }
    }

    /// Returns the address in use.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.link().map(|link| link.address)
    }

    /// Returns an address of the name at which this relay itself listens, if the name has no other one.
    #[must_use]
    pub fn leads_back(&self) -> Option<SocketAddr> {
        self.trouble().own.filter(|_| self.address().is_none())
    }

    /// Connects a new socket to this address. If that fails, or this relay listens there, returns false and keeps the
    /// former address.
    fn connect(&self, address: SocketAddr) -> bool {
        let link = if leads_to_any(&self.listens, address) {
            self.trouble().own = Some(address);
            Err(io::Error::other(format!("{address} is this relay itself")))
        } else {
            Link::open(address)
        };
        match link {
            Ok(link) => {
                *self.link.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(link));
                self.trouble().of_address = None;
                true
            }
            Err(error) => {
                self.has_no_address(&error);
                false
            }
        }
    }

    /// Reports that the name has no address, or no other one. The former address stays.
    fn has_no_address(&self, error: &io::Error) {
        match self.address() {
            None => self.report(error, "has no address", true),
            Some(address) => {
                tracing::debug!(%error, to = self.name, %address, "no other address can be had");
            }
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.link.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the datagrams of a pack and marks the datagrams that the kernel took. Returns how many lines were sent and dropped.
    pub fn send(&self, pack: &Pack, taken: &mut [bool]) -> Place {
        let mut outcome = Place::default();
        let Some(link) = self.link() else {
            outcome.dropped[Loss::NoAddress as usize] = pack.lines();
            return outcome;
        };
        let (bytes, length) = pack.whole();
        if bytes.len() > length && link.segments.load(Ordering::Relaxed) {
            match self.attempt(|| link.send_cut(bytes, length)) {
                Ok(()) => {
                    self.datagrams.fetch_add(taken.len() as u64, Ordering::Relaxed);
                    taken.fill(true);
                    outcome.sent = pack.lines();
                    return outcome;
                }
                Err(error) if is_of_segmentation(&error) => {
                    link.segments.store(false, Ordering::Relaxed);
                    tracing::debug!(to = self.name, %error, "the kernel cuts no buffers on this way; sending one by one");
                }
                Err(error) => {
                    outcome.dropped[self.fails(&error) as usize] = pack.lines();
                    return outcome;
                }
            }
        }
        for ((datagram, lines), taken) in pack.datagrams().zip(taken) {
            match self.send_by(&link, datagram) {
                Ok(()) => {
                    *taken = true;
                    outcome.sent += lines;
                }
                Err(loss) => outcome.dropped[loss as usize] += lines,
            }
        }
        outcome
    }

    /// Sends one datagram as it is, unless it would come back.
    pub fn send_one(&self, datagram: &[u8]) -> Result<(), Loss> {
        if self.is_loop() {
            return Err(Loss::Looped);
        }
        let link = self.link().ok_or(Loss::NoAddress)?;
        self.send_by(&link, datagram)
    }

    /// Sends a datagram that may come back.
    pub(super) fn send_probe(&self, datagram: &[u8]) {
        if let Some(link) = self.link() {
            let _ = self.send_by(&link, datagram);
        }
    }

    fn send_by(&self, link: &Link, datagram: &[u8]) -> Result<(), Loss> {
        let sent = self.attempt(|| link.socket.send(datagram).map(drop));
        sent.map_err(|error| self.fails(&error))?;
        self.datagrams.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sends, and tries again if the error is that of an earlier datagram.
    fn attempt(&self, send: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut result = send();
        for _ in 1..TRIES_MAX {
            let Err(error) = &result else { break };
            match error.raw_os_error() {
                Some(libc::ECONNREFUSED) => {
                    self.refusals.fetch_add(1, Ordering::Relaxed);
                    self.report(error, "refuses: nobody listens there", true);
                }
                // A router may report an earlier datagram as too long.
                Some(libc::EINTR | libc::EMSGSIZE) => {}
                _ => break,
            }
            result = send();
        }
        result
    }

    fn fails(&self, error: &io::Error) -> Loss {
        const WHAT: &str = "cannot be sent to";
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.report(error, WHAT, false);
                return Loss::Busy;
            }
            // This datagram is too long; others are sent.
            Some(libc::EMSGSIZE) => self.log(&mut self.trouble(), error, WHAT),
            _ => self.report(error, WHAT, true),
        }
        Loss::Unreachable
    }

    fn report(&self, error: &io::Error, what: &str, is_of_address: bool) {
        let mut trouble = self.trouble();
        let now = Instant::now();
        trouble.last = Some(now);
        if is_of_address {
            trouble.of_address = Some(now);
            self.failed.notify_one();
        }
        self.log(&mut trouble, error, what);
    }

    fn log(&self, trouble: &mut Trouble, error: &io::Error, what: &str) {
        if trouble.throttle.is_due() {
            tracing::error!(
                %error,
                "{} {what}: lines for it may be lost, and are counted; others get theirs; {}",
                self.name,
                Cause::RelayNodeDown.remedy()
            );
        }
    }
}

/// Returns whether a datagram to this address arrives at one of these addresses of this host.
#[must_use]
pub fn leads_to_any(listens: &[ListenAddress], address: SocketAddr) -> bool {
    let to = match address.ip().to_canonical() {
        // The kernel sends to the host itself.
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let is_of_host = || to.is_loopback() || UdpSocket::bind((to, 0)).is_ok();
    listens.iter().any(|listens| match listens {
        ListenAddress::Udp(at) if at.port() == address.port() => match at.ip().to_canonical() {
            // It receives IPv4 as well.
            IpAddr::V6(ip) if ip.is_unspecified() => is_of_host(),
            IpAddr::V4(ip) if ip.is_unspecified() => to.is_ipv4() && is_of_host(),
            ip => ip == to,
        },
        ListenAddress::Udp(_) | ListenAddress::Unix(_) => false,
    })
}

fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < TROUBLE_LASTS)
}

impl Link {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.connect(&address.into())?;
        Ok(Self { socket, address, segments: AtomicBool::new(true) })
    }

    /// Sends a buffer that the kernel cuts into datagrams of this length.
    fn send_cut(&self, bytes: &[u8], length: usize) -> io::Result<()> {
        let length = u16::try_from(length).map_err(|_| ErrorKind::InvalidInput)?;
        let control = control(length);
        let parts = [IoSlice::new(bytes)];
        let message = MsgHdr::new().with_buffers(&parts).with_control(&control);
        self.socket.sendmsg(&message, 0).map(drop)
    }
}

/// The size of a `cmsghdr` without its data: its length, a level and a type. Both are aligned as the length is.
const HEAD: usize = size_of::<usize>() + 2 * size_of::<i32>();
/// The size with the data, two bytes.
const CONTROL: usize = HEAD + size_of::<usize>();

/// Returns the control message by which the kernel cuts a buffer.
fn control(length: u16) -> [u8; CONTROL] {
    let mut control = [0; CONTROL];
    let with_data = HEAD + size_of::<u16>();
    let parts: [&[u8]; 4] = [
        &with_data.to_ne_bytes(),
        &libc::IPPROTO_UDP.to_ne_bytes(),
        &UDP_SEGMENT.to_ne_bytes(),
        &length.to_ne_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    control.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    control
}

/// Returns whether sending without segmentation may work: an old kernel, a tunnel, datagrams beyond the path's MTU.
fn is_of_segmentation(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// Looks the name of an outlet up now, at an interval, and soon after a send failed. Never ends; `first` is called
/// after the first answer.
pub async fn follow_name(outlet: Arc<Outlet>, first: impl FnOnce()) {
    let mut first = Some(first);
    loop {
        match tokio::net::lookup_host(outlet.name()).await {
            Ok(found) => {
                let before = outlet.address();
                let others = others(found.collect(), before, outlet.has_good_address());
                let connected = others.into_iter().find(|address| outlet.connect(*address));
                if let Some(address) = connected.filter(|address| before != Some(*address)) {
                    tracing::info!(to = outlet.name(), %address, "sending to this address");
                }
            }
            Err(error) => outlet.has_no_address(&error),
        }
        if let Some(first) = first.take() {
            first();
        }
        tokio::time::sleep(LOOK_PAUSE).await;
        let _ = tokio::time::timeout(LOOK_INTERVAL, outlet.failed.notified()).await;
    }
}

/// Returns the addresses to connect to, in order. IPv4 comes before IPv6. Where the address in use does not
/// work, the next one comes first, and the same one last, for this host's own address may have changed.
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
