//! Restarts under load: of one node whose socket a service manager holds, and of the nodes of a cluster in turn.

use crate::prelude::*;

/// The grace is longer than a restart, so that minutes do not look idle while no events arrive.
const KEYS: [(&str, &str); 4] = [
    ("flush.grace", "8s"),
    ("flush.max_hold", "10m"),
    ("input.drain_timeout", "2m"),
    // Older versions that may be tested have a different default.
    ("input.measurement_tag", ""),
];
/// Each datagram has fifteen events. The rate suits debug builds on two busy cores.
const DATAGRAMS_PER_SECOND: u32 = 1500;
/// How many unread bytes a socket holds without drops under the default limits of the kernel.
pub(crate) const UNREAD_BYTES_MAX: u64 = 100 * 1024;
pub(crate) const PUBLISHED: Duration = Duration::from_secs(60);

/// Sends a datagram once the receiver's socket has fewer than `unread_bytes_max` unread bytes.
pub(crate) fn send_into_room(
    socket: &UdpSocket,
    datagram: &[u8],
    receiver: SocketAddr,
    unread_bytes_max: u64,
) {
    wait_for(
        "there is room in the socket",
        || udp_socket(receiver).map_or(0, |socket| socket.unread_bytes),
        |&unread| unread < unread_bytes_max,
    );
    socket.send_to(datagram, receiver).unwrap();
}

/// Sends a continuous load and computes the expected counts.
#[derive(Default)]
pub(crate) struct Loader {
    pub(crate) ended: AtomicBool,
    sent: AtomicU64,
}

impl Loader {
    /// Sends each datagram to the addresses that `to` returns for its number, once they have room, until `ended` is set.
    pub(crate) fn run(
        &self,
        unread_bytes_max: u64,
        to: impl Fn(u64) -> Vec<SocketAddr>,
    ) -> Expected {
        // More events than the test has time for.
        let load = load(0..3, 3_000_000, 100, 2000);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut expected = Expected::default();
        let began = Instant::now();
        for (number, datagram) in (0_u64..).zip(load.datagrams()) {
            if self.ended.load(Ordering::SeqCst) {
                break;
            }
            // Paced, so that the load lasts while nodes restart.
            let due = Duration::from_secs(number) / DATAGRAMS_PER_SECOND;
            thread::sleep(due.saturating_sub(began.elapsed()));
            for address in to(number) {
                send_into_room(&socket, &datagram, address, unread_bytes_max);
            }
            expected.receive(&datagram);
            self.sent.fetch_add(1, Ordering::SeqCst);
        }
        expected
    }

    #[track_caller]
    pub(crate) fn wait_sent(&self, more: u64) {
        let before = self.sent.load(Ordering::SeqCst);
        wait_for(
            "the load continues",
            || self.sent.load(Ordering::SeqCst),
            |&sent| sent >= before + more,
        );
    }
}

/// Ends a load when it is dropped, so that a failing test does not hang.
pub(crate) struct EndsWith<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn cumulative(points: &Points) -> u64 {
    let cumulative =
        points.iter().filter(|(point, _)| point.measurement == "cumulative_user_event");
    cumulative.map(|(_, count)| count).sum()
}

fn last_ledger(node: &Node) -> BTreeMap<String, u64> {
    let line = node.last_ledger();
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
        .collect()
}

#[test]
fn node_with_an_inherited_socket_restarts_under_load_without_loss() {
    for threads in ["1", "3"] {
        let site = Site::start();
        let mut node = site.node("one", &[&KEYS[..], &[("input.threads", threads)]].concat());
        node.hold_socket();
        node.run();
        let unread_bytes_max = node.held_buffer_bytes() / 2;
        let (loader, udp) = (Loader::default(), node.udp());
        let expected = thread::scope(|scope| {
            let ends = EndsWith(&loader.ended);
            let loading = scope.spawn(|| loader.run(unread_bytes_max, |_| vec![udp]));
            for _ in 0..5 {
                loader.wait_sent(500);
                assert_eq!(node.terminate().code(), Some(0));
                let ledger = last_ledger(&node);
                assert_eq!(ledger["received"], ledger["recorded"], "{ledger:?}");
                loader.wait_sent(100);
                let waiting = udp_socket(udp).unwrap();
                assert!(waiting.unread_bytes > 0, "{waiting:?}");
                node.run();
            }
            loader.wait_sent(500);
            drop(ends);
            loading.join().unwrap()
        });
        let expected = expected.points();
        site.wait_exact(&expected, PUBLISHED);
        assert_eq!(udp_socket(udp).unwrap().drops, 0);
        assert_eq!(node.metrics().count("eds_kernel_drops_inherited"), 0);
        site.assert_clean();
    }
}

#[test]
fn stopping_node_at_full_load_records_everything_in_its_socket() {
    const SENDERS: u64 = 3;
    let site = Site::start();
    let keys = [
        ("flush.grace", "1h"),
        ("flush.max_hold", "2h"),
        ("input.queue_events", "10000000"),
        ("input.queue_bytes", "4GiB"),
        ("input.drain_timeout", "10m"),
    ];
    let mut node = site.start_node("one", &keys);
    let ended = AtomicBool::new(false);
    let udp = node.udp();
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let ended = &ended;
            scope.spawn(move || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                // All events differ, so that the recorded events can be counted.
                let mut at = SEED_MINUTE_NS + i64::try_from(sender).unwrap() * MINUTE_NS;
                while !ended.load(Ordering::SeqCst) {
                    let line =
                        |at| format!("event_type=t{},product=p value=u{} {at}", at % 50, at % 900);
                    let lines: Vec<_> = (at..at + 15).map(line).collect();
                    at += 15;
                    // Sent as fast as possible. Datagrams are lost, as intended, while nothing is listening.
                    let _ = socket.send_to(lines.join("\n").as_bytes(), udp);
                }
            });
        }
        let _ends = EndsWith(&ended);
        eventually("the load is more than the node can read", SOON, || {
            let metrics = node.metrics();
            let [recorded, drops] = ["eds_events_recorded_total", "eds_kernel_drops_total"]
                .map(|name| metrics.count(name));
            when(recorded > 20_000 && drops > 0, (recorded, drops))
                .map_err(|seen| format!("{seen:?}"))
        });
        node.signal("TERM");
        let status = node.wait_for_exit(Duration::from_secs(300));
        assert_eq!(status.code(), Some(0));
    });
    let ledger = last_ledger(&node);
    let received = ledger["received"];
    assert_eq!(ledger["recorded"], received, "{ledger:?}");

    node.set("flush.grace", "300ms");
    node.apply_settings();
    node.launch();
    eventually("every received event is published", PUBLISHED, || {
        let published = cumulative(&site.points());
        when(published == received, published)
    });
    site.assert_clean();
}

/// Starts three nodes of the first binary, sends a load to the addresses from `to`, and changes to each next binary.
fn rolling_restart(
    hold: bool,
    binaries: &[Option<&Path>],
    to: impl Fn(u64, &[SocketAddr]) -> Vec<SocketAddr> + Sync,
) {
    let site = Site::start();
    let mut nodes: Vec<Node> = ["one", "two", "three"].map(|name| site.node(name, &KEYS)).into();
    for node in &mut nodes {
        if hold {
            node.hold_socket();
        }
        node.set_binary(binaries[0]);
        node.run();
    }
    let addresses: Vec<_> = nodes.iter().map(Node::udp).collect();
    let unread_bytes_max = if hold { nodes[0].held_buffer_bytes() / 2 } else { UNREAD_BYTES_MAX };
    let loader = Loader::default();
    let expected = thread::scope(|scope| {
        let ends = EndsWith(&loader.ended);
        let loading = scope.spawn(|| loader.run(unread_bytes_max, |number| to(number, &addresses)));
        for binary in &binaries[1..] {
            for node in &mut nodes {
                loader.wait_sent(500);
                assert_eq!(node.terminate().code(), Some(0));
                let ledger = last_ledger(node);
                assert_eq!(ledger["received"], ledger["recorded"], "{ledger:?}");
                loader.wait_sent(100);
                node.set_binary(*binary);
                node.run();
            }
        }
        loader.wait_sent(500);
        drop(ends);
        loading.join().unwrap()
    });
    let expected = expected.points();
    site.wait_exact(&expected, PUBLISHED);
    for node in &nodes {
        node.wait_count("eds_events_late_total", |late| late == 0);
    }
    site.assert_clean();
}

/// Each node misses a different one of every hundred datagrams.
fn copies(number: u64, nodes: &[SocketAddr]) -> Vec<SocketAddr> {
    let missing = usize::try_from(number % 100).unwrap();
    let others = nodes.iter().enumerate();
    others.filter(|(index, _)| *index != missing).map(|(_, address)| *address).collect()
}

#[test]
fn rolling_restart_of_nodes_with_copies_is_exact() {
    rolling_restart(false, &[None; 3], copies);
}

/// Run by `scripts/upgrade-from COMMIT`, which builds the older binary.
#[test]
#[ignore = "needs an older binary: scripts/upgrade-from COMMIT"]
fn upgrade_and_downgrade_node_by_node_are_exact() {
    let older = std::env::var("OLDER_EDS").expect("OLDER_EDS names the older binary");
    let older = Some(Path::new(&older));
    rolling_restart(false, &[older, None, older], copies);
}

#[test]
fn rolling_restart_of_nodes_with_shares_is_exact() {
    rolling_restart(true, &[None; 3], |number, nodes| {
        let share = usize::try_from(number).unwrap() % nodes.len();
        vec![nodes[share]]
    });
}

#[test]
fn earlier_drops_of_an_inherited_socket_are_counted_separately() {
    let mut node = Node::new("one", &[]);
    node.hold_socket();
    let (socket, udp) = (UdpSocket::bind("127.0.0.1:0").unwrap(), node.udp());
    let dropped = |more: u64| {
        let before = udp_socket(udp).unwrap().drops;
        loop {
            socket.send_to(&[b'#'; 1000], udp).unwrap();
            let drops = udp_socket(udp).unwrap().drops;
            if drops >= before + more {
                return drops - before;
            }
        }
    };
    let before = dropped(7);
    node.run();
    let read = |name| node.metrics().count(name);
    assert_eq!(read("eds_kernel_drops_inherited"), before);
    assert_eq!(read("eds_kernel_drops_total"), 0);
    assert!(node.log().contains("before this process started reading it"), "{}", node.log());

    wait_for(
        "the node has read its socket",
        || udp_socket(node.udp()).unwrap().unread_bytes,
        |&unread| unread == 0,
    );
    node.signal("STOP");
    let meanwhile = dropped(5);
    node.signal("CONT");
    wait_for(
        "the new drops are counted as its own",
        || read("eds_kernel_drops_total"),
        |&counted| counted == meanwhile,
    );
    assert_eq!(read("eds_kernel_drops_inherited"), before);
}

#[test]
fn refused_node_leaves_datagrams_in_its_socket_for_the_next() {
    let policy = |policy| ["CONFIG", "SET", "maxmemory-policy", policy];
    let site = Site::start();
    let mut node = site.node("one", &[("flush.grace", "300ms")]);
    node.hold_socket();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut expected = Expected::default();
    for number in 0..20 {
        let line = format!("a=b value=u{number} {}", SEED_MINUTE_NS + number);
        socket.send_to(line.as_bytes(), node.udp()).unwrap();
        expected.receive(line.as_bytes());
    }
    site.redis.query::<String>(&policy("allkeys-lru"));
    node.launch();
    assert_eq!(node.wait_for_exit(SOON).code(), Some(1));
    assert!(node.log().contains("noeviction"), "{}", node.log());
    site.redis.query::<String>(&policy("noeviction"));
    node.launch();
    site.wait_exact(&expected.points(), SOON);
}
