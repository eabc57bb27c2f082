//! Finds the processes that are using an address, for the error message after a failed bind.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;

use procfs::net::{self, TcpState};
use procfs::process::{FDTarget, Process, all_processes};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    Udp,
    Tcp,
}

const NAMED_MAX: usize = 3;
const NAME_CHARS_MAX: usize = 32;

pub(crate) fn explained(error: io::Error, table: Table, address: SocketAddr) -> io::Error {
    if error.kind() != ErrorKind::AddrInUse {
        return error;
    }
    let holder = holder(table, address);
    let text = format!("{error}: {holder}; free the port, or use a different address");
    io::Error::new(ErrorKind::AddrInUse, text)
}

pub(crate) fn holder(table: Table, address: SocketAddr) -> String {
    let holds = |bound: SocketAddr| {
        let ip = bound.ip().to_canonical();
        bound.port() == address.port()
            && (ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified())
    };
    let sockets: Vec<u64> = match table {
        Table::Udp => {
            let all = [net::udp(), net::udp6()].into_iter().flatten().flatten();
            all.filter(|socket| holds(socket.local_address)).map(|socket| socket.inode).collect()
        }
        Table::Tcp => {
            let all = [net::tcp(), net::tcp6()].into_iter().flatten().flatten();
            let listening = all.filter(|socket| socket.state == TcpState::Listen);
            listening
                .filter(|socket| holds(socket.local_address))
                .map(|socket| socket.inode)
                .collect()
        }
    };
    by_inodes(&sockets, &format!("port {}", address.port()))
}

pub(super) fn unix_holder(path: &Path) -> String {
    let all = net::unix().into_iter().flatten();
    let sockets = all.filter(|socket| socket.path.as_deref() == Some(path));
    by_inodes(&sockets.map(|socket| socket.inode).collect::<Vec<_>>(), "it")
}

fn by_inodes(inodes: &[u64], object: &str) -> String {
    let name = |process: Process| {
        let mut open = process.fd().ok()?.flatten();
        let is_holder = open
            .any(|open| matches!(open.target, FDTarget::Socket(inode) if inodes.contains(&inode)));
        if !is_holder {
            return None;
        }
        let id = process.pid();
        if u32::try_from(id) == Ok(std::process::id()) {
            return Some(format!("this process ({id}) itself"));
        }
        let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
        // A process can choose any name for itself, so the name is escaped and shortened.
        let name: String = name.escape_debug().take(NAME_CHARS_MAX).collect();
        Some(format!("process {id} ({name})"))
    };
    let all = all_processes().into_iter().flatten().flatten();
    let named: Vec<_> = all.filter_map(name).take(NAMED_MAX).collect();
    match named.len() {
        0 => format!(
            "a process that this user may not inspect holds {object}; find it with `sudo ss -lnup` (UDP), `-lntp` (TCP) or `-lnxp` (Unix)"
        ),
        1 => format!("{} holds {object}", named[0]),
        _ => format!("{} hold {object}", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn the_process_that_bound_a_port_holds_it() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let expected = format!("this process ({}) itself holds port", std::process::id());
            let socket = UdpSocket::bind(bind).unwrap();
            let text = holder(Table::Udp, socket.local_addr().unwrap());
            assert!(text.starts_with(&expected), "{bind}: {text}");
            let listener = TcpListener::bind(bind).unwrap();
            let text = holder(Table::Tcp, listener.local_addr().unwrap());
            assert!(text.starts_with(&expected), "{bind}: {text}");
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
