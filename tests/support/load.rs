//! The sender, which keeps the expected counts of the datagrams that it sends.
//!
//! It waits for the node's count of received datagrams, so that the kernel drops none however slow the machine is.

use testing::http::{answer, get};
use testing::prelude::*;

use super::node::Node;

/// The most datagrams in a node's socket: a kernel with default limits holds more.
const DATAGRAMS_AHEAD_MAX: u64 = 64;
/// The most events in a node's queue; a tenth of its default size.
const EVENTS_QUEUED_MAX: u64 = 100_000;

/// Sends datagrams to a node, no faster than it takes them, and copies to others.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: UdpSocket,
    udp: SocketAddr,
    http: SocketAddr,
    /// Nodes that get copies; they may be dead.
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

    /// A sender to all of these nodes that is paced by the first.
    pub(crate) fn to_all<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut nodes = nodes.into_iter();
        let mut sender = Self::paced_by(nodes.next().expect("a node"));
        sender.copies = nodes.map(Node::udp).collect();
        sender
    }

    /// Continues with other nodes, or with other processes of the same.
    pub(crate) fn redirect<'a>(&mut self, nodes: impl IntoIterator<Item = &'a Node>) {
        let expected = std::mem::take(&mut self.expected);
        *self = Self { expected, ..Self::to_all(nodes) };
    }

    #[track_caller]
    pub(crate) fn send(&mut self, datagram: impl AsRef<[u8]>) {
        self.expected.receive(datagram.as_ref());
        self.send_unrecorded(datagram);
    }

    /// Sends all of them, and waits until they are received.
    #[track_caller]
    pub(crate) fn send_all(&mut self, datagrams: impl IntoIterator<Item: AsRef<[u8]>>) {
        for datagram in datagrams {
            self.send(datagram);
        }
        self.wait_received();
    }

    /// As [`Self::send`] with a datagram that must not be counted.
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

    /// Sends to a node that is not queried for its count: the kernel reports its unread bytes.
    #[track_caller]
    pub(crate) fn send_unpaced(&mut self, datagram: &[u8]) {
        self.expected.receive(datagram);
        self.socket.send_to(datagram, self.udp).expect("loopback takes a datagram");
        self.sent += 1;
        if self.sent.is_multiple_of(self.datagrams_ahead_max) {
            eventually("the node takes what was sent", SOON, || {
                let socket = udp_socket(self.udp).expect("the node has a socket");
                when(socket.unread_bytes == 0, socket.unread_bytes)
            });
        }
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Waits until the node has taken every datagram from its socket. Its ledger adds up all the while.
    #[track_caller]
    pub(crate) fn wait_received(&self) {
        eventually("the node receives what was sent", SOON, || {
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
