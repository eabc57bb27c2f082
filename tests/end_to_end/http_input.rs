//! Events that arrive by HTTP: a request is answered with 204 once its events are recorded, and may be repeated until then.

use std::io::Write as _;
use std::sync::atomic::AtomicUsize;

use testing::http::{answer, get, post};

use crate::prelude::*;
use crate::queries::check_schema;
use crate::spool::{BACK, wait_spool_empty};

const TOKEN: &str = "0123456789abcdef";
/// The timestamp of the lines of most tests, in nanoseconds.
const AT: i64 = 1_480_876_707_352_348_928;

/// Returns a free address on which a node or relay receives events by HTTP.
fn address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// Returns a node that is not started yet, and the address on which it receives events by HTTP.
fn node(site: &Site, name: &str, keys: &[(&str, &str)]) -> (Node, SocketAddr) {
    let at = address();
    (site.node(name, &[&[("input.http.listen", &*at.to_string())], keys].concat()), at)
}

fn write_to(at: SocketAddr, path: &str, body: impl Into<reqwest::blocking::Body>) -> (u16, String) {
    let done = answer(post(at, path).body(body)).unwrap();
    (done.status, done.body)
}

/// Repeats a request until it is answered with 204, as a client does. Returns the number of attempts.
fn write_until_recorded(at: &[SocketAddr], body: &[u8]) -> usize {
    let ends = Instant::now() + BACK;
    for attempt in 1.. {
        let sent = answer(post(at[attempt % at.len()], "/api/v2/write").body(body.to_owned()));
        match sent {
            Ok(sent) if sent.status == 204 => return attempt,
            Ok(sent) => assert!(sent.status >= 500, "{}: {}", sent.status, sent.body),
            Err(_) => {}
        }
        assert!(Instant::now() < ends, "never recorded");
        thread::sleep(Duration::from_millis(50));
    }
    unreachable!()
}

#[test]
fn requests_are_answered_as_influxdb_does() {
    let site = Site::start();
    let (mut node, at) = node(&site, "one", &[("input.http.body_max", "1KiB")]);
    node.run();
    let ms = AT / 1_000_000;
    for (path, body) in [
        ("/write", format!("a=1 value=x {AT}\n# comment\n\na=1 value=y {AT}")),
        ("/write?db=any&precision=ms", format!("a=1 value=z {ms}\n")),
        ("/api/v2/write?org=o&bucket=b&precision=s", format!("a=1 value=z {}", ms / 1000)),
        ("/write?precision=u", format!("a=1 value=z {}", AT / 1000)),
        ("/write?precision=n", String::new()),
    ] {
        assert_eq!(write_to(at, path, body.clone()), (204, String::new()), "{path}: {body}");
    }
    let lines = format!("a=1 value=p {AT}\nnonsense\na=1 value=q\na=1 value=r {AT}\n");
    let (status, problem) = write_to(at, "/write", lines);
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["code"], &problem["line"]), (400, &"invalid".into(), &2.into()));
    assert_eq!(problem["error"], problem["message"]);
    let message = problem["message"].as_str().unwrap();
    for words in [
        "except 2: ",
        "line 2: ",
        "nonsense",
        "line 3: the line has no timestamp",
        "all lines are recorded",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../docs/openapi-write.json")).unwrap();
    for (path, body, expected) in [
        ("/write?precision=h", "a=1 value=x 1", 400),
        ("/write?precision=s&precision=s", "a=1 value=x 1", 400),
        ("/write", &*"a=1 value=x 1\n".repeat(100), 413),
        ("/query?q=SELECT+1", "", 400),
        ("/query?q=CREATE+DATABASE+%22telegraf%22", "", 200),
        ("/nothing", "", 404),
    ] {
        let (status, text) = write_to(at, path, body.to_owned());
        assert_eq!(status, expected, "{path}: {text}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let known = &file["paths"][path.split('?').next().unwrap()]["post"]["responses"];
        let responses = if known.is_null() { &file["components"]["responses"] } else { known };
        let schema = &responses[status.to_string()]["content"]["application/json"]["schema"];
        check_schema(&file, schema, &answer, path);
    }
    let ping = answer(get(at, "/ping")).unwrap();
    assert_eq!(ping.status, 204);
    assert!(ping.headers.contains_key("x-influxdb-version"));
    assert!(answer(get(at, "/health")).unwrap().body.contains("\"pass\""));
    assert_eq!(answer(get(at, "/write")).unwrap().status, 405);
    let other = reqwest::blocking::Client::new()
        .request("TRACE".parse().unwrap(), format!("http://{at}/query"));
    assert_eq!(other.send().unwrap().status(), 405);
    let of_page = answer(post(at, "/write").header("Origin", "http://example.org")).unwrap();
    assert_eq!(of_page.status, 403);

    let mut expected = Expected::default();
    for (user, at) in [
        ("x", AT),
        ("y", AT),
        ("z", ms * 1_000_000),
        ("z", ms / 1000 * 1_000_000_000),
        ("z", AT / 1000 * 1000),
        ("p", AT),
        ("r", AT),
    ] {
        expected.receive(format!("a=1 value={user} {at}").as_bytes());
    }
    site.wait_exact(&expected.points(), SOON);
    let metrics = node.metrics();
    metrics.assert_ledger_adds_up();
    let rejected = |reason| metrics.count_of("eds_events_rejected_total", &[("reason", reason)]);
    assert_eq!(rejected("timestamp_missing"), 1);
    assert_eq!(metrics.count_of("eds_http_writes_total", &[("status", "204")]), 5);
    wait_for(
        "the node has reported its requests",
        || node.json("/api/v1/status"),
        |status| status["nodes"][0]["requests"]["recorded"] == 5,
    );
}

/// Returns a load as request bodies of about a hundred lines, and the counts that they must result in.
fn bodies(events: u64) -> (Vec<Vec<u8>>, Expected) {
    let datagrams: Vec<_> = load(0..3, events, 20, 500).datagrams().collect();
    let bodies: Vec<_> = datagrams.chunks(7).map(|some| some.join(&b'\n')).collect();
    let mut expected = Expected::default();
    for body in &bodies {
        expected.receive(body);
    }
    (bodies, expected)
}

/// Sends all bodies with four clients, each of which repeats its request until it is recorded, and does `meanwhile` with a
/// function that waits until this percentage of bodies has been sent. Returns the number of requests.
fn send_all(
    bodies: &[Vec<u8>],
    to: &[SocketAddr],
    meanwhile: impl FnOnce(&dyn Fn(usize)),
) -> usize {
    let (next, attempts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..4 {
            let (next, attempts) = (&next, &attempts);
            scope.spawn(move || {
                let mut order = to.to_vec();
                order.rotate_left(client % to.len());
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    attempts.fetch_add(write_until_recorded(&order, body), Ordering::Relaxed);
                }
            });
        }
        meanwhile(&|percent| {
            eventually("the clients go on", BACK, || {
                let sent = 100 * next.load(Ordering::Relaxed) / bodies.len();
                when(sent >= percent, sent)
            });
        });
    });
    attempts.into_inner()
}

/// Long enough that no minute closes while clients repeat requests.
const OPEN: [(&str, &str); 2] = [("flush.grace", "8s"), ("flush.max_hold", "10m")];

#[test]
fn repeated_requests_are_counted_once_through_kills() {
    // Redis keeps what it has acknowledged, because the node that could record it again is killed as well.
    let mut site =
        Site::with_redis(RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]));
    let (mut one, at_one) = node(&site, "one", &OPEN);
    let (mut two, at_two) = node(&site, "two", &OPEN);
    let (mut relay, at_relay) = relay(&[at_one, at_two], &[]);
    for node in [&mut one, &mut two, &mut relay] {
        node.run();
    }
    let (bodies, expected) = bodies(60_000);
    let requests = send_all(&bodies, &[at_one, at_two, at_relay], |past| {
        past(20);
        one.kill();
        past(30);
        one.launch();
        past(40);
        two.kill();
        two.launch();
        past(60);
        relay.kill();
        relay.launch();
        past(70);
        site.redis.kill();
        site.redis.restart();
    });
    assert!(requests > bodies.len(), "{requests} requests");
    for node in [&mut one, &mut two] {
        node.wait_ready();
    }
    site.wait_exact(&expected.points(), BACK);
    site.assert_one_value_a_point();
}

/// Once a request has been answered, its events survive the node, although it has just been killed.
#[test]
fn an_answered_request_survives_its_node() {
    let site = Site::start();
    let (mut dying, at) = node(&site, "dying", &OPEN);
    dying.run();
    let living = site.start_node("living", &OPEN);
    let (bodies, expected) = bodies(9000);
    for body in &bodies {
        assert_eq!(write_to(at, "/write", body.clone()).0, 204);
    }
    dying.kill();
    site.wait_exact(&expected.points(), BACK);
    assert_eq!(living.metrics().count("eds_events_received_total"), 0);
}

#[test]
fn requests_within_the_linger_share_a_transaction() {
    let site = Site::start();
    let keys = [("input.http.linger", "1s"), ("store.partitions", "1")];
    let (mut node, at) = node(&site, "one", &keys);
    node.run();
    let mut expected = Expected::default();
    thread::scope(|scope| {
        for user in 0..20 {
            let line = format!("a=1 value=u{user} {AT}");
            expected.receive(line.as_bytes());
            scope.spawn(move || assert_eq!(write_to(at, "/write", line).0, 204));
            // Longer than a transaction takes.
            thread::sleep(Duration::from_millis(20));
        }
    });
    let batches = node.metrics().count("eds_record_seconds_count");
    assert!(batches <= 5, "{batches}");
    site.wait_exact(&expected.points(), SOON);
}

/// While Redis is down, a node with a spool answers once the events are on disk, and its next process records them.
#[test]
fn without_redis_events_are_acknowledged_from_the_spool() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let (mut spooling, at) = node(&site, "one", &[("input.http.timeout", "500ms")]);
    spooling.set("input.spool_dir", &spooling.spool().display().to_string());
    spooling.launch();
    eventually("the node responds", SOON, || spooling.get("/healthz"));
    let (bodies, expected) = bodies(9000);
    for body in &bodies {
        // The first request shows the node that Redis is down.
        write_until_recorded(&[at], body);
    }
    spooling.kill();
    site.redis.restart();
    spooling.run();
    site.wait_exact(&expected.points(), BACK);
    wait_spool_empty(&spooling);
}

#[test]
fn without_redis_and_spool_clients_are_told_to_repeat() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let keys = [("input.http.timeout", "300ms"), ("input.queue_events", "1")];
    let (mut node, at) = node(&site, "one", &keys);
    node.launch();
    eventually("the node responds", SOON, || node.get("/healthz"));
    let body = format!("a=1 value=x {AT}\na=1 value=y {AT}");
    for words in ["not recorded yet", "the queue of this node is full"] {
        let refused = answer(post(at, "/write").body(body.clone())).unwrap();
        assert_eq!((refused.status, &refused.headers["retry-after"]), (503, &"1".parse().unwrap()));
        assert!(refused.body.contains(words), "{words}: {}", refused.body);
    }
    site.redis.restart();
    assert!(write_until_recorded(&[at], body.as_bytes()) > 0);
}

fn relay(to: &[SocketAddr], keys: &[(&str, &str)]) -> (Node, SocketAddr) {
    let at = address();
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], keys);
    relay.set("input.http.listen", &at.to_string());
    relay
        .set_list("relay.http_to", &to.iter().map(|to| format!("http://{to}")).collect::<Vec<_>>());
    (relay, at)
}

/// A relay passes on what a node answers, and finds the nodes that are left.
#[test]
fn relays_forward_requests_to_any_node() {
    let site = Site::start();
    let (mut one, at_one) = node(&site, "one", &[]);
    let (mut relay, at) = relay(&[address(), at_one], &[]);
    relay.launch();
    eventually("the relay responds", SOON, || answer(get(at, "/ping")));
    let (status, text) = write_to(at, "/write", format!("a=1 value=x {AT}"));
    assert!(status == 503 && text.contains("no node answers"), "{status}: {text}");
    one.run();
    assert_eq!(
        write_to(at, "/api/v2/write?precision=ms", format!("a=1 value=x {}", AT / 1_000_000)).0,
        204
    );
    let (status, text) = write_to(at, "/write", "nonsense");
    assert!(status == 400 && text.contains("line 1: "), "{status}: {text}");
    assert_eq!(one.metrics().count("eds_events_recorded_total"), 1);
    let metrics = relay.metrics();
    assert_eq!(metrics.count_of("eds_relay_http_writes_total", &[("status", "204")]), 1);
}

#[test]
fn tokens_have_quotas_and_are_reloaded() {
    let site = Site::start();
    let (mut node, at) = node(&site, "one", &[]);
    let file = node.config_path().with_file_name("tokens");
    fs::write(&file, format!("shop {TOKEN} events=100 series=2\n")).unwrap();
    node.set("input.http.tokens_file", file.to_str().unwrap());
    node.run();
    let send = |token: &str, body: String| {
        let request = post(at, "/api/v2/write").header("Authorization", format!("Token {token}"));
        let done = answer(request.body(body)).unwrap();
        (done.status, done.body)
    };
    let line = format!("a=1 value=x {AT}");
    assert_eq!(write_to(at, "/write", line.clone()).0, 401);
    assert_eq!(send("fedcba9876543210", line.clone()).0, 401);
    assert_eq!(write_to(at, &format!("/write?u=any&p={TOKEN}"), line.clone()).0, 204);
    let basic = post(at, "/write").basic_auth("any", Some(TOKEN)).body(line.clone());
    assert_eq!(answer(basic).unwrap().status, 204);
    let (status, text) = send(TOKEN, format!("{line}\na=2 value=x {AT}\na=3 value=x {AT}"));
    assert!(status == 400 && text.contains("line 3: the token already has"), "{status}: {text}");
    assert_eq!(send(TOKEN, format!("{line}\n").repeat(1000)).0, 204);
    let limited = answer(post(at, &format!("/write?p={TOKEN}")).body(line.clone())).unwrap();
    assert_eq!(limited.status, 429);
    let wait: u64 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((2..=11).contains(&wait), "{wait}");
    assert_eq!(node.metrics().count_of("eds_http_writes_limited_total", &[("token", "shop")]), 1);

    fs::write(&file, "ops fedcba9876543210\n").unwrap();
    node.signal("HUP");
    eventually("the new token is accepted", SOON, || {
        let (status, text) = send("fedcba9876543210", line.clone());
        when(status == 204, text)
    });
    assert_eq!(send(TOKEN, line.clone()).0, 401);
    fs::write(&file, "").unwrap();
    node.signal("HUP");
    node.wait_log("nothing is reloaded");
    assert_eq!(send("fedcba9876543210", line).0, 204);
}

/// Clients that never finish, that are slow to read, or that send nonsense keep no other client waiting.
#[test]
fn hostile_clients_block_nobody() {
    let site = Site::start();
    let (mut node, at) = node(&site, "one", &[("input.http.body_max", "64KiB")]);
    node.limit_descriptors(400);
    node.run();
    let connect = |head: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        // The node may have closed the connection already.
        let _ = stream.write_all(head.as_bytes());
        stream
    };
    let unfinished = "POST /write HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\na=1 value=";
    let held: Vec<_> =
        (0..200).flat_map(|_| [connect(unfinished), connect("POST /wri"), connect("")]).collect();
    let mut rng = SmallRng::seed_from_u64(seed());
    for _ in 0..200 {
        let body: Vec<u8> = (0..rng.random_range(0..500)).map(|_| rng.random()).collect();
        let path = ["/write", "/api/v2/write?precision=ms", "/query"][rng.random_range(0..3)];
        let encoding = ["identity", "gzip", "br"][rng.random_range(0..3)];
        let sent = answer(post(at, path).header("Content-Encoding", encoding).body(body)).unwrap();
        assert!([204, 400, 415].contains(&sent.status), "{}: {}", sent.status, sent.body);
    }
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..4000 {
        bomb.write_all(&[b'a'; 10_000]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 60_000, "{} bytes", bomb.len());
    let sent = answer(post(at, "/write").header("Content-Encoding", "gzip").body(bomb)).unwrap();
    assert_eq!(sent.status, 413, "{}", sent.body);
    assert_eq!(write_to(at, "/write", format!("a=1 value=x {AT}")).0, 204);
    drop(held);
    node.metrics().assert_ledger_adds_up();
    assert!(node.terminate().success());
}

#[test]
fn tls_protects_the_token() {
    let site = Site::start();
    let (mut node, at) = node(&site, "one", &[]);
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let pem = certificate.cert.pem();
    for (key, name, text) in [
        ("input.http.cert_file", "cert.pem", &pem),
        ("input.http.key_file", "key.pem", &certificate.signing_key.serialize_pem()),
    ] {
        let file = node.config_path().with_file_name(name);
        fs::write(&file, text).unwrap();
        node.set(key, file.to_str().unwrap());
    }
    node.run();
    let root = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
    let client = testing::http::blocking().tls_certs_only([root]).build().unwrap();
    let line = format!("a=1 value=x {AT}");
    let sent = client.post(format!("https://{at}/write")).body(line.clone()).send().unwrap();
    assert_eq!(sent.status(), 204);
    assert!(answer(post(at, "/write").body(line)).is_err(), "an answer without TLS");
}
