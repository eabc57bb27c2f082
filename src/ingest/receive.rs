//! [`Receiver`]: reads many datagrams with one system call, after a brief wait if they arrive in quick succession. The kernel
//! may join datagrams of equal length from the same sender into one message (`UDP_GRO`), as a relay sends them. This is the
//! only file with unsafe code, because no crate offers a batched receive that sets up its headers correctly every time.

#![expect(
    unsafe_code,
    reason = "recvmmsg, SO_MEMINFO and UDP_GRO have no suitable safe wrapper, and taking ownership of a descriptor passed by systemd relies on \
              LISTEN_FDS"
)]

use std::io;
use std::io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockAddrStorage, Socket};
use tokio::time::Instant;

use super::Received;
use super::address::{ListenAddress, SocketFile};
use crate::diagnosis::Cause;
use crate::node::Throttle;

/// Maximum number of messages per system call. More would need more buffers, which cost more than the calls if they are no
/// longer cached: other processes use the CPU between two waits.
const BATCH: usize = 32;
/// The maximum of [`Receiver::many`].
const MANY: usize = 512;
/// The memory that a datagram of an Ethernet frame takes in the kernel, in bytes.
const FRAME_MEMORY: usize = 2304;
/// Maximum length of a message of several datagrams, in bytes.
const JOINED_MAX: usize = 65_535;
/// Size of the space for the control messages of a message, in words. Besides the length of a datagram, a socket passed by the
/// service manager may return a timestamp.
const CONTROL_WORDS: usize = 16;
/// The gap between datagram buffers, in bytes. Buffers a power of two apart would compete for the same cache sets.
const STAGGER: usize = 33 * 64;
#[expect(clippy::cast_possible_truncation, reason = "128")]
const NAME_LEN: libc::socklen_t = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
#[expect(clippy::cast_possible_truncation, reason = "4")]
const FLAG_LEN: libc::socklen_t = size_of::<libc::c_int>() as libc::socklen_t;
/// Linux's socket option for reading the memory counters of a socket.
const SO_MEMINFO: libc::c_int = 55;
/// Index of the drop counter among the counters of [`SO_MEMINFO`].
const SK_MEMINFO_DROPS: usize = 8;
/// Number of counters that [`SO_MEMINFO`] returns.
const SK_MEMINFO_VARS: usize = 9;
/// The shortest and the longest time for which datagrams wait in the kernel so that several are read together.
const RESTS: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(100)];
/// The maximum age of the host's number of wrong checksums. It takes 0.15 ms to read, longer than the socket's drops.
const WRONG_INTERVAL: Duration = Duration::from_secs(10);
/// The first and the longest pause before a failed socket is read again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A socket and the buffers for its datagrams.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    /// Maximum number of messages per system call.
    batch: usize,
    /// The number of messages between two waits after which the next wait is as short as possible: at most [`MANY`], and
    /// fewer if the buffer of the socket is small.
    many: usize,
    /// The number of bytes above which a read counts as full, because joined datagrams fill the buffer in fewer messages.
    bytes_max: usize,
    room: Vec<u8>,
    datagram_max: usize,
    /// The space for each message, in bytes.
    message_max: usize,
    /// The messages of the last read.
    messages: Vec<Message>,
    /// The numbers of messages, and of datagrams in them, that were read since the kernel's drops were last counted.
    read: [u64; 2],
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<[u64; CONTROL_WORDS]>,
    /// The numbers of messages and bytes in the full reads since the last read that was not full.
    gathered: [usize; 2],
    /// How long to wait after a read, and the longest such wait.
    rest: Duration,
    rest_max: Duration,
    /// When a read last returned datagrams.
    arrived: Instant,
    /// The kernel's drop count when last read; `None` if unavailable, or if another receiver of the socket counts the drops.
    pub(super) drops_seen: Option<u32>,
    /// How many datagrams with wrong checksums the host had received, if known, and when this was read.
    wrong_seen: (Option<u64>, Instant),
    /// After a failed read: when to read the socket again, and the length of the pause before that.
    retry: Option<(Instant, Duration)>,
    logged: Throttle,
    /// Whether the socket outlives the process, so that the next process can read the remaining datagrams.
    pub(crate) outlives: bool,
    is_unix: bool,
    /// The file of a Unix socket bound by this process. It is removed when the last receiver of the socket stops.
    pub(super) file: Option<Arc<SocketFile>>,
}

/// A message: one datagram, or several that the kernel has joined.
#[derive(Debug)]
struct Message {
    length: usize,
    /// The length of each datagram except the last, which may be shorter.
    datagram: usize,
    is_truncated: bool,
    has_source: bool,
}

impl Receiver {
    /// Creates a receiver for this socket, which should have a read timeout. Truncates datagrams to `datagram_max` bytes.
    #[must_use]
    pub fn new(socket: Socket, datagram_max: usize) -> Self {
        let is_unix = socket.domain().is_ok_and(|domain| domain == Domain::UNIX);
        // There is no wait on a Unix socket: it has room for only a few datagrams, and its senders would block.
        let buffer = socket.recv_buffer_size().ok().filter(|_| !is_unix).unwrap_or_default();
        // After about a quarter of the buffer or less, the wait is short, so that a small buffer is read again before it is full.
        let (many, bytes_max) = match buffer / 4 {
            _ if is_unix => (MANY, usize::MAX),
            quarter => ((quarter / FRAME_MEMORY).clamp(8, MANY), quarter),
        };
        let batch = many.min(BATCH);
        // Datagrams that take 250 megabytes per second, i.e. a byte in 4 ns, do not fill the buffer during a wait.
        let filled = Duration::from_nanos(4 * buffer as u64);
        let rest_max = RESTS[1].min(filled);
        let joins = !is_unix && joins_datagrams(&socket);
        let message_max = if joins { datagram_max.max(JOINED_MAX) } else { datagram_max };
        Self {
            batch,
            many,
            bytes_max,
            room: vec![0; batch * (message_max + STAGGER)],
            datagram_max,
            message_max,
            messages: Vec::new(),
            read: [0; 2],
            // SAFETY: sockaddr_storage is a C struct of integers, for which all zeroes is valid: an address with no family.
            names: vec![unsafe { std::mem::zeroed() }; batch],
            controls: vec![[0; CONTROL_WORDS]; batch],
            gathered: [0; 2],
            rest: RESTS[0].min(rest_max),
            rest_max,
            arrived: Instant::now(),
            // This receiver counts only later drops.
            drops_seen: kernel_drops(&socket),
            wrong_seen: (wrong_checksums(), Instant::now()),
            retry: None,
            logged: Throttle::default(),
            outlives: false,
            is_unix,
            file: None,
            socket,
        }
    }

    /// Limits the sleep of [`gather`](Self::gather).
    #[must_use]
    pub(crate) fn resting_at_most(mut self, rest_max: Duration) -> Self {
        self.rest_max = self.rest_max.min(rest_max);
        self.rest = self.rest.min(self.rest_max);
        self
    }

    /// Limits the number of messages after which the sleep of [`gather`](Self::gather) is as short as possible.
    #[must_use]
    pub(crate) fn gathering_at_most(mut self, many: usize) -> Self {
        self.many = self.many.min(many);
        self
    }

    /// Makes this receiver read only one datagram per system call.
    #[must_use]
    pub const fn without_batches(mut self) -> Self {
        self.batch = 1;
        self
    }

    pub(crate) const fn makes_senders_wait(&self) -> bool {
        self.is_unix
    }

    /// Makes a Unix socket reject further datagrams, and removes its file. Datagrams that have arrived can still be read.
    pub(crate) fn refuse_senders(&mut self) {
        self.file = None;
        if self.is_unix {
            // This cannot fail while the socket is open.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
    }

    pub(crate) fn address(&self) -> Option<ListenAddress> {
        ListenAddress::of(&self.socket)
    }

    /// Waits for datagrams, at most for the socket's read timeout, and reads them. Returns false if none arrived.
    pub fn wait(&mut self) -> io::Result<bool> {
        self.receive(libc::MSG_WAITFORONE)
    }

    /// Like [`Self::wait`] or, if datagrams were read just now, sleeps instead of waiting, so that the next read returns several
    /// at once.
    pub fn gather(&mut self) -> io::Result<bool> {
        self.read_after(self.next_rest())
    }

    /// Reads datagrams after a sleep of this length, without waiting, or waits for them if it is None.
    pub(crate) fn read_after(&mut self, rest: Option<Duration>) -> io::Result<bool> {
        let Some(rest) = rest else {
            return self.wait();
        };
        std::thread::sleep(rest);
        self.poll()
    }

    /// Returns how long to sleep before the next read: not at all after a full read, when more datagrams are probably waiting.
    /// Returns None if the next read should wait for a datagram.
    pub(crate) fn next_rest(&self) -> Option<Duration> {
        if self.is_full() {
            return Some(Duration::ZERO);
        }
        let may_rest = self.batch > 1 && self.arrived.elapsed() < self.rest;
        may_rest.then_some(self.rest)
    }

    /// Updates the length of the next wait after a read.
    fn update_rest(&mut self) {
        if !self.messages.is_empty() {
            self.arrived = Instant::now();
        }
        self.gathered[0] += self.messages.len();
        self.gathered[1] += self.bytes();
        if self.is_full() || self.gathered[0] == 0 {
            return;
        }
        let [messages, bytes] = std::mem::take(&mut self.gathered);
        if messages >= self.many || bytes > self.bytes_max {
            self.rest = self.rest_max.min(RESTS[0]);
        } else if messages < self.many / 2 {
            self.rest = self.rest_max.min(2 * self.rest);
        }
    }

    /// Returns whether the last read was full, so that more datagrams are probably waiting.
    pub(crate) fn is_full(&self) -> bool {
        self.messages.len() >= self.batch || self.bytes() > self.bytes_max
    }

    fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.length).sum()
    }

    /// Reads datagrams without waiting. Returns false if there are none.
    pub fn poll(&mut self) -> io::Result<bool> {
        self.receive(libc::MSG_DONTWAIT)
    }

    /// Like [`wait`](Self::wait), but with this limit instead of the socket's read timeout, which comes on top if another thread
    /// reads the datagrams first.
    pub(crate) fn wait_within(&mut self, limit: Duration) -> io::Result<bool> {
        // A read that does not wait never reports that the socket was shut down, although it is readable.
        if self.events(libc::POLLIN, limit) == 0 { Ok(false) } else { self.wait() }
    }

    /// Waits for these events of `poll` or an error on the socket, at most for this long. Returns which have occurred.
    fn events(&self, events: libc::c_short, limit: Duration) -> libc::c_short {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
        let millis = limit.as_millis().try_into().unwrap_or(libc::c_int::MAX);
        // SAFETY: the call is passed exactly one pollfd, which outlives it. If it fails, no event has occurred.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        poll.revents
    }

    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        self.retry.is_some_and(|(at, _)| now < at)
    }

    /// Processes the result of a read. Returns whether datagrams arrived, or `None` if the read failed and will be retried.
    pub(crate) fn note(
        &mut self,
        read: io::Result<bool>,
        failing: &AtomicUsize,
        now: Instant,
    ) -> Option<bool> {
        let error = match read {
            Ok(arrived) => {
                if self.retry.take().is_some() {
                    failing.fetch_sub(1, Ordering::Relaxed);
                    let address = self.address().map(tracing::field::display);
                    tracing::info!(address, "the socket is readable again");
                }
                return Some(arrived);
            }
            Err(error) => error,
        };
        let (first, longest) = PAUSES;
        let pause = self.retry.map_or(first, |(_, pause)| longest.min(pause * 2));
        if self.retry.is_none() {
            failing.fetch_add(1, Ordering::Relaxed);
        }
        self.retry = Some((now + pause, pause));
        if self.logged.is_due() {
            let address = self.address().map(tracing::field::display);
            tracing::error!(address, %error, "{}", Cause::SocketFails);
        }
        None
    }

    fn receive(&mut self, flags: libc::c_int) -> io::Result<bool> {
        self.messages.clear();
        match self.receive_batch(flags).map_err(|error| (error.kind(), error)) {
            // EAGAIN: the timeout expired, or there is no datagram. ECONNREFUSED: an ICMP error due to an earlier send.
            Ok(()) | Err((WouldBlock | TimedOut | Interrupted | ConnectionRefused, _)) => {}
            Err((_, error)) => return Err(error),
        }
        if flags & libc::MSG_DONTWAIT == 0 && self.is_shut_down() {
            self.messages.clear();
            let message = "the socket was shut down";
            return Err(io::Error::new(io::ErrorKind::NotConnected, message));
        }
        self.update_rest();
        Ok(!self.messages.is_empty())
    }

    /// Returns whether the socket has been shut down, after which a read that waits returns an empty datagram without a sender.
    /// On a Unix socket, a real empty datagram at that moment is mistaken for it.
    fn is_shut_down(&self) -> bool {
        let is_marker = |message: &Message| message.length == 0 && !message.has_source;
        !self.messages.is_empty()
            && self.messages.iter().all(is_marker)
            && self.events(libc::POLLRDHUP, Duration::ZERO) & libc::POLLRDHUP != 0
    }

    fn receive_batch(&mut self, flags: libc::c_int) -> io::Result<()> {
        // SAFETY: both are C structs of integers and pointers, for which all zeroes is a valid value.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        let rooms = (self.room).chunks_exact_mut(self.message_max + STAGGER);
        let rooms = rooms.zip(&mut self.names).zip(&mut self.controls);
        for (((room, name), control), (part, header)) in
            rooms.zip(parts.iter_mut().zip(&mut headers))
        {
            part.iov_base = room.as_mut_ptr().cast();
            part.iov_len = self.message_max;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            // The type of the length depends on the C library.
            header.msg_hdr.msg_controllen = size_of_val(control) as _;
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = NAME_LEN;
        }
        // SAFETY: there are at least `batch` headers. Each points to one part, and each part to `message_max` bytes of
        // `self.room` that no other part uses. Each header also points to a name of NAME_LEN bytes in `self.names` and to an
        // element of `self.controls` that no other header uses. All of them outlive the call. The timeout may be null.
        let batch = libc::c_uint::try_from(self.batch).map_err(io::Error::other)?;
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                batch,
                // The type of the flags is signed or unsigned, depending on the C library.
                flags as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for header in &headers[..count] {
            let length = (header.msg_len as usize).min(self.message_max);
            // SAFETY: the kernel has set the length of the control messages, which are in an element of `self.controls`.
            let datagram = unsafe { datagram_length(&header.msg_hdr) };
            let datagram = datagram.filter(|datagram| *datagram > 0).unwrap_or(length.max(1));
            let is_truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let has_source = header.msg_hdr.msg_namelen > 0;
            self.messages.push(Message { length, datagram, is_truncated, has_source });
            self.read[0] += 1;
            self.read[1] += length.div_ceil(datagram).max(1) as u64;
        }
        Ok(())
    }

    /// Returns the datagrams from the last read.
    pub fn datagrams(&self) -> impl Iterator<Item = Received<'_>> {
        let rooms = self.room.chunks_exact(self.message_max + STAGGER);
        rooms.zip(&self.messages).zip(&self.names).flat_map(move |((room, message), name)| {
            let bytes = &room[..message.length];
            let empty = bytes.is_empty().then_some(bytes);
            empty.into_iter().chain(bytes.chunks(message.datagram)).map(move |datagram| Received {
                bytes: &datagram[..datagram.len().min(self.datagram_max)],
                truncated: message.is_truncated || datagram.len() > self.datagram_max,
                source: Source(Some(name)),
            })
        })
    }

    /// Returns how many datagrams the kernel has dropped since the last call, due to a full buffer or wrong checksums. Logs
    /// an error if wrong checksums explain the drops. Must be called often, because the kernel's 32-bit counter wraps.
    ///
    /// The kernel counts joined datagrams once, so each drop counts as many datagrams as the messages read since the last call
    /// had on average, rounded up.
    pub(crate) fn take_kernel_drops(&mut self) -> u32 {
        let [messages, datagrams] = std::mem::take(&mut self.read);
        let per_message = u32::try_from(datagrams.div_ceil(messages.max(1))).unwrap_or(u32::MAX);
        let Some(before) = self.drops_seen else {
            return 0;
        };
        let seen = kernel_drops(&self.socket).unwrap_or(before);
        self.drops_seen = Some(seen);
        let drops = seen.wrapping_sub(before).saturating_mul(per_message.max(1));
        let now = Instant::now();
        // This is also updated without drops, because earlier wrong checksums do not explain later drops.
        if drops == 0 && now - self.wrong_seen.1 < WRONG_INTERVAL {
            return 0;
        }
        let (wrong_before, _) = std::mem::replace(&mut self.wrong_seen, (wrong_checksums(), now));
        let wrong = wrong_before.zip(self.wrong_seen.0);
        let wrong = wrong.map_or(0, |(before, seen)| seen.saturating_sub(before));
        if drops > 0 && wrong >= u64::from(drops) {
            tracing::error!(
                address = self.address().map(tracing::field::display),
                datagrams = drops,
                wrong_checksums_of_host = wrong,
                "the kernel dropped datagrams, and this host received at least as many with wrong checksums: they were \
                 probably corrupted in transit or sent incorrectly, so a larger receive buffer would not help; check the \
                 senders and the network hardware"
            );
        }
        drops
    }
}

/// The source address of a datagram, which the sender may have spoofed. It is decoded only when needed, which is rare.
#[derive(Debug, Clone, Copy, Default)]
pub struct Source<'a>(Option<&'a libc::sockaddr_storage>);

impl Source<'_> {
    /// Returns the IP address and port, or `None` for a Unix socket or a datagram without a source.
    #[must_use]
    pub fn address(self) -> Option<SocketAddr> {
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: a SockAddrStorage is a fully initialised sockaddr_storage, whose family determines the kind of address.
        unsafe {
            *storage.view_as() = *self.0?;
            SockAddr::new(storage, NAME_LEN).as_socket()
        }
    }
}

/// Makes the kernel join datagrams, and returns whether it can.
fn joins_datagrams(socket: &Socket) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads a c_int, whose size is passed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_GRO,
            (&raw const on).cast(),
            FLAG_LEN,
        )
    };
    result == 0
}

/// Returns the length of each datagram in a message except the last, or `None` if the message is a single datagram.
///
/// # Safety
///
/// The header's control messages must be as the kernel has set them.
unsafe fn datagram_length(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: according to the caller, these macros find only whole control messages in the header's space for them. The
    // kernel writes a c_int, which need not be aligned.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = control.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let length = libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(length).ok();
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

fn kernel_drops(socket: &Socket) -> Option<u32> {
    let mut info = [0_u32; SK_MEMINFO_VARS];
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    (result == 0).then(|| info[SK_MEMINFO_DROPS])
}

/// Returns how many datagrams with a wrong checksum this host has received since it booted, or `None` if unknown.
fn wrong_checksums() -> Option<u64> {
    let ipv4 = procfs::net::snmp().ok()?.udp_in_csum_errors;
    // A host without IPv6 does not have this file.
    let ipv6 = procfs::net::snmp6().map_or(0, |counters| counters.udp_in_csum_errors);
    Some(ipv4 + ipv6)
}

/// Takes over the descriptors passed by the service manager, with their numbers. Only the first call returns any.
pub(super) fn passed() -> io::Result<Vec<(RawFd, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let descriptors = sd_notify::listen_fds()?;
    // SAFETY: `listen_fds` found each of them open. According to LISTEN_PID they were opened for this process before it
    // started, so no other code in it owns them. TAKEN ensures that no earlier call has taken them.
    let owned = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(descriptors.map(|number| (number, owned(number))).collect())
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
