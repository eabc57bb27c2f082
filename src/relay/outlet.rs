//! [`Outlet`]: a UDP address that datagrams are sent to, by name.
//!
//! Its socket is connected, so that the kernel reports a port at which nobody listens: when the next datagram is sent, of one
//! that was sent before. It never blocks: what the kernel does not take at once is dropped and counted, so an outlet in
//! trouble costs the others nothing. A line that the kernel took counts as sent, whoever listens: UDP promises no more.

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

/// Linux' number of the option by which it cuts one buffer into datagrams.
const UDP_SEGMENT: i32 = 103;
/// What the kernel may hold of what was sent; it gives what `net.core.wmem_max` allows.
const SEND_BUFFER: usize = 4 << 20;
/// How often a send is tried that is answered by the error of one before.
const TRIES_MAX: usize = 4;
/// How long after its last failure an outlet counts as in trouble. Refusals come once a second at most.
const TROUBLE_LASTS: Duration = Duration::from_secs(5);
/// How often the trouble is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Outlet {
    name: String,
    /// `None` while no address is known.
    link: RwLock<Option<Arc<Link>>>,
    trouble: Mutex<Trouble>,
    /// Where this relay listens: it never sends there.
    listens: Vec<ListenAddress>,
    /// Notified when another address may help, so that the name is looked up again.
    pub(super) failed: Notify,
    datagrams: AtomicU64,
    refusals: AtomicU64,
    /// Whether what is sent there comes back to this relay.
    is_loop: AtomicBool,
}

/// A connected socket.
#[derive(Debug)]
struct Link {
    socket: Socket,
    address: SocketAddr,
    /// Whether the kernel cuts buffers on the way there.
    segments: AtomicBool,
}

#[derive(Debug)]
struct Trouble {
    last: Option<Instant>,
    /// That of the address in use, or that there is none: another one may help, and the name is looked up soon.
    of_address: Option<Instant>,
    /// An address of the name at which this relay itself listens.
    own: Option<SocketAddr>,
    logged: Throttle,
}

impl Outlet {
    /// An outlet to this `HOST:PORT`. An address can be sent to at once, a name when it was looked up.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::of_relay(name, &[])
    }

    /// The same of a relay that listens at these addresses.
    #[must_use]
    pub fn of_relay(name: &str, listens: &[ListenAddress]) -> Self {
        let outlet = Self {
            name: name.to_owned(),
            link: RwLock::new(None),
            listens: listens.to_vec(),
            trouble: Mutex::new(Trouble {
                last: None,
                of_address: None,
                own: None,
                logged: Throttle::new(LOG_INTERVAL),
            }),
            failed: Notify::new(),
            datagrams: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            is_loop: AtomicBool::new(false),
        };
        if let Ok(address) = name.parse() {
            outlet.lead_to(address);
        }
        outlet
    }

    /// As it is configured.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The datagrams that the kernel took.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// How often the kernel reported that nobody listens there.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Whether all that was sent lately got on its way, as far as is known; but for what is too long for it, which whoever sends
    /// is to blame for.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.address().is_some() && !is_lately(self.trouble().last)
    }

    /// Whether the address in use is none to leave for another one of the name.
    pub(super) fn has_good_address(&self) -> bool {
        self.address().is_some() && !is_lately(self.trouble().of_address)
    }

    /// Returns whether what is sent there comes back to this relay, so that no more is sent.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.is_loop.load(Ordering::Relaxed)
    }

    /// Sets whether what is sent there comes back to this relay, and logs it.
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

    /// Where it sends to.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.link().map(|link| link.address)
    }

    /// Returns an address of the name at which this relay itself listens, if there is no other one to send to.
    #[must_use]
    pub fn leads_back(&self) -> Option<SocketAddr> {
        self.trouble().own.filter(|_| self.address().is_none())
    }

    /// Sends to this address from now on, by a new socket. Answers whether one can be had; otherwise the address that was known
    /// stays. One at which this relay itself listens is never had.
    pub(super) fn lead_to(&self, address: SocketAddr) -> bool {
        let link = if leads_to_any(&self.listens, address) {
            self.trouble().own = Some(address);
            Err(io::Error::other(format!("{address} is this relay itself")))
        } else {
            Link::open(address)
        };
        match link {
            Ok(link) => {
                *self.write() = Some(Arc::new(link));
                self.trouble().of_address = None;
                true
            }
            Err(error) => {
                self.has_no_address(&error);
                false
            }
        }
    }

    /// The name leads nowhere, or nowhere else. An address that was known stays.
    pub(super) fn has_no_address(&self, error: &io::Error) {
        match self.address() {
            None => self.report(error, "has no address", true),
            Some(address) => {
                tracing::debug!(%error, to = self.name, %address, "no other address can be had");
            }
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        link.clone()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Option<Arc<Link>>> {
        self.link.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the datagrams of a pack. Answers what became of the lines, and marks the datagrams that were `taken`.
    pub fn send(&self, pack: &Pack, taken: &mut [bool]) -> Place {
        let mut outcome = Place::default();
        let Some(link) = self.link() else {
            outcome.dropped[Loss::NoAddress as usize] = pack.lines();
            return outcome;
        };
        let (bytes, length) = pack.whole();
        if bytes.len() > length && link.segments.load(Ordering::Relaxed) {
            let sent = self.attempt(|| link.send_cut(bytes, length));
            match sent {
                Ok(()) => {
                    self.datagrams.fetch_add(taken.len() as u64, Ordering::Relaxed);
                    taken.fill(true);
                    outcome.sent = pack.lines();
                    return outcome;
                }
                Err(error) if is_of_the_option(&error) => {
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

    /// Tries again what met the error of a datagram before it.
    fn attempt(&self, send: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut result = send();
        for _ in 1..TRIES_MAX {
            match &result {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    self.refusals.fetch_add(1, Ordering::Relaxed);
                    self.report(error, "refuses: nobody listens there", true);
                    result = send();
                }
                // Too long was perhaps one before it, of which somebody on the way says so.
                Err(error)
                    if error.kind() == ErrorKind::Interrupted
                        || error.raw_os_error() == Some(libc::EMSGSIZE) =>
                {
                    result = send();
                }
                _ => break,
            }
        }
        result
    }

    fn fails(&self, error: &io::Error) -> Loss {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.report(error, "cannot be sent to", false);
                Loss::Busy
            }
            // Of this datagram.
            Some(libc::EMSGSIZE) => {
                self.log(&mut self.trouble(), error, "cannot be sent to");
                Loss::Unreachable
            }
            _ => {
                self.report(error, "cannot be sent to", true);
                Loss::Unreachable
            }
        }
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
        if trouble.logged.is_due() {
            tracing::error!(
                %error,
                "{} {what}: lines for it may be lost, and are counted; others get theirs; {}",
                self.name,
                Cause::RelayNodeDown.remedy()
            );
        }
    }
}

/// Returns whether what is sent to this address arrives at one of these, which are of this host.
#[must_use]
pub fn leads_to_any(listens: &[ListenAddress], address: SocketAddr) -> bool {
    let to = match address.ip().to_canonical() {
        // The kernel takes them for the host itself.
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

fn is_lately(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() < TROUBLE_LASTS)
}

impl Link {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        let any: SocketAddr = if address.is_ipv4() {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        };
        socket.set_nonblocking(true)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(&any.into())?;
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

/// What a `cmsghdr` has before its data: its length, a level and a type. Both are aligned as its length is.
const HEAD: usize = size_of::<usize>() + 2 * size_of::<i32>();
/// With the data, two bytes.
const CONTROL: usize = HEAD + size_of::<usize>();

/// The control message by which the kernel cuts a buffer.
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

/// Whether this is said of the option, and not of where it goes: an old kernel, a tunnel, datagrams beyond the way's MTU.
fn is_of_the_option(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
