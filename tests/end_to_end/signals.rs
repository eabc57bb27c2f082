//! Signals that stop a node or reload its configuration, and the status that systemd receives.

use crate::prelude::*;

#[test]
fn stopping_node_releases_its_claims() {
    let mut site = Site::start();
    let keys = [("flush.lease", "10m"), ("flush.grace", "300ms")];
    let mut first = site.start_node("first", &keys);
    let mut sender = Sender::paced_by(&first);
    site.writes.set(Mode::Refuse);
    sender.send(format!("event_type=a,product=b value=user {SEED_MINUTE_NS}"));
    first.wait_count("eds_backlog_unsent", |count| count == 1);
    assert_eq!(first.terminate().code(), Some(0));
    site.writes.set(Mode::Pass);
    let _second = site.start_node("second", &keys);
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn sighup_reloads_the_log_level() {
    let mut node = Node::start("one", &[("log.level", "warn")]);
    assert!(!node.log().contains("INFO"), "{}", node.log());
    node.set("log.level", "info");
    node.write_config();
    node.signal("HUP");
    node.wait_log("INFO");
    assert!(!node.log().contains("keys="), "{}", node.log());

    node.set("flush.grace", "7s");
    node.write_config();
    node.signal("HUP");
    node.wait_log("keys=\"flush.grace\"");

    node.set("log.level", "loud");
    node.write_config();
    node.signal("HUP");
    node.wait_log("loud");
    node.wait_ready();
}

#[test]
fn the_environment_replaces_the_log_level() {
    let mut node = Node::new("one", &[("log.level", "error")]);
    node.set_environment("EDS_LOG", "event_data_service=debug");
    node.run();
    node.wait_log("INFO");
    node.set("log.level", "warn");
    node.write_config();
    node.signal("HUP");
    node.wait_log("the environment sets the log filter");
}

#[test]
fn node_and_relay_report_their_status_to_systemd() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 1024];
    // Events are sent continuously, since the kernel reports a refusal only with the next datagram.
    let mut wait = |part: &str, to: Option<SocketAddr>| {
        eventually(part, SOON, || {
            if let Some(to) = to {
                sender.send_to(b"event_type=a value=b", to).unwrap();
            }
            let text = match socket.recv(&mut buffer) {
                Ok(length) => String::from_utf8_lossy(&buffer[..length]).into_owned(),
                Err(error) => error.to_string(),
            };
            when(text.contains(part), text)
        });
    };
    let path = path.display().to_string();
    let mut node = Node::new("one", &[]);
    node.set_environment("NOTIFY_SOCKET", &path);
    node.run();
    wait("READY=1", None);
    wait("STATUS=0/s received, 0/s recorded, 0 queued; 0 open, 0 unsent to ", None);
    wait("; 1 open", Some(node.udp()));
    node.signal("HUP");
    wait("RELOADING=1\nMONOTONIC_USEC=", None);
    wait("READY=1", None);
    node.terminate();
    wait("STATUS=draining", None);

    let nobody = format!("127.0.0.1:{}", free_port());
    let mut relay = Node::relay("relay", &[&nobody], &[]);
    relay.set_environment("NOTIFY_SOCKET", &path);
    relay.run();
    wait(&format!("; down: {nobody}"), Some(relay.udp()));
}
