//! [`ListenAddress`]: where events come in.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use socket2::Socket;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
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
}
