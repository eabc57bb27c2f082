//! Names the processes that hold an address in use, for the message of a failed bind.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The kernel's tables of the sockets of a protocol.
#[derive(Debug, Clone, Copy)]
pub enum Table {
    /// `/proc/net/udp` and `/proc/net/udp6`.
    Udp,
    /// `/proc/net/tcp` and `/proc/net/tcp6`.
    Tcp,
}

/// The maximum number of named processes.
const NAMED_MAX: usize = 3;
/// The longest name of a process, in characters.
const NAME_CHARS_MAX: usize = 32;

/// Returns the error of a bind, with the processes that hold the address if it is in use.
#[must_use]
pub fn explained(error: io::Error, table: Table, address: SocketAddr) -> io::Error {
    if error.kind() != ErrorKind::AddrInUse {
        return error;
    }
    let whom = holder(table, address);
    let text = format!("{error}: {whom}; end that, or name another address");
    io::Error::new(ErrorKind::AddrInUse, text)
}

/// Returns a sentence with the processes that hold the address.
#[must_use]
pub fn holder(table: Table, address: SocketAddr) -> String {
    let tables = match table {
        Table::Udp => ["udp", "udp6"],
        Table::Tcp => ["tcp", "tcp6"],
    };
    let read = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let mut sockets = Vec::new();
    for text in tables.map(read) {
        let lines = text.lines().skip(1);
        sockets.extend(lines.filter_map(|line| bound(line, table, address)));
    }
    by_inodes(&sockets, &format!("port {}", address.port()))
}

/// Returns a sentence with the processes that hold the Unix socket of this path.
pub(super) fn unix_holder(path: &Path) -> String {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let path = path.to_string_lossy();
    let socket = |line: &str| {
        let mut columns = line.split_whitespace().skip(6);
        let inode = columns.next()?.to_owned();
        (columns.next()? == path).then_some(inode)
    };
    let sockets: Vec<_> = text.lines().filter_map(socket).collect();
    by_inodes(&sockets, "it")
}

/// Returns the inode of the socket of a line, if it receives at the address.
fn bound(line: &str, table: Table, address: SocketAddr) -> Option<String> {
    const LISTENS: &str = "0A";
    let columns: Vec<_> = line.split_whitespace().collect();
    let (ip, port) = columns.get(1)?.split_once(':')?;
    let ip = ip_of(ip)?;
    let is_open = matches!(table, Table::Udp) || *columns.get(3)? == LISTENS;
    let is_there = u16::from_str_radix(port, 16).ok()? == address.port()
        && (ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified());
    let inode = columns.get(9)?;
    (is_open && is_there).then(|| (*inode).to_owned())
}

/// Parses an address in words of 32 bits in the host's order.
fn ip_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            let bytes: [u8; 16] = words.try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

fn by_inodes(inodes: &[String], what: &str) -> String {
    let links: Vec<_> = inodes.iter().map(|it| format!("socket:[{it}]")).collect();
    let holds = |process: &Path| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten();
        open.flatten().any(|descriptor| {
            let link = fs::read_link(descriptor.path());
            link.is_ok_and(|link| links.iter().any(|name| link.as_os_str() == &**name))
        })
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let named = all.filter_map(|entry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        holds(&entry.path()).then(|| {
            if id == std::process::id() {
                return format!("this process ({id}) itself");
            }
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // A process may call itself anything.
            let name: String = name.trim_end().escape_debug().take(NAME_CHARS_MAX).collect();
            format!("process {id} ({name})")
        })
    });
    let named: Vec<_> = named.take(NAMED_MAX).collect();
    if named.is_empty() {
        format!(
            "a process that this user may not look at holds {what} (`sudo ss -lnup`, `-lntp` or `-lnxp` names it)"
        )
    } else {
        let holds = if named.len() == 1 { "holds" } else { "hold" };
        format!("{} {holds} {what}", named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_port_is_held_by_who_bound_it() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let own = format!("this process ({}) itself holds port", std::process::id());
            let socket = UdpSocket::bind(bind).unwrap();
            let text = holder(Table::Udp, socket.local_addr().unwrap());
            assert!(text.starts_with(&own), "{bind}: {text}");
            let listener = TcpListener::bind(bind).unwrap();
            let text = holder(Table::Tcp, listener.local_addr().unwrap());
            assert!(text.starts_with(&own), "{bind}: {text}");
        }
    }

    #[test]
    fn only_an_address_in_use_has_a_holder() {
        let address = "192.0.2.1:8094".parse().unwrap();
        let error = UdpSocket::bind(address).unwrap_err();
        let text = error.to_string();
        assert_eq!(explained(error, Table::Udp, address).to_string(), text);
    }
}
