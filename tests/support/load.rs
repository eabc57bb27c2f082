//! The sender, which keeps the expected counts of the datagrams that it sends.
//!
//! It waits for the node's count of received datagrams, so that the kernel drops none however slow the machine is.

use std::net::{SocketAddr, UdpSocket};

use testing::eventually::{SOON, eventually, when};
use testing::points::Expected;
use testing::udp_socket::udp_socket;

use super::node::Node;

/// The most datagrams in a node's socket: a kernel with default limits holds more.
const DATAGRAMS_AHEAD_MAX: u64 = 64;
/// The most events in a node's queue; a tenth of its default size.
const EVENTS_QUEUED_MAX: u64 = 100_000;

/// Sends datagrams to nodes, and keeps the expected counts of the datagrams that the pacing node receives.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: UdpSocket,
    pub(crate) expected: Expected,
    pub(crate) datagrams_ahead_max: u64,
    sent: u64,
    received_before: u64,
}

impl Sender {
    /// A sender that will wait for this node.
    pub(crate) fn paced_by(node: &Node) -> Self {
        Self {
            socket: UdpSocket::bind("127.0.0.1:0").expect("a free port"),
            expected: Expected::default(),
            datagrams_ahead_max: DATAGRAMS_AHEAD_MAX,
            sent: 0,
            received_before: node.metrics().count("eds_datagrams_received_total"),
        }
    }

    /// Sends to the node that is waited for and to these others, which may be dead.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        datagram: impl AsRef<[u8]>,
        paced_by: &Node,
        others: &[SocketAddr],
    ) {
        self.expected.receive(datagram.as_ref());
        self.send_unrecorded(datagram, paced_by, others);
    }

    /// Sends all of them, and waits until they are received.
    #[track_caller]
    pub(crate) fn send_all(
        &mut self,
        datagrams: impl IntoIterator<Item: AsRef<[u8]>>,
        paced_by: &Node,
        others: &[SocketAddr],
    ) {
        for datagram in datagrams {
            self.send(datagram, paced_by, others);
        }
        self.wait_received(paced_by);
    }

    /// As [`Self::send`] with a datagram that must not be counted.
    #[track_caller]
    pub(crate) fn send_unrecorded(
        &mut self,
        datagram: impl AsRef<[u8]>,
        paced_by: &Node,
        others: &[SocketAddr],
    ) {
        for address in others.iter().chain([&paced_by.udp()]) {
            self.socket.send_to(datagram.as_ref(), address).expect("loopback takes a datagram");
        }
        self.sent += 1;
        if self.sent.is_multiple_of(self.datagrams_ahead_max) {
            self.wait_received(paced_by);
        }
    }

    /// Sends to a node that is not queried for its count: the kernel reports its unread bytes.
    #[track_caller]
    pub(crate) fn send_unpaced(&mut self, datagram: &[u8], to: &Node) {
        self.expected.receive(datagram);
        self.socket.send_to(datagram, to.udp()).expect("loopback takes a datagram");
        self.sent += 1;
        if self.sent.is_multiple_of(self.datagrams_ahead_max) {
            eventually("the node takes what was sent", SOON, || {
                let socket = udp_socket(to.udp()).expect("the node has a socket");
                when(socket.unread_bytes == 0, socket.unread_bytes)
            });
        }
    }

    /// How many datagrams were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Waits until the node has taken every datagram from its socket. Its ledger adds up all the while.
    #[track_caller]
    pub(crate) fn wait_received(&self, paced_by: &Node) {
        eventually("the node receives what was sent", SOON, || {
            let metrics = paced_by.metrics();
            metrics.assert_ledger_adds_up();
            let received = metrics.count("eds_datagrams_received_total") - self.received_before;
            let queued = metrics.count("eds_events_queued") - metrics.count("eds_events_spooled");
            let (drops, sent) = (metrics.count("eds_kernel_drops_total"), self.sent);
            assert_eq!(drops, 0, "the kernel dropped datagrams of a paced sender");
            when(
                received == sent && queued <= EVENTS_QUEUED_MAX,
                format!("{received} datagrams of {sent}, {queued} events queued in memory"),
            )
        });
    }
}
