//! Tests forwarding over real sockets.

use std::net::UdpSocket;

use super::*;
use crate::event::LineRules;
use crate::ingest::Received;
use crate::relay::{Outlet, Queue};

const NOW: i64 = 1_480_876_707_352_348_928;

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let wait = Some(Duration::from_secs(10));
    socket.set_read_timeout(wait).unwrap();
    socket
}

fn outlet(to: &UdpSocket) -> Arc<Outlet> {
    Arc::new(Outlet::new(&to.local_addr().unwrap().to_string(), &[]))
}

fn forwarder(nodes: Vec<Arc<Outlet>>, passthrough: Passthrough) -> Forwarder {
    let routes = Routes::new(nodes, passthrough, Stamps::new(7, Precision::Nanoseconds));
    Forwarder::new(Arc::new(routes), Sorter::new(&LineRules::default(), Vec::new()), 73)
}

/// For each reason for which lines were not sent, returns its label and an example.
fn unsent(forwarder: &mut Forwarder) -> Vec<(&'static str, String)> {
    forwarder.report(0);
    let examples = forwarder.routes.notices.examples().into_iter();
    examples.map(|(label, example)| (label, example.line)).collect()
}

fn received(socket: &UdpSocket) -> String {
    let mut buffer = [0; 2000];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn every_node_receives_the_same_events_and_passthrough_all_other_lines() {
    let [first, second, rest] = [(); 3].map(|()| socket());
    let way = Passthrough::Udp(outlet(&rest));
    let mut forwarder = forwarder(vec![outlet(&first), outlet(&second)], way);
    // Forwarded unchanged, including its comment.
    let others = "# cpu\r\ncpu,host=a usage=1 5\r\n\nmem free=2\n";
    for datagram in [
        "a=b value=u 5\r\n",
        others,
        "c=d value=v\ncpu,host=b usage=2 5\nc=d value=v",
        "e=f value=w 6",
    ] {
        forwarder.add(Received::from(datagram), NOW);
    }
    assert_eq!(received(&rest), others);
    assert_eq!(received(&rest), "cpu,host=b usage=2 5\n");
    assert!(!forwarder.pack.is_empty());
    forwarder.flush();
    let expected = [
        "#eds-relay 1\na=b value=u 5\nc=d value=v 1480876707352348007\n",
        "#eds-relay 1\nc=d value=v 1480876707352349007\ne=f value=w 6",
    ];
    for node in [&first, &second] {
        let padding = |text: String| text.trim_end_matches('\n').to_owned();
        for expected in expected {
            assert_eq!(padding(received(node)), expected.trim_end());
        }
    }
    let totals = forwarder.routes.totals();
    assert_eq!((totals.received(), totals.events), (7, 4));
    assert_eq!((totals.passthrough.sent, totals.nodes[1].sent), (3, 4));
    assert_eq!(totals.lost(), 0);
}

#[test]
fn waiting_datagrams_are_packed_together_and_sent_without_further_ones() {
    let node = socket();
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    from.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
    let to = from.local_addr().unwrap();
    let receiver = Receiver::new(from.into(), 100);
    for line in ["a=b value=u 5", "a=b value=v 5", "a=b value=w 5"] {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(line.as_bytes(), to).unwrap();
    }
    let forwarder = forwarder(vec![outlet(&node)], Passthrough::Nowhere);
    let heartbeat = forwarder.routes.progress.watch("reader");
    let stop = CancellationToken::new();
    std::thread::scope(|scope| {
        scope.spawn(|| forwarder.run(receiver, &heartbeat, &stop));
        let expected = "#eds-relay 1\na=b value=u 5\na=b value=v 5\na=b value=w 5";
        assert_eq!(received(&node), expected);
        stop.cancel();
    });
}

#[test]
fn server_receives_only_lines_that_end_where_it_ends_them() {
    let queue = Arc::new(Queue::new(1000));
    let mut forwarder = forwarder(Vec::new(), Passthrough::Server(Arc::clone(&queue)));
    forwarder.add(Received::from("# a comment\n"), NOW);
    assert!(queue.take().is_none());
    let datagram = Received {
        bytes: b"cpu usage=1 5\r\n\xff\nmem free=2\\\nmem note=\"x\nmem free=2\n",
        ..Received::from("")
    };
    forwarder.add(datagram, NOW);
    assert_eq!(queue.take().unwrap().bytes, b"cpu usage=1 5\nmem free=2\n");
    forwarder.commit();
    let totals = forwarder.routes.totals();
    assert_eq!((totals.passthrough.queued(), totals.passthrough.lost()), (2, 0));
    for reason in [Rejection::NotUtf8, Rejection::TrailingBackslash, Rejection::QuoteUnclosed] {
        assert_eq!(totals.rejected[reason.index()], 1, "{reason}");
    }
    assert_eq!(unsent(&mut forwarder).len(), 3);
}

#[test]
fn event_sent_to_no_node_is_lost() {
    let unreachable = || Arc::new(Outlet::new("somewhere:1", &[]));
    let node = socket();
    for (nodes, lost) in
        [(vec![unreachable(), unreachable()], 1), (vec![unreachable(), outlet(&node)], 0)]
    {
        let mut forwarder = forwarder(nodes, Passthrough::Nowhere);
        forwarder.add(Received::from("a=b value=u 5\nx"), NOW);
        forwarder.flush();
        let totals = forwarder.routes.totals();
        assert_eq!(totals.nodes[0].dropped[Loss::NoAddress as usize], 1);
        assert_eq!(totals.lost(), lost);
    }
}

#[test]
fn truncated_datagram_loses_its_last_line_and_is_not_forwarded_whole() {
    let rest = socket();
    let mut forwarder = forwarder(Vec::new(), Passthrough::Udp(outlet(&rest)));
    let cut = Received { truncated: true, ..Received::from("cpu usage=1 5\ncpu usage=2") };
    forwarder.add(cut, NOW);
    assert_eq!(received(&rest), "cpu usage=1 5\n");
    assert_eq!(unsent(&mut forwarder)[0].0, "truncated");
    let totals = forwarder.routes.totals();
    assert_eq!(totals.rejected[Rejection::Truncated.index()], 1);
}

#[test]
fn datagram_that_passed_too_many_relays_is_not_forwarded() {
    let node = socket();
    let mut forwarder = forwarder(vec![outlet(&node)], Passthrough::Nowhere);
    for (passed, expected) in [(1, "#eds-relay 2\n"), (3, "#eds-relay 4\n")] {
        let datagram = format!("#eds-relay {passed}\na=b value=u 5\n");
        forwarder.add(Received::from(&*datagram), NOW);
        forwarder.flush();
        assert_eq!(received(&node), format!("{expected}a=b value=u 5"));
    }
    forwarder.add(Received::from("#eds-relay 4\na=b value=u 5\nx\n"), NOW);
    assert!(forwarder.pack.is_empty());
    forwarder.commit();
    let totals = forwarder.routes.totals();
    assert_eq!((totals.looped, totals.lost()), (2, 0));
    assert_eq!(unsent(&mut forwarder)[0].0, "looped");
}

#[test]
fn discarded_lines_are_not_lost() {
    let mut forwarder = forwarder(Vec::new(), Passthrough::Nowhere);
    forwarder.add(Received::from("gorets:1|c\ngorets:1|c"), NOW);
    forwarder.commit();
    let totals = forwarder.routes.totals();
    assert_eq!((totals.passthrough.discarded(), totals.lost()), (2, 0));
    assert_eq!(unsent(&mut forwarder), [("discarded", "gorets:1|c".to_owned())]);
}

#[test]
fn timestamps_differ_within_a_relay_and_between_relays() {
    let [first, second] = [1, 2].map(|number| Stamps::new(number, Precision::Nanoseconds));
    let mut all: Vec<_> =
        [&first, &second, &first, &first, &second].map(|stamps| stamps.stamp(NOW)).into();
    assert!(all.iter().all(|stamp| (NOW - 1000..NOW + 4000).contains(stamp)));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5);
    let coarse = Stamps::new(1, Precision::Milliseconds);
    assert_eq!(coarse.stamp(NOW), NOW / 1_000_000);
}

/// The passthrough server does not know about relays, so apart from the datagrams it must only receive empty lines.
#[test]
fn loop_is_probed_with_empty_lines_after_a_datagram_repeats() {
    let rest = socket();
    let outlet = outlet(&rest);
    let mut forwarder = forwarder(Vec::new(), Passthrough::Udp(Arc::clone(&outlet)));
    for second in 0..3 {
        for line in 0..10 {
            let line = format!("gorets:{second}{line}|c");
            forwarder.add(Received::from(&*line), NOW);
            assert_eq!(received(&rest), line);
        }
        forwarder.passthrough_loop.begin_second(&outlet);
    }
    for _ in 0..10 {
        forwarder.add(Received::from("gorets:1|c"), NOW);
        assert_eq!(received(&rest), "gorets:1|c");
    }
    forwarder.passthrough_loop.begin_second(&outlet);
    let probe = [(); 3].map(|()| received(&rest));
    assert!(probe.iter().all(|datagram| datagram.bytes().all(|byte| byte == b'\n')));
    // Empty lines from other senders are forwarded, and do not prove a loop.
    for lines in ["\n".repeat(2000), "\n".repeat(1500)] {
        forwarder.add(Received::from(&*lines), NOW);
        assert_eq!(received(&rest), lines);
    }
    forwarder.add(Received::from("gorets:1|c"), NOW);
    assert_eq!(received(&rest), "gorets:1|c");
    // The relay's own empty lines prove a loop if they arrive in order.
    for datagram in &probe {
        forwarder.add(Received::from(&**datagram), NOW);
    }
    forwarder.add(Received::from("gorets:1|c"), NOW);
    forwarder.commit();
    let passthrough = forwarder.routes.totals().passthrough;
    assert_eq!(passthrough.dropped[Loss::Looped as usize], 1);
}
