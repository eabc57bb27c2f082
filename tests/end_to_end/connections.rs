//! Clients that hold many connections open cost neither events nor health checks.

use std::io::{ErrorKind, Read, Write};
use std::thread::{self, JoinHandle};

use crate::prelude::*;
use crate::spool::{assert_drained, assert_nothing_lost, datagrams, spooling};

fn damaged(node: &Node) -> Vec<String> {
    let entries = fs::read_dir(node.spool()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with("damaged")).collect()
}

/// Limits how many descriptors the process may open. Those already open stay open.
fn limit(node: &Node, most: &str) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &node.pid().to_string()]);
    let status = command.arg(format!("--nofile={most}")).status();
    assert!(status.expect("prlimit is installed").success());
}

/// Regression: silent connections used up all descriptors, and the spool dropped 248,014 of 300,000 events.
#[test]
fn silent_connections_affect_neither_events_nor_health() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let mut node = spooling(&site, "one", &[]);
    node.limit_descriptors(256);
    node.launch();
    eventually("the node responds", SOON, || node.get("/healthz"));
    let mut sender = Sender::paced_by(&node);
    let mut silent: Vec<TcpStream> = Vec::new();
    for (number, datagram) in datagrams(3, 9000).iter().enumerate() {
        if number % 6 == 0 {
            let mut stream = TcpStream::connect(node.http()).unwrap();
            // Some send nothing, some send half a request, and some never read the response.
            let request =
                [&b""[..], b"GET /heal", b"GET /metrics HTTP/1.1\r\n\r\n"][number / 6 % 3];
            stream.write_all(request).unwrap();
            silent.push(stream);
        }
        sender.send_unpaced(datagram);
    }
    assert!(silent.len() >= 300, "{}", silent.len());
    eventually("a new connection is served", SOON, || node.get("/healthz"));
    sender.wait_received();
    site.redis.restart();
    node.wait_ready();
    assert_drained(&site, &node, &sender);
    assert_eq!(damaged(&node), [""; 0]);
    for mut stream in silent {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        let timed_out = closed.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!timed_out, "a silent connection is still open");
    }
}

/// The node runs out of descriptors, first for writing segments and later for reading them.
#[test]
fn spool_that_is_unreadable_for_a_while_loses_no_event() {
    let site = Site::start();
    let mut node = spooling(&site, "one", &[("flush.max_hold", "10m")]);
    node.set("store.response_timeout", "30s");
    node.set("store.replay_window", "30s");
    node.run();
    let mut sender = Sender::paced_by(&node);
    let datagrams = datagrams(2, 9000);
    let (first, second) = datagrams.split_at(datagrams.len() / 2);
    // Redis refuses writes but keeps its connections open.
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    sender.send(&first[0]);
    node.wait_count("eds_record_failures_total", |failures| failures > 0);
    limit(&node, "10:20000");
    for datagram in &first[1..] {
        sender.send_unpaced(datagram);
    }
    let says = |words: &str| {
        eventually("the error is logged", SOON, || {
            let log = node.log();
            let mut lines = log.lines();
            let found = lines.any(|line| line.contains("ERROR") && line.contains(words));
            when(found, format!("{words}: {}", log.len()))
        });
    };
    says("input.spool_dir");
    limit(&node, "20000:20000");
    sender.send_all(second);
    eventually("all spooled events are on disk", SOON, || {
        let metrics = node.metrics();
        let (written, spooled) =
            (metrics.count("eds_spool_written_total"), metrics.count("eds_events_spooled"));
        when(written == spooled && spooled > 0, format!("{written} of {spooled}"))
    });
    assert_nothing_lost(&node.metrics());
    limit(&node, "10:20000");
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    says(".spool");
    limit(&node, "20000:20000");
    assert_drained(&site, &node, &sender);
    assert_eq!(damaged(&node), [""; 0]);
}

#[test]
fn silent_connection_is_closed_in_favour_of_a_new_one() {
    let mut node = Node::new("one", &[]);
    node.limit_descriptors(128);
    node.run();
    let mut silent: Vec<_> = (0..400).map(|_| TcpStream::connect(node.http()).unwrap()).collect();
    let answer = node.get("/healthz").unwrap();
    assert_eq!(answer.status, 200);
    for stream in &mut silent {
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the node sent data before closing");
    }
    assert!(node.log().contains("LimitNOFILE"), "{}", node.log());
}

/// Regression: 128 connections filled the queue of the kernel, and a health check was not connected within 10 s.
#[test]
fn kernel_queues_six_hundred_connections() {
    let mut node = Node::new("one", &[]);
    node.run();
    node.signal("STOP");
    let connect = |_| TcpStream::connect_timeout(&node.http(), Duration::from_millis(900));
    let queued: Result<Vec<_>, _> = (0..600).map(connect).collect();
    node.signal("CONT");
    queued.unwrap();
}

/// Connections that never complete a request and reconnect when they are closed, until this is dropped.
struct Slow {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

/// For each kind of slow client, the bytes it sends first and those it keeps sending.
const SLOW: [(&[u8], &[u8]); 4] = [
    (b"", b""),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: ", b"y"),
    // Reads the response in small pieces.
    (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
    (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", b"y"),
];

impl Slow {
    fn start(server: SocketAddr, connections: usize) -> Self {
        let connect = move |number: usize| {
            let mut stream = TcpStream::connect(server).unwrap();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write_all(SLOW[number % SLOW.len()].0);
            stream
        };
        let mut streams: Vec<_> = (0..connections).map(connect).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut reopened = 0;
            while !stopped.load(Ordering::Relaxed) {
                for (number, stream) in streams.iter_mut().enumerate() {
                    let more = SLOW[number % SLOW.len()].1;
                    let sent = stream.write_all(more);
                    let closed = sent.and_then(|()| match stream.read(&mut [0; 64]) {
                        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                        read => read.map(|_| ()),
                    });
                    if closed.is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
                        *stream = connect(number);
                        reopened += 1;
                    }
                }
            }
            reopened
        });
        let thread = Some(thread);
        Self { stop, thread }
    }

    /// Stops the clients and returns how many times they reconnected.
    fn stop(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("not stopped before");
        thread.join().unwrap()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Sends 50 health probes, ten per second, and asserts that each succeeds within 10 s.
#[track_caller]
fn assert_probes_are_answered(server: SocketAddr) {
    const WITHIN: Duration = Duration::from_secs(10);
    let probe = move |path: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&server, WITHIN)?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let probes = (0..50).map(|number| {
        thread::sleep(Duration::from_millis(100));
        let path = if number % 2 == 0 { "/healthz" } else { "/readyz" };
        thread::spawn(move || probe(path))
    });
    let probes: Vec<_> = probes.collect();
    let answers = probes.into_iter().map(|probe| probe.join().unwrap());
    let is_ok = |answer: &std::io::Result<String>| {
        answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    };
    let failed: Vec<_> = answers.filter(|answer| !is_ok(answer)).collect();
    assert!(failed.is_empty(), "{} of 50 failed: {:?}", failed.len(), failed[0]);
}

#[test]
fn reconnecting_slow_clients_do_not_starve_health() {
    let node = assert_slow_connections_do_not_starve_health(Node::new("one", &[]));
    assert_contains(&node.log(), ["all HTTP connections are in use"]);
}

#[test]
fn slow_clients_do_not_starve_the_health_of_a_relay() {
    assert_slow_connections_do_not_starve_health(Node::relay("relay", &["127.0.0.1:9"], &[]));
}

fn assert_slow_connections_do_not_starve_health(mut program: Node) -> Node {
    program.limit_descriptors(300);
    program.run();
    let slow = Slow::start(program.http(), 900);
    assert_probes_are_answered(program.http());
    let reopened = slow.stop();
    assert!(reopened > 900, "only {reopened} reconnects, too few for this test");
    program
}

/// Each request waits for the store for 3 s, and together they would occupy all connections.
#[test]
fn requests_waiting_for_the_store_do_not_starve_health() {
    let site = Site::start();
    let mut node = site.node("one", &[]);
    node.limit_descriptors(300);
    node.run();
    site.redis.signal("STOP");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(node.http()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let asked: Vec<_> =
        (0..250).map(|number| ask(["/readyz", "/api/v1/live"][number % 2])).collect();
    let mut answer = String::new();
    ask("/healthz").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    let crowded = asked.into_iter().filter(|mut stream| {
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        read.is_ok() && answer.contains("are waiting for the store")
    });
    assert!(crowded.count() > 0);
    site.redis.signal("CONT");
}
