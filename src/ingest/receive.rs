//! [`Receiver`]: reads many datagrams with one system call.
//!
//! The only file with unsafe code: no crate offers a batched receive whose headers are right on every call. So the few
//! other system calls that need it are here, too.

#![expect(
    unsafe_code,
    reason = "recvmmsg, SO_RCVBUFFORCE and SO_MEMINFO have no safe wrapper that fits, and that a descriptor was passed \
              to this process is known from the environment alone"
)]

use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, MaybeUninitSlice, SockAddr, SockAddrStorage, Socket};

use super::Received;
use super::address::ListenAddress;
use super::drops::Drops;
use super::gather::Gather;
use super::unix::SocketFile;

/// Datagrams read by one system call at most.
const BATCH: usize = 64;
const BATCH_LEN: libc::c_uint = 64;
/// What is between the rooms of two datagrams: at powers of two all would share few places of the processor's caches.
const STAGGER: usize = 33 * 64;
/// The size of an address.
#[expect(clippy::cast_possible_truncation, reason = "128")]
const NAME_LEN: libc::socklen_t = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
/// Linux' number of the socket option for a socket's memory, and the place of the drop counter in it.
const SO_MEMINFO: libc::c_int = 55;
const SK_MEMINFO_DROPS: usize = 8;
const SK_MEMINFO_VARS: usize = 9;

/// A socket and the buffers for what it reads.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    room: Vec<u8>,
    datagram_max: usize,
    /// Length and truncation of each datagram read last.
    lengths: Vec<(usize, bool)>,
    gather: Gather,
    /// Room for the source addresses; empty without [`Receiver::with_sources`].
    names: Vec<libc::sockaddr_storage>,
    drops: Drops,
    batched: bool,
    outlives: bool,
    is_unix: bool,
    /// Of a Unix socket that this process has bound. Goes with the last receiver of the socket that stops.
    file: Option<Arc<SocketFile>>,
}

impl Receiver {
    /// Reads from this socket, which should have a read timeout. A datagram longer than `datagram_max` bytes is cut.
    #[must_use]
    pub fn new(socket: Socket, datagram_max: usize) -> Self {
        // What was dropped before this process looked is not its to count; see `drops_before`.
        let drops = Drops::new(kernel_drops(&socket));
        Self { drops, ..Self::sharing(socket, datagram_max) }
    }

    /// The same, for a socket that another receiver reads, too; that one counts its drops.
    #[must_use]
    pub fn sharing(socket: Socket, datagram_max: usize) -> Self {
        let room = vec![0; BATCH * (datagram_max + STAGGER)];
        let is_unix = socket.domain().is_ok_and(|of| of == Domain::UNIX);
        Self {
            gather: Gather::new(&socket, is_unix),
            is_unix,
            socket,
            room,
            datagram_max,
            lengths: Vec::new(),
            names: Vec::new(),
            drops: Drops::new(None),
            batched: true,
            outlives: false,
            file: None,
        }
    }

    /// The same, with the file of its socket, if that has one which this process made.
    #[must_use]
    pub fn with_file(mut self, file: Option<Arc<SocketFile>>) -> Self {
        self.file = file;
        self
    }

    /// Whether senders wait while nobody reads, so that nothing is lost.
    #[must_use]
    pub const fn makes_senders_wait(&self) -> bool {
        self.is_unix
    }

    /// Lets senders know, where it can, that nobody will read what they send from now on. What they have sent is there.
    pub fn refuse_senders(&mut self) {
        self.file = None;
        if self.is_unix {
            // It cannot fail while the socket is open.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
    }

    /// The same, for a socket that others hold, too, and that the next process reads.
    #[must_use]
    pub fn outliving(mut self) -> Self {
        self.outlives = true;
        self
    }

    /// Whether another process reads what is left in the socket.
    #[must_use]
    pub const fn outlives(&self) -> bool {
        self.outlives
    }

    /// What the kernel had dropped when this receiver was made; 0 where another counts. Earlier processes counted what they saw.
    #[must_use]
    pub fn drops_before(&self) -> u32 {
        self.drops.seen.unwrap_or_default()
    }

    /// The same, with the source of each datagram. The kernel writes 28 bytes more for each.
    #[must_use]
    pub fn with_sources(mut self) -> Self {
        // SAFETY: sockaddr_storage is a C struct of integers, for which all zeroes is valid: an address of no family.
        self.names = vec![unsafe { std::mem::zeroed() }; BATCH];
        self
    }

    /// Where it receives.
    #[must_use]
    pub fn address(&self) -> Option<ListenAddress> {
        ListenAddress::of(&self.socket)
    }

    /// Waits for datagrams until the socket's read timeout, and reads what is there. Returns false when nothing arrived.
    pub fn wait(&mut self) -> io::Result<bool> {
        self.receive(libc::MSG_WAITFORONE)
    }

    /// The same; what comes close behind what was read before, it lets wait a little, so that more come together.
    pub fn gather(&mut self) -> io::Result<bool> {
        if self.batched && self.lengths.len() < BATCH {
            self.gather.rest();
        }
        let read = self.wait()?;
        self.gather.note(read);
        Ok(read)
    }

    /// Reads what is there already. Returns false when there is nothing.
    pub fn poll(&mut self) -> io::Result<bool> {
        self.receive(libc::MSG_DONTWAIT)
    }

    fn receive(&mut self, flags: libc::c_int) -> io::Result<bool> {
        self.lengths.clear();
        let result = if self.batched { self.receive_batch(flags) } else { self.receive_one(flags) };
        match result {
            Err(error) if self.batched && error.raw_os_error() == Some(libc::ENOSYS) => {
                self.batched = false;
                self.receive(flags)
            }
            // EAGAIN: the timeout, or nothing there. ECONNREFUSED: an ICMP error of something sent before.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
            // Another thread has the senders refused.
            Ok(()) if self.is_unix && self.is_end() => {
                self.lengths.clear();
                Ok(false)
            }
            Ok(()) if !self.is_unix && self.is_shut_down() => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the socket was shut down"))
            }
            Ok(()) => Ok(!self.lengths.is_empty()),
        }
    }

    /// Returns whether a Unix socket that refuses senders has returned that, which looks like an empty datagram: it does so
    /// once to a read that waits, and never to one that does not. A real one at that moment is taken for it.
    fn is_end(&self) -> bool {
        if !matches!(*self.lengths, [(0, _)]) {
            return false;
        }
        let mut poll =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: there is one pollfd, as the call says, and it outlives the call, which waits for nothing.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready == 1 && poll.revents & libc::POLLRDHUP != 0
    }

    /// A socket that was shut down returns empty datagrams from nobody, without end. Real ones are hardly ever empty, so
    /// this system call is rare.
    fn is_shut_down(&self) -> bool {
        !self.lengths.is_empty()
            && self.lengths.iter().all(|&(length, _)| length == 0)
            && (self.socket.peek_sender()).is_ok_and(|name| name.as_socket().is_none())
    }

    fn receive_batch(&mut self, flags: libc::c_int) -> io::Result<()> {
        // SAFETY: both are C structs of integers and pointers, for which all zeroes is a valid value: no bytes, and no
        // name, no parts, no control data.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        let rooms = (self.room).chunks_exact_mut(self.datagram_max + STAGGER);
        for ((room, part), header) in rooms.zip(&mut parts).zip(&mut headers) {
            part.iov_base = room.as_mut_ptr().cast();
            part.iov_len = self.datagram_max;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        // Empty, or as many as headers.
        for (name, header) in self.names.iter_mut().zip(&mut headers) {
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = NAME_LEN;
        }
        // SAFETY: each of the BATCH headers points to one part, and each part to `datagram_max` bytes of
        // `self.room` that no other part has; it has no name, or one of NAME_LEN bytes in `self.names` that no
        // other header has. All of them outlive the call. A null timeout is allowed.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH_LEN,
                // Signed or not, as the C library has it.
                flags as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for header in &headers[..count] {
            let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            self.lengths.push((header.msg_len as usize, truncated));
        }
        Ok(())
    }

    /// For a kernel without recvmmsg.
    fn receive_one(&mut self, flags: libc::c_int) -> io::Result<()> {
        let flags = flags & libc::MSG_DONTWAIT;
        let mut room = vec![MaybeUninit::uninit(); self.datagram_max];
        let mut parts = [MaybeUninitSlice::new(&mut room)];
        let read = (self.socket).recv_from_vectored_with_flags(&mut parts, flags)?;
        let (len, received, name) = read;
        for (to, from) in self.room.iter_mut().zip(&room[..len]) {
            // SAFETY: the kernel has written the first `len` bytes.
            *to = unsafe { from.assume_init() };
        }
        self.lengths.push((len, received.is_truncated()));
        if let Some(to) = self.names.first_mut() {
            // SAFETY: a SockAddrStorage is a sockaddr_storage.
            *to = unsafe { *name.as_storage().view_as() };
        }
        Ok(())
    }

    /// What the last call read.
    pub fn datagrams(&self) -> impl Iterator<Item = Received<'_>> {
        self.room.chunks_exact(self.datagram_max + STAGGER).zip(&self.lengths).enumerate().map(
            |(place, (room, &(len, truncated)))| Received {
                bytes: &room[..len.min(self.datagram_max)],
                truncated,
                source: Source(self.names.get(place)),
            },
        )
    }

    /// How many datagrams the kernel dropped since the last call: the receive buffer was full, or their checksum wrong; the log
    /// has the likely cause. Asked once a second the difference is right, although the kernel's counter wraps at 32 bits.
    pub fn take_kernel_drops(&mut self) -> u32 {
        self.drops.take(&self.socket, kernel_drops(&self.socket))
    }

    /// Reads one datagram with each system call, as on a kernel without recvmmsg.
    #[must_use]
    pub fn without_batches(mut self) -> Self {
        self.batched = false;
        self
    }
}

/// Where a datagram claims to come from. It is read only where somebody asks, which is rare.
#[derive(Debug, Clone, Copy, Default)]
pub struct Source<'a>(Option<&'a libc::sockaddr_storage>);

impl Source<'_> {
    /// The address that the kernel wrote, if it is one of the internet, and the receiver knows the sources.
    #[must_use]
    pub fn address(self) -> Option<SocketAddr> {
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: a SockAddrStorage is a sockaddr_storage, all of it initialised, whose family says what is there.
        unsafe {
            *storage.view_as() = *self.0?;
            SockAddr::new(storage, NAME_LEN).as_socket()
        }
    }
}

/// The datagrams that the kernel dropped in the whole life of the socket. `None` where it does not say.
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

/// Sets the receive buffer beyond the system's limit, which needs `CAP_NET_ADMIN`.
pub(super) fn force_receive_buffer(socket: &Socket, bytes: libc::c_int) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&bytes)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads a c_int from the pointer, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            len,
        )
    };
    (result == 0).then_some(()).ok_or_else(io::Error::last_os_error)
}

/// Takes the descriptors that the service manager passed to this process, each with its number. Later calls get none.
pub(super) fn passed() -> io::Result<Vec<(RawFd, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let descriptors = sd_notify::listen_fds()?;
    // SAFETY: `listen_fds` found each of them open. LISTEN_PID says that they were opened for this process before it
    // began, so nothing in it has them from elsewhere, and TAKEN that nobody has taken them from here before.
    let own = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(descriptors.map(|number| (number, own(number))).collect())
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
