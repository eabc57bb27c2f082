//! Real datagrams over loopback, and what the kernel says when they get nowhere.

use std::net::UdpSocket;

use super::*;

fn receiver() -> (UdpSocket, Outlet) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let outlet = Outlet::new(&socket.local_addr().unwrap().to_string(), &[]);
    (socket, outlet)
}

fn pack(lines: &[&str]) -> Pack {
    let mut pack = Pack::new(33);
    assert!(lines.iter().all(|line| pack.add(line.as_bytes(), None, 0)));
    pack
}

/// By one call for all datagrams, and by one for each.
#[test]
fn a_pack_arrives_as_its_datagrams_whether_the_kernel_cuts_it_or_not() {
    let (socket, outlet) = receiver();
    let pack = pack(&["a=1", "b=2 value=user", "c=3", "d=4 value=user", "e=5"]);
    let expected: Vec<_> = pack.datagrams().map(|(bytes, _)| bytes.to_vec()).collect();
    assert_eq!(expected.len(), 3);
    for cuts in [true, false] {
        let link = outlet.link().unwrap();
        link.segments.store(cuts, Ordering::Relaxed);
        let mut taken = [false; 3];
        let outcome = outlet.send(&pack, &mut taken);
        assert_eq!((outcome.sent, outcome.lost(), taken), (5, 0, [true; 3]));
        assert_eq!(link.segments.load(Ordering::Relaxed), cuts, "the kernel refuses");
        let mut buffer = [0; 100];
        for expected in &expected {
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected);
        }
    }
    assert!(outlet.is_up());
    assert_eq!((outlet.datagrams(), outlet.refusals()), (6, 0));
}

#[test]
fn nobody_who_listens_is_told_and_takes_no_time() {
    let (socket, outlet) = receiver();
    drop(socket);
    let pack = pack(&["a=1", "b=2 value=user"]);
    for _ in 0..10 {
        let outcome = outlet.send(&pack, &mut [false; 1]);
        assert_eq!(outcome.sent, 2, "the kernel takes it, as every datagram");
    }
    assert_eq!(outlet.refusals(), 9, "the next send reports it");
    assert!(!outlet.is_up());
}

#[test]
fn without_an_address_lines_are_dropped() {
    let outlet = Outlet::new("somewhere:8094", &[]);
    let outcome = outlet.send(&pack(&["a=1", "b=2"]), &mut [false]);
    assert_eq!(outcome.dropped[Loss::NoAddress as usize], 2);
    assert!(!outlet.is_up());
}

#[test]
fn what_is_too_long_for_a_datagram_is_dropped() {
    let (_socket, outlet) = receiver();
    let mut pack = Pack::new(100);
    assert!(pack.add(&vec![b'x'; 65_520], None, 0));
    let outcome = outlet.send(&pack, &mut [false]);
    assert_eq!(outcome.dropped[Loss::Unreachable as usize], 1);
    assert!(outlet.is_up(), "others find their way");
}

#[test]
fn an_address_is_left_for_what_it_answers_and_for_one_that_can_be_had() {
    let (socket, outlet) = receiver();
    let first = outlet.address();
    // No socket of ours may be connected to it.
    outlet.connect("255.255.255.255:9".parse().unwrap());
    assert!(outlet.address() == first && outlet.is_up() && outlet.has_good_address());
    drop(socket);
    for _ in 0..2 {
        outlet.send(&pack(&["a=1"]), &mut [false]);
    }
    assert!(!outlet.has_good_address());
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    outlet.connect(other.local_addr().unwrap());
    assert!(outlet.has_good_address(), "it is judged by itself");
    assert!(!outlet.is_up(), "lines were lost lately");
}

#[test]
fn address_of_the_relay_itself_is_never_sent_to() {
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
fn an_address_that_works_stays_and_one_that_does_not_makes_room() {
    let [a, b, v6] = ["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"].map(|at| at.parse().unwrap());
    let check = |found: &[SocketAddr], in_use, works, expected: &[SocketAddr]| {
        let others = others(found.to_vec(), in_use, works);
        assert_eq!(others, expected, "{found:?} {in_use:?}");
    };
    check(&[v6, a, b], None, false, &[a, b, v6]);
    check(&[v6, a, b], Some(b), true, &[]);
    check(&[v6, a, b], Some(a), false, &[b, v6, a]);
    check(&[v6, a, b], Some(v6), false, &[a, b, v6]);
    check(&[a, a], Some(a), false, &[a]);
    check(&[b], Some(a), true, &[b]);
    check(&[], Some(a), false, &[]);
}
