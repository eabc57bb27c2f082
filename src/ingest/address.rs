//! [`ListenAddress`], and the files of Unix sockets. The kernel queues at most `net.unix.max_dgram_qlen` datagrams per Unix
//! socket. On startup, a node replaces a socket file on which no process is listening. On shutdown, it removes its own file.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};

use super::holder::unix_holder;

const UNIX: &str = "unix:";
/// Maximum length of a Unix socket's path, in bytes. The kernel rejects longer paths.
const PATH_BYTES_MAX: usize = 107;

/// An address at which events are received. It is parsed and displayed in the form used in the configuration.
#[derive(Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A UDP socket. While its receive buffer is full, the kernel drops datagrams without notifying the senders.
    Udp(SocketAddr),
    /// A Unix datagram socket for senders on the same host. While its queue is full, senders block or get EAGAIN.
    Unix(PathBuf),
}

impl ListenAddress {
    pub(super) fn of(socket: &Socket) -> Option<Self> {
        let address = socket.local_addr().ok()?;
        let unix = || address.as_pathname().map(|path| Self::Unix(path.into()));
        address.as_socket().map(Self::Udp).or_else(unix)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl fmt::Debug for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for text that is not a valid [`ListenAddress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not an address; use an IP address and a port, such as \"127.0.0.1:8094\" or \"[::1]:8094\", or the absolute path \
     of a Unix socket (at most {PATH_BYTES_MAX} bytes), such as \"unix:/run/eds/eds.sock\""
)]
pub struct ParseListenAddressError;

impl FromStr for ListenAddress {
    type Err = ParseListenAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let address = text.parse().map(Self::Udp);
            return address.map_err(|_| ParseListenAddressError);
        };
        let path = PathBuf::from(path);
        let bytes = path.as_os_str().as_bytes();
        let is_valid = path.is_absolute()
            && path.file_name().is_some()
            && bytes.len() <= PATH_BYTES_MAX
            && !bytes.contains(&0);
        is_valid.then_some(Self::Unix(path)).ok_or(ParseListenAddressError)
    }
}

/// The file of a Unix socket bound by this process. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// The device and the inode of a file, and its creation time, if known, because an inode number may be reused.
type FileId = (u64, u64, Option<SystemTime>);

fn file_id(path: &Path) -> io::Result<FileId> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = file_id(&self.path).is_ok_and(|id| id == self.id);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot remove the socket file; the next node that starts will replace it");
        }
    }
}

pub(super) fn bind_unix(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    // Permissions set before the bind apply to the file, minus the umask, so it never has more permissions than `mode`.
    let socket = File::from(OwnedFd::from(socket));
    socket.set_permissions(Permissions::from_mode(mode))?;
    let socket = Socket::from(OwnedFd::from(socket));
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // Without this lock, two processes could find the same stale file, and one could remove the other's new file.
            let directory = File::open(path.parent().unwrap_or(path))?;
            directory.try_lock().map_err(|error| {
                io::Error::other(format!(
                    "the socket's directory is locked by another process: {error}"
                ))
            })?;
            remove_stale(path)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    let file = SocketFile { path: path.to_owned(), id: file_id(path)? };
    add_permissions(path, mode)?;
    Ok((socket, file))
}

/// Grants a socket file the permissions that the umask withheld. Fails if the path is a symlink or is not a socket.
fn add_permissions(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("the socket file was replaced by a different file"));
    }
    // The permissions of a file opened with O_PATH can only be changed through the path of its descriptor in /proc.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        let message =
            "the path exists and is not a socket; remove the file, or use a different path";
        return Err(io::Error::new(ErrorKind::AlreadyExists, message));
    }
    match UnixDatagram::unbound()?.connect(path) {
        Ok(()) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            format!(
                "another process is listening on this path: {}; stop it, or use a different path",
                unix_holder(path)
            ),
        )),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing a stale socket that no process is listening on");
            fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        let longest = format!("unix:/{}", "x".repeat(PATH_BYTES_MAX - 1));
        for text in ["127.0.0.1:8094", "[::1]:8094", "unix:/run/eds.sock", &*longest] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let too_long = format!("{longest}x");
        for text in [
            "",
            "localhost:80",
            "unix:",
            "unix:/",
            "unix:eds.sock",
            "unix:/a\0b",
            "/run/eds.sock",
            &*too_long,
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text:?}");
        }
    }

    fn error(path: &Path) -> String {
        bind_unix(path, 0o600).unwrap_err().to_string()
    }

    #[test]
    fn socket_file_has_its_permissions_and_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let (_socket, file) = bind_unix(&path, 0o622).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o622);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn permissions_do_not_follow_links() {
        let directory = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|name| directory.path().join(name));
        fs::write(&target, "").unwrap();
        let before = fs::metadata(&target).unwrap().permissions();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        add_permissions(&link, 0o777).unwrap_err();
        assert_eq!(fs::metadata(&target).unwrap().permissions(), before);
    }

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let (socket, file) = bind_unix(&path, 0o600).unwrap();
        let expected = format!(
            "another process is listening on this path: this process ({})",
            std::process::id()
        );
        assert!(error(&path).starts_with(&expected), "{}", error(&path));
        assert!(path.exists());
        // Dropping only the socket leaves the file behind, as a killed process would.
        drop(socket);
        let (_socket, next) = bind_unix(&path, 0o600).unwrap();
        drop(file);
        assert!(path.exists(), "the file belongs to the new socket");
        drop(next);

        fs::write(&path, "kept").unwrap();
        assert!(error(&path).contains("is not a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(error(&path).contains("is not a socket"));
    }

    #[test]
    fn a_stale_file_is_not_replaced_while_another_process_holds_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        drop(UnixDatagram::bind(&path).unwrap());
        let lock = File::open(directory.path()).unwrap();
        lock.try_lock().unwrap();
        assert!(error(&path).contains("locked by another process"));
        assert!(path.exists());
        drop(lock);
        bind_unix(&path, 0o600).unwrap();
    }
}
