//! Real datagrams over loopback.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::*;

fn pair(datagram_max: usize) -> (Receiver, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(socket.local_addr().unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (Receiver::new(socket.into(), datagram_max), sender)
}

fn read(receiver: &Receiver) -> Vec<(Vec<u8>, bool)> {
    receiver.datagrams().map(|d| (d.bytes.to_vec(), d.truncated)).collect()
}

fn check(mut receiver: Receiver, sender: &UdpSocket) {
    sender.send(b"first").unwrap();
    sender.send(b"").unwrap();
    sender.send(b"longer than eight").unwrap();
    let mut all = Vec::new();
    while all.len() < 3 {
        assert!(receiver.wait().unwrap());
        all.extend(read(&receiver));
    }
    assert_eq!(
        all,
        [(b"first".to_vec(), false), (Vec::new(), false), (b"longer t".to_vec(), true)]
    );
    assert!(!receiver.poll().unwrap());
    // A truncated datagram leaves no trace on the next.
    sender.send(b"next").unwrap();
    assert!(receiver.wait().unwrap());
    assert_eq!(read(&receiver), [(b"next".to_vec(), false)]);
}

#[test]
fn batched_reads_return_every_datagram_and_whether_it_was_cut() {
    let (receiver, sender) = pair(8);
    check(receiver, &sender);
}

#[test]
fn single_reads_return_the_same() {
    let (receiver, sender) = pair(8);
    check(receiver.without_batches(), &sender);
}

#[test]
fn the_sources_are_known_when_they_are_asked_for() {
    for (address, batched) in [("127.0.0.1:0", true), ("127.0.0.1:0", false), ("[::1]:0", true)] {
        let socket = UdpSocket::bind(address).unwrap();
        let to = socket.local_addr().unwrap();
        let mut receiver = Receiver::new(socket.into(), 64);
        receiver.batched = batched;
        let senders = [(); 2].map(|()| UdpSocket::bind(address).unwrap());
        let [one, other] = [0, 1].map(|at: usize| senders[at].local_addr().ok());
        let expect = |receiver: &mut Receiver, expected: &[Option<SocketAddr>]| {
            for (_, sender) in expected.iter().zip(senders.iter().cycle()) {
                sender.send_to(b"x", to).unwrap();
            }
            let mut sources = Vec::new();
            while sources.len() < expected.len() {
                assert!(receiver.wait().unwrap());
                sources.extend(receiver.datagrams().map(|datagram| datagram.source.address()));
            }
            assert_eq!(sources, expected);
        };
        expect(&mut receiver, &[None, None]);
        let mut receiver = receiver.with_sources();
        expect(&mut receiver, &[one, other, one]);
        expect(&mut receiver, &[one, other]);
    }
}

#[test]
fn the_drops_of_the_kernel_are_counted_once() {
    let (mut receiver, sender) = pair(2048);
    receiver.socket.set_recv_buffer_size(4096).unwrap();
    for _ in 0..200 {
        sender.send(&[b'x'; 1000]).unwrap();
    }
    let mut read = 0;
    while receiver.poll().unwrap() {
        read += receiver.datagrams().count();
    }
    assert!(read < 200);
    assert_eq!(receiver.take_kernel_drops() as usize, 200 - read);
    assert_eq!(receiver.take_kernel_drops(), 0);
}

#[test]
fn nothing_waits_for_others_where_each_comes_alone() {
    const REST: Duration = Duration::from_secs(30);
    let (receiver, sender) = pair(8);
    let mut receiver = receiver.without_batches();
    receiver.gather = Gather::resting(REST);
    let began = std::time::Instant::now();
    for _ in 0..3 {
        sender.send(b"a").unwrap();
        assert!(receiver.gather().unwrap());
    }
    assert!(began.elapsed() < REST);
}
