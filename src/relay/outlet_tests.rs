//! Tests with real datagrams over loopback, and errors from the kernel.

use std::net::UdpSocket;

use super::*;

fn receiver() -> (UdpSocket, Outlet) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let outlet = Outlet::new(&socket.local_addr().unwrap().to_string(), &[]);
    (socket, outlet)
}

/// Sends a pack. Returns its counts and which datagrams the kernel accepted.
fn send(outlet: &Outlet, pack: &Pack) -> (Destination, u64) {
    let mut events = Destination::default();
    let taken = outlet.send(pack, &mut events);
    (events, taken)
}

fn pack(lines: &[&str]) -> Pack {
    let mut pack = Pack::new(33);
    assert!(lines.iter().all(|line| pack.add(line.as_bytes(), None, 0)));
    pack
}

/// Checks sending with one call for all datagrams, and with one call per datagram.
#[test]
fn pack_arrives_as_its_datagrams_whether_or_not_the_kernel_cuts_it() {
    let (socket, outlet) = receiver();
    let pack = pack(&["a=1", "b=2 value=user", "c=3", "d=4 value=user", "e=5"]);
    let expected: Vec<_> = pack.datagrams().map(|(bytes, _)| bytes.to_vec()).collect();
    assert_eq!(expected.len(), 3);
    for cuts in [true, false] {
        let link = outlet.link().unwrap();
        link.segments.store(cuts, Ordering::Relaxed);
        let (events, taken) = send(&outlet, &pack);
        assert_eq!((events.sent, events.lost(), taken & 7), (5, 0, 7));
        assert_eq!((events.datagrams, events.refusals), (3, 0));
        assert_eq!(
            link.segments.load(Ordering::Relaxed),
            cuts,
            "the kernel does not support segmentation"
        );
        let mut buffer = [0; 100];
        for expected in &expected {
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected);
        }
    }
    assert!(outlet.is_up());
}

#[test]
fn port_without_a_listener_is_reported_and_does_not_block() {
    let (socket, outlet) = receiver();
    drop(socket);
    let pack = pack(&["a=1", "b=2 value=user"]);
    let mut events = Destination::default();
    for sent in 1..=10 {
        outlet.send(&pack, &mut events);
        assert_eq!(events.sent, 2 * sent, "the kernel accepts every datagram");
    }
    assert_eq!(events.refusals, 9, "each send reports the failure of the previous one");
    assert!(!outlet.is_up());
}

#[test]
fn without_an_address_lines_are_dropped() {
    let outlet = Outlet::new("somewhere:8094", &[]);
    let (events, taken) = send(&outlet, &pack(&["a=1", "b=2"]));
    assert_eq!((events.dropped[Loss::NoAddress as usize], taken), (2, 0));
    assert!(!outlet.is_up());
}

#[test]
fn line_too_long_for_a_datagram_is_dropped() {
    let (_socket, outlet) = receiver();
    let mut pack = Pack::new(100);
    assert!(pack.add(&vec![b'x'; 65_520], None, 0));
    let (events, taken) = send(&outlet, &pack);
    assert_eq!((events.dropped[Loss::Unreachable as usize], taken), (1, 0));
    assert!(outlet.is_up(), "a line that is too long does not mean that the node is down");
}

#[test]
fn address_that_refuses_is_replaced_by_one_that_connects() {
    let (socket, outlet) = receiver();
    let first = outlet.address();
    // The kernel refuses to connect to the broadcast address without SO_BROADCAST.
    outlet.connect("255.255.255.255:9".parse().unwrap());
    assert!(outlet.address() == first && outlet.is_up() && outlet.has_good_address());
    drop(socket);
    for _ in 0..2 {
        send(&outlet, &pack(&["a=1"]));
    }
    assert!(!outlet.has_good_address());
    let replacement = UdpSocket::bind("127.0.0.1:0").unwrap();
    outlet.connect(replacement.local_addr().unwrap());
    assert!(outlet.has_good_address(), "the new address has not failed");
    assert!(!outlet.is_up(), "a send failed recently");
}

#[test]
fn relay_never_sends_to_itself() {
    let check = |listens: &str, to: &str, expected: bool| {
        let listens = [listens.parse().unwrap()];
        let outlet = Outlet::new(to, &listens);
        let to = to.parse().unwrap();
        assert_eq!(outlet.address().is_none(), expected, "{listens:?} {to}");
        assert_eq!(outlet.leads_back(), expected.then_some(to));
    };
    check("127.0.0.1:8092", "127.0.0.1:8092", true);
    check("127.0.0.1:8092", "127.0.0.1:8094", false);
    check("127.0.0.1:8092", "127.0.0.2:8092", false);
    check("127.0.0.1:8092", "0.0.0.0:8092", true);
    check("127.0.0.1:8092", "[::ffff:127.0.0.1]:8092", true);
    check("0.0.0.0:8092", "127.0.0.2:8092", true);
    check("0.0.0.0:8092", "192.0.2.1:8092", false);
    check("[::]:8092", "127.0.0.1:8092", true);
    check("[::]:8092", "[::1]:8092", true);
    check("0.0.0.0:8092", "[::1]:8092", false);
    check("unix:/run/x.sock", "127.0.0.1:8092", false);
}

#[test]
fn working_address_is_kept_and_a_failing_one_is_tried_last() {
    let [a, b, v6] = ["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"].map(|at| at.parse().unwrap());
    let check = |found: &[SocketAddr], in_use, works, expected: &[SocketAddr]| {
        let candidates = candidates(found.to_vec(), in_use, works);
        assert_eq!(candidates, expected, "{found:?} {in_use:?}");
    };
    check(&[v6, a, b], None, false, &[a, b, v6]);
    check(&[v6, a, b], Some(b), true, &[]);
    check(&[v6, a, b], Some(a), false, &[b, v6, a]);
    check(&[v6, a, b], Some(v6), false, &[a, b, v6]);
    check(&[a, a], Some(a), false, &[a]);
    check(&[b], Some(a), true, &[b]);
    check(&[], Some(a), false, &[]);
}
