//! Queries, however many and varied, use little of the memory and CPU time of Redis.

use testing::http;

use crate::prelude::*;

/// The lists that `top.rs` keeps and their locks, the locks for counts with their waiters, and the settings.
const KEYS_MAX: usize = 2 * (512 + 256) + 6;

struct Client {
    server: SocketAddr,
    http: reqwest::blocking::Client,
}

impl Client {
    fn new(node: &Node) -> Self {
        Self { server: node.http(), http: http::blocking().build().unwrap() }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.server);
        // The node may close the connection during a request, so a second attempt is made.
        let mut answers = (0..2).map(|_| http::answer(self.http.get(&url)));
        let answer = answers.find_map(Result::ok).expect("a node answers");
        (answer.status, answer.body)
    }
}

fn keys_of_questions(redis: &RedisServer) -> usize {
    let of_questions = |key: &&String| key.contains(":once:") || key.contains(":mutex:");
    redis.keys().iter().filter(of_questions).count()
}

fn info(redis: &RedisServer, section: &str, field: &str) -> f64 {
    let info: String = redis.query(&["INFO", section]);
    let mut lines = info.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap().trim().parse().unwrap()
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a whole number"))
}

fn varied(number: u64) -> String {
    let random = rand::random::<u64>();
    match number % 100 {
        0 => format!("/api/v1/top?by=unique&n={}&t{random}=1", 1 + number % 100),
        1 => format!("/api/v1/top?window=5m&position=0&t{random}=1"),
        2 => format!("/api/v1/minutes?t{random}=1"),
        3 => format!("/api/v1/live?t{random}=1"),
        4 => format!("/api/v1/series?t{random}=1"),
        5 => format!("/api/v1/top?list={random}&t{random}=1"),
        6 => format!("/api/v1/top?list={random}&position=3&n=7"),
        _ => format!("/api/v1/top?list={random}"),
    }
}

/// Regression: 24,000 queries for unknown lists filled Redis, and recording stopped.
#[test]
fn varied_queries_leave_few_keys_and_never_stop_recording() {
    const CLIENTS: u64 = 8;
    let questions = number("EDS_TEST_QUESTIONS", 24_000);
    let site = Site::with_redis(RedisServer::start(&["--maxmemory", "10mb"]));
    let keys = [("store.partitions", "4"), ("flush.grace", "1s")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let used = || info(&site.redis, "memory", "used_memory");
    let all_keys = || site.redis.query::<u64>(&["DBSIZE"]);
    let (keys_before, bytes_before) = (all_keys(), used());
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut sender = Sender::to_all(&nodes);
    let mut bytes_max = 0.0_f64;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let node = &nodes[usize::try_from(client).unwrap() % nodes.len()];
                let (asked, answered) = (&asked, &answered);
                scope.spawn(move || {
                    let client = Client::new(node);
                    loop {
                        let number = asked.fetch_add(1, Ordering::Relaxed);
                        if number >= questions {
                            return;
                        }
                        let (status, body) = client.get(&varied(number));
                        let known = [200, 404, 410, 422, 503, 504].contains(&status);
                        assert!(known, "{status}: {body}");
                        answered.fetch_add(u64::from(status != 503), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut minute = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            let load = load(minute..minute + 1, 1500, 20, 300);
            sender.send_all(load.datagrams());
            bytes_max = bytes_max.max(used());
            minute += 1;
            nodes[0].wait_count("eds_events_queued", |queued| queued == 0);
        }
    });
    let left = keys_of_questions(&site.redis);
    eprintln!(
        "{questions} questions, {} answered, {} events; before: {keys_before} keys, {bytes_before} bytes; after: {} keys, {left} of \
         questions, {} bytes, {bytes_max} at most",
        answered.load(Ordering::Relaxed),
        sender.sent() * 15,
        all_keys(),
        used(),
    );
    assert!(left <= KEYS_MAX, "{left} keys");
    for node in &nodes {
        let metrics = node.metrics();
        metrics.assert_ledger_adds_up();
        assert_eq!(metrics.count("eds_record_failures_total"), 0);
    }
    assert!(bytes_max < 10.0 * 1024.0 * 1024.0, "{bytes_max} bytes");
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn queries_are_refused_before_redis_is_full() {
    let site = Site::start();
    let node = site.start_node("one", &[("store.partitions", "4")]);
    let path = "/api/v1/top?by=unique";
    let client = Client::new(&node);
    assert_eq!(client.get(path).0, 200);
    // Connections make memory use vary by a few percent, so the limit is set before each attempt.
    let limit = || {
        let used = info(&site.redis, "memory", "used_memory");
        let limit = format!("{:.0}", used * 1.05);
        site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", &limit]);
    };
    for path in ["/api/v1/minutes", "/api/v1/live", "/api/v1/series", "/api/v1/top?n=7"] {
        eventually("the query is refused", SOON, || {
            limit();
            let (status, body) = client.get(path);
            when(status == 503 && body.contains("maxmemory"), format!("{path}: {status} {body}"))
        });
    }
    // Known lists are still returned, and unknown lists still get status 410.
    assert_eq!(client.get(path).0, 200);
    assert_eq!(client.get("/api/v1/top?list=7").0, 410);
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let (status, body) = client.get("/api/v1/top?n=8");
    assert!(status == 503 && body.contains("maxmemory"), "{body}");
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("the query succeeds again", SOON, || {
        let (status, body) = client.get("/api/v1/top?n=7");
        when(status == 200, body)
    });
}

/// Regression: four clients used 37 % of a Redis core for each node that they queried.
#[test]
fn computing_lists_uses_a_bounded_share_of_redis() {
    let counts = number("EDS_TEST_COUNTS", 200_000);
    let lasts = Duration::from_secs(number("EDS_TEST_COUNTS_SECONDS", 8));
    let site = Site::start();
    let keys = [("store.partitions", "1")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let mut connection = site.redis.connection();
    let minute = chrono::DateTime::from_timestamp(i64::try_from(now - 300).unwrap(), 0).unwrap();
    let of_day = (now - 300) / 60 % 1440;
    let key = format!("{{eds:0}}:{}:{of_day}:counts", minute.format("%Y%m%d"));
    for first in (0..counts).step_by(10_000) {
        let mut pipeline = redis::pipe();
        for number in first..(first + 10_000).min(counts) {
            let series = format!("event_type=http-{number:07},product=product{}", number % 7);
            pipeline.hset(&key, series, "10:20").ignore();
        }
        pipeline.query::<()>(&mut connection).unwrap();
    }
    let cpu = || {
        let used = |field| info(&site.redis, "cpu", field);
        used("used_cpu_user") + used("used_cpu_sys")
    };
    let (began, before) = (Instant::now(), cpu());
    // A slow machine may need longer for the first response.
    let is_answered = &AtomicBool::new(false);
    let goes_on = move || {
        let elapsed = began.elapsed();
        elapsed < lasts || !is_answered.load(Ordering::Relaxed) && elapsed < lasts + SOON
    };
    let statuses: Vec<u16> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let node = &nodes[client % 2];
                scope.spawn(move || {
                    let (client, mut statuses) = (Client::new(node), Vec::new());
                    while goes_on() {
                        let random = rand::random::<u64>();
                        let path = format!("/api/v1/top?n=5&t{random}=1");
                        let status = client.get(&path).0;
                        is_answered.fetch_or(status == 200, Ordering::Relaxed);
                        statuses.push(status);
                    }
                    statuses
                })
            })
            .collect();
        let each = clients.into_iter().map(|client| client.join().unwrap());
        each.flatten().collect()
    });
    let (took, used) = (began.elapsed(), cpu() - before);
    let share = used / took.as_secs_f64();
    let answered = statuses.iter().filter(|status| **status == 200).count();
    eprintln!(
        "{counts} counts, 8 clients, 2 nodes: {answered} of {} answered in {took:?}; Redis {:.0} % of a core",
        statuses.len(),
        share * 100.0
    );
    assert!(answered > 0, "{statuses:?}");
    assert!(share < 0.25, "{share}");
    let known = |status: &u16| [200, 503, 504].contains(status);
    assert!(statuses.iter().all(known), "{statuses:?}");
}
