//! Signals to a node, to end or to reload its configuration, and the exit codes.

use std::sync::atomic::AtomicUsize;

use crate::prelude::*;

fn numbered_datagram(number: usize) -> String {
    let at = SEED_MINUTE_NS + i64::try_from(number).unwrap();
    format!("event_type=type{},product=b value=user{} {at}", number % 20, number % 700)
}

#[test]
fn a_node_told_to_end_under_load_records_all_that_it_received() {
    let site = Site::start();
    let mut node = site.node("one", &[("flush.grace", "1h"), ("flush.max_hold", "1h")]);
    node.run();

    // Loopback keeps the order, so the node received a prefix of the datagrams.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (sent, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let udp = node.udp();
    let sent_before_signal = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                let datagram = numbered_datagram(sent.load(Ordering::SeqCst));
                // Without a listener it is lost, as it should be.
                let _ = socket.send_to(datagram.as_bytes(), udp);
                if sent.fetch_add(1, Ordering::SeqCst).is_multiple_of(10) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        node.wait_count("eds_events_recorded_total", |recorded| recorded > 2000);
        let sent_before_signal = sent.load(Ordering::SeqCst);
        let status = node.terminate();
        ended.store(true, Ordering::SeqCst);
        assert_eq!(status.code(), Some(0));
        sent_before_signal
    });

    let keys = site.redis.keys();
    let sets = keys.iter().filter(|key| key.contains(":cumulative_user:"));
    let recorded: usize = sets.map(|key| site.redis.query::<usize>(&["SCARD", key])).sum();
    assert!(recorded >= sent_before_signal, "{recorded} recorded of {sent_before_signal} sent");
    let mut expected = Expected::default();
    (0..recorded).for_each(|number| expected.receive(numbered_datagram(number).as_bytes()));

    node.set("flush.grace", "300ms");
    node.apply_settings();
    node.launch();
    site.wait_exact(&expected.points(), SOON);
    site.wait_redis_clean();
}

#[test]
fn a_node_that_ends_lets_its_claims_lapse_at_once() {
    let mut site = Site::start();
    let keys = [("flush.lease", "10m"), ("flush.grace", "300ms")];
    let mut first = site.start_node("first", &keys);
    let mut sender = Sender::paced_by(&first);
    site.writes.set(testing::http_proxy::Mode::Refuse);
    sender.send(numbered_datagram(0).as_bytes());
    first.wait_count("eds_backlog_unsent", |count| count == 1);
    assert_eq!(first.terminate().code(), Some(0));
    site.writes.set(testing::http_proxy::Mode::Pass);
    let _second = site.start_node("second", &keys);
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn a_hang_up_reloads_the_log_level() {
    let mut node = Node::start("one", &[("log.level", "warn")]);
    assert!(!node.log().contains("INFO"), "{}", node.log());
    node.set("log.level", "info");
    node.write_config();
    node.signal("HUP");
    node.wait_log("INFO");

    node.set("log.level", "loud");
    node.write_config();
    node.signal("HUP");
    node.wait_log("loud");
    node.wait_ready();
}

#[test]
fn the_exit_code_tells_failure_from_misuse() {
    let directory = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = file("good.toml", "[log]\nlevel = \"info\"\n");
    let bad = file("bad.toml", "[flush]\ngrase = \"5s\"\n");
    let busy = UdpSocket::bind("127.0.0.1:0").unwrap();
    let http = free_port();
    let busy = file(
        "busy.toml",
        &format!(
            "[input]\nlisten = [\"{}\"]\n[http]\nlisten = \"127.0.0.1:{http}\"\n",
            busy.local_addr().unwrap()
        ),
    );
    for (arguments, code, says) in [
        (&["check", "--config", &good][..], 0, ""),
        (&["check", "--config", &bad], 2, "grace"),
        (&["run", "--config", &bad], 2, "grace"),
        (&["run", "--config", "/nowhere/eds.toml"], 2, "/nowhere/eds.toml"),
        (&["run", "--no-such-flag"], 2, "--no-such-flag"),
        (&["no-such-command"], 2, "no-such-command"),
        (&["run", "--config", &busy], 1, "in use"),
        (&["--version"], 0, ""),
    ] {
        let output = eds().args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?} does not say {says:?}: {stderr}");
    }
}

/// What `systemctl status` shows, as it is sent to systemd.
#[test]
fn a_node_and_a_relay_report_how_they_are() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut buffer = [0; 1024];
    // With continuous events: the kernel reports a refusal with the next datagram.
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
    wait("STATUS=0/s received, 0/s recorded, 0 queued; 0 open, 0 wait for ", None);
    wait("; 1 open", Some(node.udp()));
    node.terminate();
    wait("STATUS=draining", None);

    let nobody = format!("127.0.0.1:{}", free_port());
    let mut relay = Node::relay("relay", &[&nobody], &[]);
    relay.set_environment("NOTIFY_SOCKET", &path);
    relay.run();
    wait(&format!("; down: {nobody}"), Some(relay.udp()));
}
