//! Sends loads over real sockets to two receivers, and compares the expected counts with the received events, counted in a
//! different way.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::num::NonZeroU32;
use std::thread::JoinHandle;
use std::time::Duration;

use loadgen::{Options, Summary};

/// The time without datagrams after which a receiver considers the sender finished.
const SILENCE: Duration = Duration::from_secs(2);

fn receiver(bind: &str) -> (String, JoinHandle<Vec<Vec<u8>>>) {
    let socket = UdpSocket::bind(bind).unwrap();
    // As large as the system allows, to hold the datagrams that arrive while this thread waits for a processor.
    socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let received = std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        let mut datagrams = Vec::new();
        while let Ok(length) = socket.recv(&mut buffer) {
            datagrams.push(buffer[..length].to_vec());
        }
        datagrams
    });
    (address, received)
}

fn newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

/// Sends to two receivers, one of them over IPv6. Returns the summary and the datagrams that each received.
fn send_to_two(options: Options, input: &'static str) -> (Summary, [Vec<Vec<u8>>; 2]) {
    let (first, first_received) = receiver("127.0.0.1:0");
    let (second, second_received) = receiver("[::1]:0");
    let options = Options { to: vec![first, second], quiet: true, ..options };
    let rules = loadgen::LineRules { end: newline, lacks_timestamp: |_| false };
    let summary = loadgen::run_from(&options, input.as_bytes(), rules).unwrap();
    (summary, [first_received.join().unwrap(), second_received.join().unwrap()])
}

fn lines(datagrams: &[Vec<u8>]) -> Vec<String> {
    let text = |datagram: &Vec<u8>| String::from_utf8(datagram.clone()).unwrap();
    let lines = |text: String| text.split('\n').map(str::to_owned).collect::<Vec<_>>();
    datagrams.iter().map(text).flat_map(lines).collect()
}

/// Returns the points for these lines, counted with sets of users and of (user, timestamp) pairs per minute per series.
fn counted_with_sets<'a>(lines: impl Iterator<Item = &'a String>) -> String {
    let mut sets: BTreeMap<_, (BTreeSet<_>, BTreeSet<_>)> = BTreeMap::new();
    for line in lines {
        let (series, rest) = line.split_once(" value=").unwrap();
        let (user, nanos) = rest.split_once(' ').unwrap();
        let second: i64 = nanos[..nanos.len() - 9].parse().unwrap();
        let (users, pairs) = sets.entry((series, second - second % 60)).or_default();
        users.insert(user);
        pairs.insert((user, nanos));
    }
    let mut points = BTreeSet::new();
    for ((series, second), (users, pairs)) in sets {
        let cumulative = pairs.len();
        points.insert(format!(
            "cumulative_user_event,{series} value={cumulative} {second}000000000\n"
        ));
        points.insert(format!(
            "unique_user_event,{series} value={} {second}000000000\n",
            users.len()
        ));
    }
    points.into_iter().collect()
}

fn load() -> Options {
    Options {
        events: Some(20_000),
        seed: Some(7),
        rate: 20_000,
        series: NonZeroU32::new(12).unwrap(),
        users: NonZeroU32::new(300).unwrap(),
        minutes: NonZeroU32::new(3).unwrap(),
        start: Some(1_480_876_707_352_348_928),
        repeat: 0.05,
        ..Options::default()
    }
}

#[test]
fn the_expected_counts_are_those_of_all_receivers_together() {
    for (shuffle, realtime) in [(false, false), (true, false), (false, true)] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("expected");
        let options =
            Options { drop_rate: 0.3, expected: Some(file.clone()), shuffle, realtime, ..load() };
        let (summary, received) = send_to_two(options, "");

        let copies = received.iter().map(Vec::len).sum::<usize>() as u64;
        assert_eq!(copies, summary.copies_sent, "the receivers lost datagrams");
        let [first, second] = received.map(|datagrams| lines(&datagrams));
        let counted = counted_with_sets(first.iter().chain(&second));
        assert_eq!(std::fs::read_to_string(file).unwrap(), counted);

        assert_eq!(summary.events, 20_000);
        assert_eq!(summary.copies_sent + summary.copies_dropped, 2 * summary.datagrams);
        let dropped = summary.copies_dropped * 100 / (2 * summary.datagrams);
        assert!((25..35).contains(&dropped), "{summary}");
        let unsent = summary.events_unsent * 100 / summary.events;
        assert!((6..12).contains(&unsent), "{summary}");
        assert_ne!(
            counted_with_sets(first.iter()),
            counted,
            "the dropped copies made no difference"
        );
    }
}

#[test]
fn a_seed_sends_the_same_bytes_again() {
    let options = Options { drop_rate: 0.1, events: Some(3_000), ..load() };
    let (_, once) = send_to_two(options.clone(), "");
    let (_, again) = send_to_two(options, "");
    assert_eq!(once, again);
}

#[test]
fn lines_from_input_arrive_unchanged() {
    let input = "b=1,a=2 value=x 60000000000\r\n\n# odd \\ line\nb=1,a=2 value=y 60000000000";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("expected");
    let options = Options { expected: Some(file.clone()), ..Options::default() };
    let (summary, received) = send_to_two(options, input);
    let expected =
        ["b=1,a=2 value=x 60000000000\r", "# odd \\ line", "b=1,a=2 value=y 60000000000"];
    for datagrams in &received {
        assert_eq!(lines(datagrams), expected);
    }
    assert_eq!((summary.events, summary.events_unsent), (3, 0));
    let expected = "cumulative_user_event,a=2,b=1 value=2 60000000000\n\
                    unique_user_event,a=2,b=1 value=2 60000000000\n";
    assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
}
