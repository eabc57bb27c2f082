//! The kernel's view of a UDP socket: its unread bytes and its drops.

use std::fs;
use std::net::SocketAddr;

/// The state of a UDP socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UdpSocketState {
    /// The memory of the unread datagrams.
    pub unread_bytes: u64,
    /// The datagrams that did not fit, ever.
    pub drops: u64,
}

/// The kernel gives its table in pieces, and leaves out a socket now and then while others come and go before it.
const LOOKS: usize = 10;

/// The socket at this port of 127.0.0.1; `None` where there is none.
pub fn udp_socket(address: SocketAddr) -> Option<UdpSocketState> {
    (0..LOOKS).find_map(|_| look(address))
}

fn look(address: SocketAddr) -> Option<UdpSocketState> {
    let table = fs::read_to_string("/proc/net/udp").expect("Linux has it");
    let local = format!("0100007F:{:04X}", address.port());
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local))?;
    let columns: Vec<_> = line.split_whitespace().collect();
    let (_, unread) = columns[4].split_once(':').expect("tx_queue:rx_queue");
    Some(UdpSocketState {
        unread_bytes: u64::from_str_radix(unread, 16).expect("a hexadecimal number"),
        drops: columns[12].parse().expect("a number"),
    })
}
