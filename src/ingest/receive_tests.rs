//! Tests the receiver with real datagrams over loopback.

use std::net::{SocketAddr, UdpSocket};

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
    // A truncated datagram does not affect the next.
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
fn source_addresses_are_returned() {
    for (address, batched) in [("127.0.0.1:0", true), ("127.0.0.1:0", false), ("[::1]:0", true)] {
        let socket = UdpSocket::bind(address).unwrap();
        let to = socket.local_addr().unwrap();
        let mut receiver = Receiver::new(socket.into(), 64);
        if !batched {
            receiver = receiver.without_batches();
        }
        let senders = [(); 2].map(|()| UdpSocket::bind(address).unwrap());
        let [first, second] = [0, 1].map(|at: usize| senders[at].local_addr().ok());
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
        expect(&mut receiver, &[first, second, first]);
        expect(&mut receiver, &[first, second]);
    }
}

#[test]
fn a_socket_that_was_shut_down_fails_however_it_is_waited_for() {
    let (mut receiver, sender) = pair(100);
    assert!(!receiver.wait_within(Duration::from_millis(1)).unwrap());
    sender.send(b"early").unwrap();
    assert!(receiver.wait_within(Duration::from_secs(5)).unwrap());
    assert_eq!(read(&receiver), [(b"early".to_vec(), false)]);
    // For other sockets, Linux returns an error.
    receiver.socket.connect(&sender.local_addr().unwrap().into()).unwrap();
    receiver.socket.shutdown(Shutdown::Read).unwrap();
    assert!(receiver.wait().is_err());
    assert!(receiver.wait_within(Duration::from_secs(5)).is_err());

    let (socket, _sender) = Socket::pair(Domain::UNIX, socket2::Type::DGRAM, None).unwrap();
    socket.shutdown(Shutdown::Read).unwrap();
    assert!(Receiver::new(socket, 100).wait().is_err());
}

#[test]
fn kernel_drops_are_counted_once() {
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
fn single_datagrams_are_read_at_once() {
    const REST: Duration = Duration::from_secs(30);
    let (receiver, sender) = pair(8);
    let mut receiver = receiver.without_batches();
    receiver.rest = REST;
    let began = std::time::Instant::now();
    for _ in 0..3 {
        sender.send(b"a").unwrap();
        assert!(receiver.gather().unwrap());
    }
    assert!(began.elapsed() < REST);
}

#[test]
fn a_sleep_is_not_followed_by_a_wait() {
    let (mut receiver, sender) = pair(8);
    sender.send(b"a").unwrap();
    assert!(receiver.gather().unwrap());
    receiver.rest = Duration::from_millis(200);
    let began = Instant::now();
    assert!(!receiver.gather().unwrap());
    assert!(began.elapsed() < receiver.socket.read_timeout().unwrap().unwrap());
}

#[test]
fn the_wait_for_close_datagrams_depends_on_the_buffer_and_their_number() {
    const REST: Duration = Duration::from_millis(200);
    let receiver = |domain, bytes| {
        let socket = Socket::new(domain, socket2::Type::DGRAM, None).unwrap();
        socket.set_recv_buffer_size(bytes).unwrap();
        Receiver::new(socket, 8)
    };
    assert_eq!(receiver(Domain::UNIX, 1 << 17).rest, Duration::ZERO);
    // Linux doubles the requested size.
    let small = receiver(Domain::IPV4, 1 << 16);
    assert_eq!(
        (small.rest_max, small.many, small.batch),
        (Duration::from_nanos(1 << 19), (1 << 17) / 4 / 2304, (1 << 17) / 4 / 2304)
    );
    let (mut receiver, sender) = pair(8);
    let [shortest, longest] = RESTS;
    (receiver.rest, receiver.rest_max) = (shortest, longest);
    (receiver.batch, receiver.many) = (8, 32);
    let mut rest_after = |datagrams| {
        (0..datagrams).for_each(|_| sender.send(b"a").map(drop).unwrap());
        let mut read = 0;
        while read < datagrams {
            assert!(receiver.gather().unwrap());
            read += receiver.datagrams().count();
        }
        // After a full read, it is not known yet that these were all.
        receiver.poll().unwrap();
        receiver.rest
    };
    let many = 32;
    assert_eq!([rest_after(many / 2), rest_after(many - 1)], [shortest; 2]);
    assert_eq!(rest_after(1), 2 * shortest);
    assert_eq!([(); 5].map(|()| rest_after(1))[3..], [longest; 2]);
    assert_eq!([rest_after(many), rest_after(many / 2 - 1)], [shortest, 2 * shortest]);
    assert_eq!([rest_after(many + 1), rest_after(1)], [shortest, 2 * shortest]);
    (0..8).for_each(|_| sender.send(b"a").map(drop).unwrap());
    assert!(receiver.gather().unwrap());
    assert_eq!((receiver.is_full(), receiver.next_rest()), (true, Some(Duration::ZERO)));
    let began = Instant::now();
    assert!(!receiver.gather().unwrap(), "a full read may have been the last one");
    assert!(began.elapsed() < receiver.socket.read_timeout().unwrap().unwrap());
    let mut gathered_within = |after| {
        receiver.rest = REST;
        std::thread::sleep(after);
        sender.send(b"a").unwrap();
        let began = Instant::now();
        assert!(receiver.gather().unwrap());
        began.elapsed()
    };
    assert!(gathered_within(Duration::ZERO) >= REST);
    assert!(gathered_within(REST) < REST, "the datagrams did not arrive in quick succession");
}

#[test]
fn kernel_counters_are_read() {
    assert!(procfs::net::snmp().is_ok(), "Linux has these counters");
}

/// Sends datagrams of this length in one buffer, like a relay.
fn send_joined(sender: &Socket, bytes: &[u8], length: u16) {
    let header = size_of::<usize>() + 2 * size_of::<i32>() + size_of::<u16>();
    let ids = [libc::SOL_UDP, libc::UDP_SEGMENT].map(i32::to_ne_bytes);
    let control = [&header.to_ne_bytes()[..], ids.as_flattened(), &length.to_ne_bytes()].concat();
    let parts = [std::io::IoSlice::new(bytes)];
    let message = socket2::MsgHdr::new().with_buffers(&parts).with_control(&control);
    sender.sendmsg(&message, 0).unwrap();
}

#[test]
fn joined_datagrams_are_returned_one_by_one() {
    let (mut receiver, sender) = pair(8);
    assert!(receiver.message_max > 8, "Linux joins datagrams since version 5.0");
    let sender = Socket::from(sender);
    receiver.bytes_max = 50_000;
    send_joined(&sender, &b"x".repeat(60_000), 1000);
    assert!(receiver.wait().unwrap());
    assert!(receiver.is_full());
    send_joined(&sender, b"first\nsecondthird", 6);
    send_joined(&sender, b"longer than eight, and so is the rest", 20);
    sender.send(b"alone").unwrap();
    let mut all = Vec::new();
    while all.len() < 6 {
        assert!(receiver.wait().unwrap());
        all.extend(read(&receiver));
    }
    let expected = [
        ("first\n", false),
        ("second", false),
        ("third", false),
        ("longer t", true),
        ("nd so is", true),
        ("alone", false),
    ];
    assert_eq!(all, expected.map(|(text, is_cut)| (text.as_bytes().to_vec(), is_cut)));
}

#[test]
fn dropped_joined_datagrams_are_counted() {
    let (mut receiver, sender) = pair(2048);
    receiver.socket.set_recv_buffer_size(65_536).unwrap();
    let sender = Socket::from(sender);
    for _ in 0..50 {
        send_joined(&sender, &vec![b'x'; 40_000], 1000);
    }
    let mut read = 0;
    while receiver.poll().unwrap() {
        read += receiver.datagrams().count();
    }
    assert!(read < 2000);
    assert_eq!(receiver.take_kernel_drops() as usize, 2000 - read);
}
