//! Unix datagram sockets, for senders on the same host.
//!
//! What one takes is never lost: the kernel holds `net.unix.max_dgram_qlen` datagrams, and whoever sends another one waits for
//! room, or is told that there is none (EAGAIN). The socket's file says who may send. A node makes it, takes the place of
//! one at which nobody listens any more, and removes its own when it reads no more.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};

use super::holder::unix_holder;

/// The file of a socket that this process has bound. It is removed with this, unless another one has its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// The device, the number of the file on it, which is given again, and when the file was made, where that is known.
type FileId = (u64, u64, Option<SystemTime>);

fn id(path: &Path) -> io::Result<FileId> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = id(&self.path).is_ok_and(|id| id == self.id);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot remove the file of a socket; the next node takes its place");
        }
    }
}

/// Binds a socket to this path, with these permissions.
pub(super) fn bind(path: &Path, mode: u32) -> io::Result<(Socket, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    // The file gets the permissions of the socket, less the umask, when it is bound: never more than it may have.
    let socket = File::from(OwnedFd::from(socket));
    socket.set_permissions(Permissions::from_mode(mode))?;
    let socket = Socket::from(OwnedFd::from(socket));
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // Of two that find the same stale file, the second would remove the socket of the first.
            let directory = File::open(path.parent().unwrap_or(path))?;
            directory.try_lock().map_err(|error| {
                io::Error::other(format!("its directory is locked by another process: {error}"))
            })?;
            remove_stale(path)?;
            socket.bind(&address)?;
        }
        bound => bound?,
    }
    let file = SocketFile { path: path.to_owned(), id: id(path)? };
    add_permissions(path, mode)?;
    Ok((socket, file))
}

/// Gives the file of a socket the permissions that the umask withheld. Does not follow a symbolic link that somebody put in its
/// place.
fn add_permissions(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("its file was replaced by another one"));
    }
    // A descriptor of this kind cannot change permissions by itself.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Removes the file of a socket at which nobody listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        let said = "there is something else than a socket; remove it, or name another path";
        return Err(io::Error::new(ErrorKind::AlreadyExists, said));
    }
    match UnixDatagram::unbound()?.connect(path) {
        Ok(()) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            format!(
                "another process listens there: {}; end that, or name another path",
                unix_holder(path)
            ),
        )),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "taking the place of a socket at which nobody listens");
            fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        bind(path, 0o600).unwrap_err().to_string()
    }

    #[test]
    fn a_socket_has_its_permissions_and_its_file_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let (_socket, file) = bind(&path, 0o622).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o622);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn permissions_are_not_given_to_what_a_link_names() {
        let directory = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|it| directory.path().join(it));
        fs::write(&target, "").unwrap();
        let before = fs::metadata(&target).unwrap().permissions();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        add_permissions(&link, 0o777).unwrap_err();
        assert_eq!(fs::metadata(&target).unwrap().permissions(), before);
    }

    #[test]
    fn only_a_socket_at_which_nobody_listens_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let (socket, file) = bind(&path, 0o600).unwrap();
        let own = format!("another process listens there: this process ({})", std::process::id());
        assert!(error(&path).starts_with(&own), "{}", error(&path));
        assert!(path.exists());
        // As a process leaves it that is killed.
        drop(socket);
        let (_socket, next) = bind(&path, 0o600).unwrap();
        drop(file);
        assert!(path.exists(), "it is another one's now");
        drop(next);

        fs::write(&path, "kept").unwrap();
        assert!(error(&path).contains("something else than a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(error(&path).contains("something else than a socket"));
    }

    #[test]
    fn of_two_that_find_a_stale_file_one_waits_for_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        drop(UnixDatagram::bind(&path).unwrap());
        let other = File::open(directory.path()).unwrap();
        other.try_lock().unwrap();
        assert!(error(&path).contains("locked by another process"));
        assert!(path.exists());
        drop(other);
        bind(&path, 0o600).unwrap();
    }
}
