//! Sends datagrams to nodes, and computes the counts that they must result in.
//!
//! The sender regularly waits until the node has received all datagrams, so that the kernel never has to drop datagrams.

use testing::http::{answer, get};
use testing::prelude::*;

use super::node::Node;

/// The maximum number of datagrams in a node's socket, which is below the default limits of the kernel.
const DATAGRAMS_AHEAD_MAX: u64 = 64;
/// The maximum number of events in a node's queue, a tenth of the default queue size.
const EVENTS_QUEUED_MAX: u64 = 100_000;

/// Sends datagrams to a node, no faster than the node receives them, and copies to other nodes.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: UdpSocket,
    udp: SocketAddr,
    http: SocketAddr,
    /// Nodes to which copies are sent. They need not be running.
    pub(crate) copies: Vec<SocketAddr>,
    pub(crate) expected: Expected,
    pub(crate) datagrams_ahead_max: u64,
    sent: u64,
    received_before: u64,
}

impl Sender {
    pub(crate) fn paced_by(node: &Node) -> Self {
        Self {
            socket: UdpSocket::bind("127.0.0.1:0").expect("a free port"),
            udp: node.udp(),
            http: node.http(),
            copies: Vec::new(),
            expected: Expected::default(),
            datagrams_ahead_max: DATAGRAMS_AHEAD_MAX,
            sent: 0,
            received_before: node.metrics().count("eds_datagrams_received_total"),
        }
    }

    /// Returns a sender to all of these nodes that waits for the first one.
    pub(crate) fn to_all<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut nodes = nodes.into_iter();
        let mut sender = Self::paced_by(nodes.next().expect("a node"));
        sender.copies = nodes.map(Node::udp).collect();
        sender
    }

    /// Continues with other nodes, or with new processes of the same nodes.
    pub(crate) fn redirect<'a>(&mut self, nodes: impl IntoIterator<Item = &'a Node>) {
        let expected = std::mem::take(&mut self.expected);
        *self = Self { expected, ..Self::to_all(nodes) };
    }

    #[track_caller]
    pub(crate) fn send(&mut self, datagram: impl AsRef<[u8]>) {
        self.expected.receive(datagram.as_ref());
        self.send_unrecorded(datagram);
    }

    /// Sends all datagrams, and waits until they have been received.
    #[track_caller]
    pub(crate) fn send_all(&mut self, datagrams: impl IntoIterator<Item: AsRef<[u8]>>) {
        for datagram in datagrams {
            self.send(datagram);
        }
        self.wait_received();
    }

    /// Like [`Self::send`], but without adding the datagram to the expected counts.
    #[track_caller]
    pub(crate) fn send_unrecorded(&mut self, datagram: impl AsRef<[u8]>) {
        for address in self.copies.iter().chain([&self.udp]) {
            self.socket.send_to(datagram.as_ref(), address).expect("loopback takes a datagram");
        }
        self.sent += 1;
        if self.sent.is_multiple_of(self.datagrams_ahead_max) {
            self.wait_received();
        }
    }

    /// Like [`Self::send`], but waits until the node's socket is empty instead of requesting the node's metrics.
    #[track_caller]
    pub(crate) fn send_unpaced(&mut self, datagram: &[u8]) {
        self.expected.receive(datagram);
        self.socket.send_to(datagram, self.udp).expect("loopback takes a datagram");
        self.sent += 1;
        if self.sent.is_multiple_of(self.datagrams_ahead_max) {
            eventually("the node's socket is empty", SOON, || {
                let socket = udp_socket(self.udp).expect("the node has a socket");
                when(socket.unread_bytes == 0, socket.unread_bytes)
            });
        }
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Waits until the node has received every datagram. Its ledger must add up all the time.
    #[track_caller]
    pub(crate) fn wait_received(&self) {
        eventually("the node has received all datagrams", SOON, || {
            let answer = answer(get(self.http, "/metrics")).expect("a node answers");
            let metrics = Metrics::parse(&answer.body);
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
