//! Reads from the kernel how many bytes of a UDP socket are unread and how many datagrams have been dropped.

use std::fs;
use std::net::SocketAddr;

/// The state of a UDP socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UdpSocketState {
    /// The memory used by unread datagrams, in bytes.
    pub unread_bytes: u64,
    /// The number of datagrams dropped so far.
    pub drops: u64,
}

/// The maximum number of times the kernel's socket table is read to find a socket. The kernel returns the table in pieces,
/// so a socket may be missing if sockets before it are opened or closed in the meantime.
const LOOKS: usize = 10;

/// Returns the state of the socket at this port of 127.0.0.1, or None if there is none.
pub fn udp_socket(address: SocketAddr) -> Option<UdpSocketState> {
    (0..LOOKS).find_map(|_| look(address))
}

fn look(address: SocketAddr) -> Option<UdpSocketState> {
    let table = fs::read_to_string("/proc/net/udp").expect("/proc/net/udp is readable");
    let local = format!("0100007F:{:04X}", address.port());
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local))?;
    let columns: Vec<_> = line.split_whitespace().collect();
    let (_, unread) = columns[4].split_once(':').expect("tx_queue:rx_queue");
    Some(UdpSocketState {
        unread_bytes: u64::from_str_radix(unread, 16).expect("the queue length is hexadecimal"),
        drops: columns[12].parse().expect("the drop count is a number"),
    })
}
