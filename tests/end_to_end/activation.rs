//! Sockets passed to a node by `systemd-socket-activate`: which ones it uses or rejects, and what it logs.

use std::fmt::Display;

use testing::process;

use crate::prelude::*;
use crate::support::node::untouched;

/// A node that `systemd-socket-activate` starts as soon as data arrives at one of its sockets.
struct Activated {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Activated {
    fn start(node: &Node, arguments: &[&str], sockets: &[impl Display]) -> Self {
        node.write_config();
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = untouched("systemd-socket-activate");
        command.args(arguments);
        for address in sockets {
            command.arg(format!("--listen={address}"));
        }
        let child = command
            .arg(eds().get_program())
            .args(["run", "--config"])
            .arg(node.config_path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .expect("systemd-socket-activate (Debian package systemd) is installed");
        Self { child, log }
    }

    fn wait_for_exit(&mut self) -> (ExitStatus, String) {
        let status = process::wait(&mut self.child, SOON);
        (status, std::fs::read_to_string(self.log.path()).unwrap())
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

fn send(to: SocketAddr, number: i64) {
    eventually("a process is listening", SOON, || when(udp_socket(to).is_some(), to));
    let line = format!("a=b value=u {}", SEED_MINUTE_NS + number);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(line.as_bytes(), to).unwrap();
}

fn listening_on(addresses: &[SocketAddr]) -> Node {
    let mut node = Node::new("one", &[("input.threads", "2")]);
    node.listen_on(addresses);
    node
}

#[test]
fn node_uses_inherited_sockets_and_binds_the_others() {
    let [passed, also_passed, bound] = [free_address(), free_address(), free_address()];
    let node = listening_on(&[bound, also_passed, passed]);
    let sockets = [passed, also_passed];
    let mut activated = Activated::start(&node, &["--datagram"], &sockets);
    // The first datagram starts the node and must not be lost.
    send(passed, 0);
    eventually("the node responds", SOON, || node.get("/readyz"));
    for (number, address) in (1..).zip([passed, also_passed, bound]) {
        send(address, number);
    }
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 4);
    process::signal(activated.child.id(), "TERM");
    let (status, log) = activated.wait_for_exit();
    assert!(status.success(), "{log}");
    assert!(log.contains("inherited=2"), "{log}");
}

#[test]
fn inherited_unix_socket_remains_for_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("eds.sock");
    let mut node = Node::new("one", &[]);
    node.listen_on(&[format!("unix:{}", path.display())]);
    let sender = UnixDatagram::unbound().unwrap();
    let mut activated = Activated::start(&node, &["--datagram"], &[path.display()]);
    eventually("a process is listening", SOON, || sender.send_to(b"a=b value=u 1", &path));
    eventually("the node responds", SOON, || node.get("/readyz"));
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 1);
    process::signal(activated.child.id(), "TERM");
    let (status, log) = activated.wait_for_exit();
    assert!(status.success(), "{log}");
    assert!(path.exists(), "the socket file belongs to the service manager");
}

#[test]
fn missing_inherited_sockets_are_reported() {
    let node = Node::new("one", &[]);
    node.write_config();
    let run = |variables: &str| {
        let script = format!("{variables} exec \"$@\"");
        let output = untouched("sh")
            .args(["-c", &script, "sh"])
            .arg(eds().get_program())
            .args(["run", "--config"])
            .arg(node.config_path())
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("LISTEN_FDS"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    };
    run("LISTEN_PID=$$ LISTEN_FDS=1");
    run("LISTEN_PID=$$ LISTEN_FDS=4294967295");
    run("LISTEN_PID=$$ LISTEN_FDS=-1");
    run("LISTEN_PID=none LISTEN_FDS=1");
}

/// The node neither spins nor floods its log, and it reports that it is not ready.
#[test]
fn failing_socket_is_reported_and_retried_rarely() {
    let mut node = Node::new("one", &[]);
    node.hold_socket();
    node.run();
    node.shut_down_held_socket();
    node.wait_answer("/readyz", 503, "cannot read from a socket");
    assert_eq!(node.metrics().count("eds_listeners_failing"), 1);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let failures = node.log().matches("cannot read from a socket").count();
    assert_eq!(failures, 1, "{}", node.log());
    let read = node.metrics().count("eds_datagrams_received_total");
    assert!(read < 100, "{read} datagrams counted, but none were sent");
}

#[test]
fn node_listens_on_ipv4_and_ipv6() {
    let port = free_port();
    let [any, any_v4] = ["::", "0.0.0.0"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    for listen in [&[any][..], &[any, any_v4], &[any_v4, any]] {
        let mut node = Node::new("one", &[]);
        node.listen_on(listen);
        node.run();
        for (number, to) in (0..).zip(["127.0.0.1", "::1"]) {
            let from = UdpSocket::bind((to, 0)).unwrap();
            let line = format!("a=b value=u {}", SEED_MINUTE_NS + number);
            from.send_to(line.as_bytes(), (to, port)).unwrap();
        }
        eventually("both events are recorded", SOON, || {
            let recorded = node.metrics().count("eds_events_recorded_total");
            when(recorded == 2, format!("{recorded} at {listen:?}"))
        });
    }
}
