//! Query responses of nodes: exact counts, and lists that all nodes share.

use testing::http::Answer;

use crate::prelude::*;

/// Series and their number of users in one minute. Each series has twice as many events.
const USERS: [(&str, i64); 6] = [
    ("event_type=a,product=x", 9),
    ("event_type=b,product=x", 7),
    ("event_type=c,product=y", 6),
    ("event_type=d,product=y", 4),
    ("event_type=e,product=y", 3),
    ("event_type=f,product=y", 1),
];
const JSON: &str = "application/json";
pub(crate) const PROBLEM: &str = "application/problem+json";

fn ask(node: &Node, path: &str) -> Answer {
    node.get(path).expect("a node answers")
}

fn send(sender: &mut Sender, minute_ns: i64) {
    for (series, users) in USERS {
        for user in 0..users {
            for at in [minute_ns + user, minute_ns + 1_000_000 + user] {
                sender.send(format!("{series} value=user{user} {at}"));
            }
        }
    }
}

/// Returns the start of a minute that has ended and stays within the window of every list during a test.
pub(crate) fn five_minutes_ago_ns() -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    (i64::try_from(now).unwrap() / 60 - 5) * MINUTE_NS
}

/// Starts three nodes and waits until the counts of [`USERS`] are published.
fn site_with_counts(keys: &[(&str, &str)]) -> (Site, Vec<Node>) {
    let site = Site::start();
    let keys = [&[("flush.grace", "300ms"), ("store.partitions", "8")], keys].concat();
    let nodes: Vec<_> =
        ["one", "two", "three"].iter().map(|name| site.start_node(name, &keys)).collect();
    let mut sender = Sender::paced_by(&nodes[0]);
    send(&mut sender, five_minutes_ago_ns());
    site.wait_exact(&sender.expected.points(), SOON);
    (site, nodes)
}

fn computations(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| node.metrics().count("eds_query_computations_total")).sum()
}

fn counts(answer: &Value) -> BTreeMap<String, (i64, i64)> {
    let counts = answer["counts"].as_array().unwrap();
    let count = |entry: &Value| {
        let number = |name: &str| entry[name].as_i64().unwrap();
        let series = entry["series"].as_str().unwrap().to_owned();
        (series, (number("unique"), number("cumulative")))
    };
    counts.iter().map(count).collect()
}

fn expected(wanted: impl Fn(&str) -> bool) -> BTreeMap<String, (i64, i64)> {
    let wanted = USERS.iter().filter(|(series, _)| wanted(series));
    wanted.map(|(series, users)| ((*series).to_owned(), (*users, 2 * users))).collect()
}

#[test]
fn open_minutes_are_provisional_and_closed_ones_exact() {
    const MINUTES: &str = "/api/v1/minutes?from=2016-12-04T18:38:00Z&to=2016-12-04T18:39:00Z";
    let site = Site::start();
    let nodes: Vec<_> = ["one", "two", "three"]
        .iter()
        .map(|name| site.start_node(name, &[("flush.grace", "4s")]))
        .collect();
    let mut sender = Sender::paced_by(&nodes[0]);
    send(&mut sender, SEED_MINUTE_NS);
    eventually("another node returns the recorded counts", SOON, || {
        let live = nodes[1].json("/api/v1/live");
        assert_eq!(live["provisional"], true);
        when(counts(&live) == expected(|_| true), live)
    });
    let live = nodes[2].json("/api/v1/live?product=y&event_type=c");
    assert_eq!(counts(&live), expected(|series| series.contains("=c")));
    assert_eq!(live["counts"][0]["minute"], "2016-12-04T18:38:00Z");

    site.wait_exact(&sender.expected.points(), SOON);
    wait_for("no minute is open", || counts(&nodes[0].json("/api/v1/live")), BTreeMap::is_empty);
    for node in &nodes {
        assert_eq!(counts(&node.json(MINUTES)), expected(|_| true));
        let of_y = node.json(&format!("{MINUTES}&product=y"));
        assert_eq!(counts(&of_y), expected(|series| series.ends_with('y')));
        assert_eq!(of_y["counts"][0]["tags"]["product"], "y");
        let before = node.json("/api/v1/minutes?from=1480876620&to=1480876680");
        assert_eq!(counts(&before), BTreeMap::new());
    }
}

#[test]
fn positions_queried_at_three_nodes_belong_to_one_list() {
    let (_site, nodes) = site_with_counts(&[]);
    let orders = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]];
    let mut lists = BTreeSet::new();
    let began = Instant::now();
    for round in 0..1000 {
        let ask = |turn: usize, position: usize, more: &str| {
            let node = &nodes[(round + turn) % nodes.len()];
            node.json(&format!("/api/v1/top?by=unique&position={position}{more}"))
        };
        let order = orders[round % orders.len()];
        let mut answers: Vec<_> =
            order.iter().enumerate().map(|(turn, position)| ask(turn, *position, "")).collect();
        let id = |answer: &Value| answer["list"]["id"].as_str().unwrap().to_owned();
        let ids: BTreeSet<_> = answers.iter().map(id).collect();
        if ids.len() > 1 {
            // The list expired during the round, but can still be found by its id.
            let more = format!("&list={}", id(&answers[0]));
            answers = order
                .iter()
                .enumerate()
                .map(|(turn, position)| ask(turn, *position, &more))
                .collect();
        }
        let of_round: BTreeSet<_> = answers.iter().map(id).collect();
        assert_eq!(of_round.len(), 1, "{answers:?}");
        lists.extend(of_round);
        for (position, answer) in order.iter().zip(&answers) {
            assert_eq!(answer["item"]["position"], *position);
            assert_eq!(answer["item"]["series"], USERS[*position].0);
            assert_eq!(answer["item"]["unique_minute_max"], USERS[*position].1);
        }
    }
    let lists_max = 1 + began.elapsed().as_secs() / 30;
    assert!(lists.len() as u64 <= lists_max, "{lists:?}");
    assert_eq!(computations(&nodes), lists.len() as u64);
    let id = lists.first().unwrap();
    let late = nodes[2].json(&format!("/api/v1/top?by=unique&position=1&list={id}"));
    assert_eq!(late["item"]["series"], USERS[1].0);
    let gone = ask(&nodes[0], "/api/v1/top?by=unique&list=17");
    assert_eq!(gone.status, 410, "{}", gone.body);
    let beyond = ask(&nodes[0], "/api/v1/top?by=unique&n=10&position=6");
    assert_eq!(beyond.status, 404, "{}", beyond.body);
}

#[test]
fn thousand_requests_for_a_cold_list_compute_it_once() {
    const REQUESTS: usize = 1000;
    let (_site, nodes) = site_with_counts(&[]);
    let started = Instant::now() + Duration::from_millis(300);
    let answers: Vec<(Value, Duration)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..REQUESTS)
            .map(|number| {
                let node = &nodes[number % nodes.len()];
                // Spread over 50 ms, if the machine is fast enough.
                let at = started + Duration::from_micros(50 * number as u64);
                scope.spawn(move || {
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    let asked = Instant::now();
                    let answer = node.json("/api/v1/top?by=cumulative&n=4&position=0");
                    (answer, asked.elapsed())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut waits: Vec<_> = answers.iter().map(|(_, wait)| *wait).collect();
    waits.sort();
    eprintln!("median {:?}, longest {:?}", waits[REQUESTS / 2], waits[REQUESTS - 1]);
    let lists: BTreeSet<_> = answers
        .iter()
        .map(|(answer, _)| (answer["list"]["id"].to_string(), answer["item"].to_string()))
        .collect();
    assert_eq!(lists.len(), 1, "{lists:?}");
    assert_eq!(computations(&nodes), 1);
}

pub(crate) fn check_schema(file: &Value, schema: &Value, answer: &Value, place: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => file.pointer(&reference[1..]).unwrap(),
        None => schema,
    };
    match answer {
        Value::Object(fields) => {
            if let Some(values) =
                schema.get("additionalProperties").filter(|values| values.is_object())
            {
                for value in fields.values() {
                    check_schema(file, values, value, place);
                }
                return;
            }
            let described = schema["properties"]
                .as_object()
                .unwrap_or_else(|| panic!("{place} has no properties: {schema}"));
            for (name, value) in fields {
                let place = format!("{place}.{name}");
                let schema = described.get(name);
                let schema = schema.unwrap_or_else(|| panic!("{place} is not documented"));
                check_schema(file, schema, value, &place);
            }
            for name in schema["required"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                assert!(fields.contains_key(name), "{place}.{name} is missing");
            }
        }
        Value::Array(items) => {
            assert_eq!(schema["type"], "array", "{place}");
            // These tests have no relays. `relay_status.rs` checks one.
            let may_be_empty = place.ends_with(".relays");
            assert!(may_be_empty || !items.is_empty(), "{place} is empty");
            for item in items.iter().take(1) {
                check_schema(file, &schema["items"], item, place);
            }
        }
        Value::String(_) => assert_eq!(schema["type"], "string", "{place}"),
        Value::Bool(_) => assert_eq!(schema["type"], "boolean", "{place}"),
        Value::Number(number) => {
            let kind = if number.is_f64() { "number" } else { "integer" };
            assert_eq!(schema["type"], kind, "{place}");
        }
        Value::Null => panic!("{place} is null"),
    }
}

#[test]
fn responses_match_the_openapi_document() {
    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let mut node = Node::new("one", &[("flush.grace", "4s")]);
    node.set_sections("rollup", &[&[("name", "hourly"), ("every", "1h")]]);
    node.run();
    let mut sender = Sender::paced_by(&node);
    send(&mut sender, five_minutes_ago_ns());
    eventually("the events are recorded", SOON, || {
        let live = counts(&node.json("/api/v1/live"));
        when(live.len() == USERS.len(), live.len())
    });
    let check = |path: &str, query: &str, status: u16, kind: &str| {
        let answer = ask(&node, &format!("{path}{query}"));
        assert_eq!(answer.status, status, "{path}{query}: {}", answer.body);
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        let described = &file["paths"][path]["get"]["responses"][status.to_string()];
        let schema = &described["content"][kind]["schema"];
        check_schema(&file, schema, &body, &format!("{path} {status}"));
        if status == 200 {
            let header = |name: &str| answer.headers[name].to_str().unwrap();
            let max_age = header("cache-control").strip_prefix("max-age=").unwrap();
            let [age, max_age] = [header("age"), max_age].map(|text| text.parse::<u64>().unwrap());
            assert!(age <= max_age, "{:?}", answer.headers);
        }
        body
    };
    check("/api/v1/live", "?product=x", 200, JSON);
    eventually("the minute is closed", SOON, || {
        let sealed = counts(&node.json("/api/v1/minutes"));
        when(sealed.len() == USERS.len(), sealed.len())
    });
    check("/api/v1/minutes", "?product=x", 200, JSON);
    check("/api/v1/series", "?product=x", 200, JSON);
    wait_for(
        "the minute is added to its window",
        || counts(&node.json("/api/v1/windows?rollup=hourly")),
        |added| *added == expected(|_| true),
    );
    check("/api/v1/windows", "?rollup=hourly&product=x", 200, JSON);
    check("/api/v1/windows", "?product=x", 400, PROBLEM);
    check("/api/v1/series", "?rollup=hourly", 200, JSON);
    let covered = check("/api/v1/coverage", "", 200, JSON);
    assert_eq!(covered["minutes"][0]["nodes"][0]["share"], 1.0);
    check("/api/v1/coverage", "?product=x", 400, PROBLEM);
    wait_for(
        "the node has reported",
        || node.json("/api/v1/status"),
        |status| status["nodes"][0]["totals"]["recorded"] == 60,
    );
    let status = check("/api/v1/status", "", 200, JSON);
    assert_eq!(status["is_anything_lost"]["answer"], "no", "{status}");
    assert_eq!(status["healthy"], true, "{status}");
    check("/api/v1/status", "?product=x", 400, PROBLEM);
    check("/api/v1/losses", "?product=x", 400, PROBLEM);
    let whole = check("/api/v1/top", "?product=y", 200, JSON);
    let first = check("/api/v1/top", "?product=y&position=0", 200, JSON);
    assert!(whole["items"].is_array() && first["item"].is_object());
    check("/api/v1/top", "?position=99&n=100", 404, PROBLEM);
    check("/api/v1/top", "?list=1", 410, PROBLEM);

    // A path accepts exactly its documented parameters.
    for (path, described) in file["paths"].as_object().unwrap() {
        let parameters = described["get"]["parameters"].as_array().unwrap();
        let named: BTreeSet<&str> = parameters
            .iter()
            .map(|parameter| parameter["name"].as_str().unwrap())
            .filter(|name| *name != "tags")
            .collect();
        for name in ["from", "to", "by", "window", "n", "position", "list", "rollup"] {
            let problem = check(path, &format!("?{name}=%21"), 400, PROBLEM);
            assert_eq!(problem["parameter"], name);
            let unknown =
                problem["detail"].as_str().unwrap().contains("is not a parameter of this path");
            assert_eq!(unknown, !named.contains(name), "{path} {name}: {problem}");
        }
        let many = (0..9).map(|tag| format!("&t{tag}=1")).collect::<Vec<_>>().concat();
        check(path, &format!("?{}", &many[1..]), 422, PROBLEM);
    }
    assert_eq!(file["paths"].as_object().unwrap().len(), 8);
}
