//! Where events come in, and the sockets that the node binds itself.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::holder::{Table, explained};
use super::receive::force_receive_buffer;
use super::unix::{self, SocketFile};
use crate::diagnosis::Cause;

/// What the path of a Unix socket begins with where addresses are written.
const UNIX: &str = "unix:";
/// The longest path that the kernel takes for a socket, in bytes.
const PATH_BYTES_MAX: usize = 107;

/// Where events come in. It displays, and is read, as the configuration has it.
#[derive(Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// By UDP: from everywhere, and without a word about what the kernel has no room for.
    Udp(SocketAddr),
    /// At a Unix datagram socket: from this host, and whoever sends more than there is room for waits.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Where this socket receives.
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

/// A text that is not a [`ListenAddress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not an address; write an IP address and a port, such as \"127.0.0.1:8094\" or \"[::1]:8094\", or the absolute path \
     of a Unix socket, of {PATH_BYTES_MAX} bytes at most, such as \"unix:/run/eds/eds.sock\""
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
        let is_one = path.is_absolute() && bytes.len() <= PATH_BYTES_MAX;
        if is_one && path.file_name().is_some() && !bytes.contains(&0) {
            Ok(Self::Unix(path))
        } else {
            Err(ParseListenAddressError)
        }
    }
}

/// How sockets are bound.
#[derive(Debug, Clone, Copy)]
pub struct BindSettings {
    /// The receive buffer of a UDP socket, in bytes.
    pub receive_buffer: u64,
    /// The permissions of the file of a Unix socket: who may write to it may send.
    pub socket_mode: u32,
    /// Reads wait no longer.
    pub read_timeout: Duration,
}

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (input.listen): {source}")]
pub struct BindError {
    address: ListenAddress,
    source: io::Error,
}

/// Binds a socket to one of the addresses in `listen`, and warns when the kernel gives a smaller receive buffer than asked
/// for. With a Unix socket comes its file. `[::]` receives IPv4 as well, unless `listen` has an IPv4 address with its port:
/// the kernel does not allow both.
pub fn bind(
    address: &ListenAddress,
    listen: &[ListenAddress],
    settings: &BindSettings,
) -> Result<(Socket, Option<SocketFile>), BindError> {
    let bound = match address {
        ListenAddress::Udp(address) => udp(*address, listen, settings).map(|it| (it, None)),
        ListenAddress::Unix(path) => {
            unix::bind(path, settings.socket_mode).map(|(socket, file)| (socket, Some(file)))
        }
    };
    let bound = bound.and_then(|(socket, file)| {
        socket.set_read_timeout(Some(settings.read_timeout))?;
        Ok((socket, file))
    });
    bound.map_err(|source| BindError {
        address: address.clone(),
        source,
    })
}

fn udp(
    address: SocketAddr,
    listen: &[ListenAddress],
    settings: &BindSettings,
) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        let is_ipv4 = |at: &ListenAddress| match at {
            ListenAddress::Udp(at) => at.is_ipv4() && at.port() == address.port(),
            ListenAddress::Unix(_) => false,
        };
        socket.set_only_v6(listen.iter().any(is_ipv4))?;
    }
    let bound = socket.bind(&address.into());
    bound.map_err(|error| explained(error, Table::Udp, address))?;
    set_receive_buffer(&socket, address, settings.receive_buffer)?;
    Ok(socket)
}

fn set_receive_buffer(socket: &Socket, address: SocketAddr, asked: u64) -> io::Result<()> {
    let size = i32::try_from(asked).unwrap_or(i32::MAX / 2);
    if force_receive_buffer(socket, size).is_err() {
        socket.set_recv_buffer_size(usize::try_from(size).unwrap_or_default())?;
    }
    // The kernel doubles the size for its own records, and reports the double.
    let got = socket.recv_buffer_size()? as u64 / 2;
    if got < asked {
        tracing::warn!(
            %address,
            asked_bytes = asked,
            got_bytes = got,
            "{}",
            Cause::SmallBuffer
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        let longest = format!("unix:/{}", "x".repeat(PATH_BYTES_MAX - 1));
        for text in [
            "127.0.0.1:8094",
            "[::1]:8094",
            "unix:/run/eds.sock",
            &*longest,
        ] {
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
}
