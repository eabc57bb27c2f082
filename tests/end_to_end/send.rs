//! `eds send`: its output, its exit codes, and the datagrams that it sends.

use std::io::{BufRead, BufReader, Read, Write};

use testing::process::wait;

use crate::prelude::*;

fn receiver() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Stops the sender with a signal and asserts that its expected counts match the received datagrams exactly.
fn assert_ends_as_expected(
    mut sender: Child,
    name: &str,
    code: i32,
    socket: &UdpSocket,
    mut came: Expected,
    file: &std::path::Path,
) {
    signal(sender.id(), name);
    assert_eq!(wait(&mut sender, SOON).code(), Some(code));
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut buffer = vec![0; 65_536];
    while let Ok(length) = socket.recv(&mut buffer) {
        came.receive(&buffer[..length]);
    }
    let written = read_back::written(&fs::read(file).unwrap());
    assert!(!written.is_empty());
    assert_eq!(written, came.points());
    let mut stderr = String::new();
    sender.stderr.unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("events, ") && stderr.contains("stopped by a signal"), "{stderr}");
}

fn sending(to: &str, more: &[&str]) -> (Child, TempDir) {
    let directory = TempDir::new().unwrap();
    let sender = eds()
        .args(["send", "--to", to, "--expected"])
        .arg(directory.path().join("expected"))
        .args(more)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    (sender.unwrap(), directory)
}

#[test]
fn stopped_load_writes_the_expected_counts_of_sent_events() {
    let (socket, to) = receiver();
    let (sender, directory) = sending(&to, &["--events", "1000000", "--rate", "3000"]);
    let mut came = Expected::default();
    for _ in 0..50 {
        came.receive(&receive(&socket));
    }
    let file = directory.path().join("expected");
    assert_ends_as_expected(sender, "INT", 130, &socket, came, &file);
}

#[test]
fn send_stops_reading_an_endless_pipe_on_a_signal() {
    let (socket, to) = receiver();
    let (mut sender, directory) = sending(&to, &[]);
    let mut pipe = sender.stdin.take().unwrap();
    // The last line is incomplete.
    let lines = "a=1 value=x 60000000000\na=1 value=y 60000000000\na=1 value=";
    pipe.write_all(lines.as_bytes()).unwrap();
    let mut came = Expected::default();
    came.receive(&receive(&socket));
    let file = directory.path().join("expected");
    assert_ends_as_expected(sender, "TERM", 143, &socket, came, &file);
    drop(pipe);
}

#[test]
fn refused_port_is_an_error_with_its_address() {
    let (_socket, to) = receiver();
    let closed = format!("127.0.0.1:{}", free_port());
    let arguments = ["send", "--events", "100", "--wait", "10ms", "--to", &to, "--to", &closed];
    let output = eds().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let refused = format!("7 copies refused by {closed}, where no process is listening");
    assert_contains(&stderr, ["7 copies sent", &refused, "waiting up to 0.01 s"]);
    assert!(!stderr.contains("events not sent to any address"), "{stderr}");
    assert_eq!(stderr.matches("continuing").count(), 1, "{stderr}");
}

#[test]
fn events_refused_by_every_address_are_not_expected() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("expected");
    let closed = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let output = eds()
        .args(["send", "--events", "100", "--wait", "0s", "--quiet"])
        .args(["--to", &closed[0], "--to", &closed[1], "--expected"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    for words in [
        "0 copies sent",
        "100 events not sent to any address",
        &format!("7 copies refused by {}", closed[0]),
        &format!("7 copies refused by {}", closed[1]),
    ] {
        assert!(stderr.contains(words), "{words:?} is not in: {stderr}");
    }
    assert!(!stderr.contains("failed"), "{stderr}");
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn send_waits_for_nodes_that_are_starting() {
    let ports = [free_port(), free_port()];
    let to = ports.map(|port| format!("127.0.0.1:{port}"));
    let mut sender = eds()
        .args(["send", "--events", "100", "--wait", "1min"])
        .args(["--to", &to[0], "--to", &to[1]])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(sender.stderr.take().unwrap()).lines();
    let mut wait_for = |words: &str| {
        let found = lines.find(|line| line.as_ref().unwrap().contains(words));
        found.unwrap_or_else(|| panic!("{words:?} was not printed")).unwrap()
    };
    // Each node starts listening once the sender waits for it.
    let nodes = to.each_ref().map(|to| {
        wait_for(&format!("no process is listening on {to} yet; waiting"));
        UdpSocket::bind(to).unwrap()
    });
    let summary = wait_for("copies sent");
    assert!(summary.contains("14 copies sent"), "{summary}");
    assert!(wait(&mut sender, SOON).success());
    for node in nodes {
        for _ in 0..7 {
            receive(&node);
        }
    }
}

#[test]
fn timestamps_that_a_node_rejects_cause_a_warning() {
    let (_socket, to) = receiver();
    for (start, warns) in [("2016-12-04T18:38:00Z", true), ("-10m", false)] {
        let arguments = ["send", "--events", "20", "--to", &to, "--start", start];
        let output = eds().args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        for words in [
            "warning: line 1 has the timestamp 2016-12-04T18:38:",
            "input.max_age",
            "20 events with a time",
        ] {
            assert_eq!(stderr.contains(words), warns, "{stderr}");
        }
    }
}

#[test]
fn terminal_input_is_announced_and_not_overwritten() {
    let (socket, to) = receiver();
    let binary = eds().get_program().to_owned();
    let command = format!("{} send --to {to}", binary.to_str().unwrap());
    // `script` runs the command in a terminal.
    let mut typing = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = typing.stdin.take().unwrap();
    keys.write_all(b"a=1 value=x\n").unwrap();
    let line = receive(&socket);
    let stamp = line.strip_prefix(b"a=1 value=x ");
    assert_eq!(stamp.map(<[u8]>::len), Some(19), "no timestamp in {line:?}");
    keys.write_all(b"\x04").unwrap();
    assert_eq!(wait(&mut typing, SOON).code(), Some(0));
    let mut shown = String::new();
    typing.stdout.unwrap().read_to_string(&mut shown).unwrap();
    assert!(shown.contains("type") && shown.contains("Ctrl-D"), "{shown}");
    assert!(shown.contains("1 events, 1 datagrams"), "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}
