//! Tests that the page shows the node's responses, and does not run, request or draw anything else.

use serde_json::json;
use testing::chromium::Chromium;
use testing::prelude::*;

use crate::support::load::Sender;
use crate::support::node::Node;
use crate::{Ground, USERS, minutes_ago_ns, send, wait_sealed, written};

fn rows(browser: &Chromium, table: &str) -> Vec<Vec<String>> {
    let rows = browser.evaluate(&format!(
        "[...document.querySelectorAll('{table} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    ));
    serde_json::from_value(rows).unwrap()
}

#[track_caller]
fn assert_clean(browser: &Chromium, node: &Node) {
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let own = format!("http://{}/", node.http());
    let requests = browser.requests();
    let others: Vec<_> = requests.iter().filter(|request| !request.starts_with(&own)).collect();
    assert_eq!(others, Vec::<&String>::new());
    assert!(requests.len() > 8, "{requests:?}");
}

#[test]
fn page_shows_the_numbers_of_the_api() {
    let ground = Ground::with_counts(&[]);
    let node = &ground.node;
    let mut sender = Sender::paced_by(node);
    sender.send_unrecorded(b"event_type= value=ann");
    node.wait_count("eds_events_rejected_total", |rejected| rejected == 1);
    let browser = ground.page();

    eventually("the pipeline shows the totals of the status", SOON, || {
        let status = node.json("/api/v1/status");
        let total = |name: &str| written(status["nodes"][0]["totals"][name].as_u64().unwrap());
        let wanted = ["received", "recorded", "sealed", "sent"].map(total);
        let shown = browser.evaluate(
            "[...document.querySelectorAll('#pipeline .figure')].map(figure => figure.textContent)",
        );
        when(shown == json!(wanted), format!("{shown} instead of {wanted:?}"))
    });
    let metrics = node.metrics();
    let [received, recorded] =
        ["received", "recorded"].map(|kind| metrics.count(&format!("eds_events_{kind}_total")));
    let ledger = format!(
        "{received} received = {recorded} recorded + 1 rejected + 0 dropped + 0 queued. The totals add up."
    );
    wait_for(
        "the ledger shows the values of the metrics",
        || browser.text("#ledger"),
        |shown| shown.starts_with(&ledger),
    );

    browser.wait(
        "the list is shown",
        "document.querySelectorAll('#top-events tbody tr').length === 3",
        "document.querySelector('#top-events').textContent",
    );
    let row = |(series, users): (&str, i64)| [series.to_owned(), users.to_string()];
    assert_eq!(rows(&browser, "#top-users"), USERS.map(row));
    let row = |(series, users): (&str, i64)| [series.to_owned(), (2 * users).to_string()];
    assert_eq!(rows(&browser, "#top-events"), USERS.map(row));

    // The first series is drawn, with a bar in each plot for the only minute with events. The table contains all minutes.
    let numbers = rows(&browser, "#numbers-table");
    assert_eq!(numbers.len(), 31);
    let filled: Vec<_> = numbers.iter().filter(|row| row[1] != "0").collect();
    assert_eq!(filled.len(), 1, "{filled:?}");
    assert_eq!(filled[0][1..], ["18", "9", "closed"]);
    let bars = browser.evaluate("document.querySelectorAll('#plot rect.closed').length");
    assert_eq!(bars, 2);

    // All series are stacked in the minute with events, and each has a button in the legend.
    for quantity in ["events", "users"] {
        let [bars, names] = ["rect[class^=layer]", "button"].map(|element| {
            browser
                .evaluate(&format!("document.querySelectorAll('#all-{quantity} {element}').length"))
        });
        assert_eq!([bars, names], [3, 3], "{quantity}");
    }
    let tooltip = "[...document.querySelectorAll('#all-users title')].map(title => title.textContent).find(text => text.includes('20 users'))";
    let tooltip = browser.evaluate(tooltip);
    let parts: Vec<_> = tooltip.as_str().unwrap().lines().skip(1).collect();
    let expected: Vec<_> = USERS.map(|(series, users)| format!("{series}: {users}")).into();
    assert_eq!(parts[..3], expected);
    assert_eq!(parts[3], "all others: 0");

    // A listener passes on its examples once a second, so they can be reported after the count.
    wait_for(
        "the rejected line is shown with its example",
        || rows(&browser, "#rejected"),
        |shown| *shown == [["one", "tag_malformed", "1", "event_type= value=ann"]],
    );
    assert_eq!(browser.evaluate("document.querySelector('#rejected-section').hidden"), false);
    let limits = rows(&browser, "#headroom");
    let [queue, memory] = [&limits[0], &limits[1]];
    assert_eq!(queue[..2], ["Queued events", "one"]);
    assert_eq!(queue[3..], ["100.0%", "known in a minute"]);
    assert_eq!(memory[..2], ["Memory of queued events", "one"]);

    wait_for(
        "the highest number of users is compared with its limit",
        || rows(&browser, "#headroom"),
        |limits| {
            let users = limits.iter().find(|row| row[0] == "Users of a series in a minute");
            users.is_some_and(|row| row[2].starts_with("9 of "))
        },
    );
    let hour = rows(&browser, "#hour");
    assert_eq!((hour[0].len(), &*hour[0][0]), (5, "one"));

    let first = &rows(&browser, "#nodes")[0];
    assert_eq!(first[0], "one");
    assert_eq!(first[1], node.json("/api/v1/status")["nodes"][0]["version"]);
    assert_clean(&browser, node);
}

#[test]
fn relay_is_shown_below_the_nodes() {
    let ground = Ground::with_counts(&[]);
    let node = &ground.node;
    let to = node.udp().to_string();
    let url = ground.redis.url();
    let mut relay = Node::relay("east", &[&to], &[("node", "east"), ("store.url", &url)]);
    relay.run();
    let browser = ground.page();
    browser.wait(
        "the relay is shown",
        "!document.querySelector('#relays-section').hidden && !!document.querySelector('#relays tbody tr')",
        "document.querySelector('#relays').textContent",
    );
    let first = &rows(&browser, "#relays")[0];
    assert_eq!(first[0], "east");
    assert!(first.contains(&format!("{to} up, 0 dropped")), "{first:?}");
    assert_clean(&browser, node);
    assert_eq!(relay.terminate().code(), Some(0));
    browser.wait(
        "the stopped relay is no longer shown",
        "document.querySelector('#relays-section').hidden",
        "document.querySelector('#relays').textContent",
    );
}

#[test]
fn series_are_ranked_by_users_and_by_events() {
    let ground = Ground::start(&[]);
    let mut sender = Sender::paced_by(&ground.node);
    // Each minute has the same users.
    for minutes in 4..7 {
        let at = minutes_ago_ns(minutes);
        send(&mut sender, "event_type=steady", 3, at);
    }
    let at = minutes_ago_ns(5);
    send(&mut sender, "event_type=burst", 5, at);
    wait_sealed(&ground.node, 4);
    let items = |by| {
        let answer = ground.node.json(&format!("/api/v1/top?by={by}"));
        let items = answer["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|item| json!([item["series"], item["unique_minute_max"], item["cumulative"]]))
            .collect::<Vec<_>>()
    };
    let [burst, steady] = [json!(["event_type=burst", 5, 10]), json!(["event_type=steady", 3, 18])];
    assert_eq!(items("unique"), [burst.clone(), steady.clone()]);
    assert_eq!(items("cumulative"), [steady, burst]);
    let answer = ground.node.json("/api/v1/top?by=unique");
    let by_time = answer["by_time"].as_array().unwrap();
    assert_eq!(by_time.len(), 15);
    let counts = |moment: &Value| json!([moment["unique"], moment["cumulative"], moment["items"]]);
    let filled = by_time.iter().filter(|moment| moment["cumulative"] != 0).map(counts);
    let count = |unique, cumulative| json!({ "unique": unique, "cumulative": cumulative });
    assert_eq!(
        filled.collect::<Vec<_>>(),
        [
            json!([3, 6, [count(0, 0), count(3, 6)]]),
            json!([8, 16, [count(5, 10), count(3, 6)]]),
            json!([3, 6, [count(0, 0), count(3, 6)]]),
        ]
    );

    let browser = ground.page();
    browser.wait(
        "the lists are shown",
        "document.querySelectorAll('#top-events tbody tr').length === 2",
        "document.querySelector('.tops').textContent",
    );
    let heads = browser.evaluate(
        "[...document.querySelectorAll('#top-users thead th')].map(cell => cell.textContent)",
    );
    assert_eq!(heads, json!(["Series", "Most in a minute"]));
    let users = rows(&browser, "#top-users");
    assert_eq!(users, [["event_type=burst", "5"], ["event_type=steady", "3"]]);
    let events = rows(&browser, "#top-events");
    assert_eq!(events, [["event_type=steady", "18"], ["event_type=burst", "10"]]);
}

#[test]
fn open_minute_is_drawn_hollow_and_provisional() {
    let ground = Ground::start(&[("flush.grace", "5m"), ("flush.max_hold", "10m")]);
    let mut sender = Sender::paced_by(&ground.node);
    send(&mut sender, "event_type=login", 3, minutes_ago_ns(1));
    let browser = ground.page();
    browser.wait(
        "an open minute is drawn",
        "document.querySelectorAll('#plot rect.open').length === 2",
        "document.querySelector('#plot').innerHTML",
    );
    assert_eq!(browser.evaluate("document.querySelectorAll('#plot rect.closed').length"), 0);
    let open = rows(&browser, "#numbers-table");
    let open: Vec<_> = open.iter().filter(|row| row[1] == "6").collect();
    assert_eq!(open[0][1..], ["6", "3", "open, may grow"]);
    let dashes = "getComputedStyle(document.querySelector('#plot rect.open')).strokeDasharray";
    assert_ne!(browser.evaluate(dashes), "none");
    assert!(browser.text("#by-minute .legend").contains("provisional"));
}

#[test]
fn windows_of_a_rollup_are_drawn_and_open_ones_hollow() {
    // In this time zone, it is about noon, so that the day does not end during the test.
    let hours = 12
        - i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 3600 % 24).unwrap();
    let zone = format!("Etc/GMT{:+}", -hours);
    let ground = Ground::with_rollup(
        &[("input.max_age", "2days")],
        &[("name", "daily"), ("every", "1day"), ("by", "[\"product\"]"), ("time_zone", &zone)],
    );
    let mut sender = Sender::paced_by(&ground.node);
    let yesterday = minutes_ago_ns(24 * 60);
    // Both series are in one group and have the same users, but not the same events.
    for (series, users, at) in [
        ("event_type=a,product=p", 9, yesterday),
        ("event_type=b,product=p", 5, yesterday + MINUTE_NS),
        ("event_type=a,product=p", 3, minutes_ago_ns(1)),
    ] {
        send(&mut sender, series, users, at);
    }
    wait_for(
        "one window is sealed, and one is open",
        || ground.node.json("/api/v1/windows?rollup=daily")["counts"].clone(),
        |counts| counts[0]["provisional"] == false && counts[1]["unique"] == 3,
    );
    let browser = Chromium::start();
    browser.resize(1280, 900);
    browser.open(&format!("http://{}/#rollup=daily", ground.node.http()));
    browser.wait(
        "both windows are drawn",
        "document.querySelectorAll('#plot rect.closed').length === 2 && document.querySelectorAll('#plot rect.open').length === 2",
        "document.querySelector('#by-minute').innerHTML",
    );
    let numbers = rows(&browser, "#numbers-table");
    assert_eq!(numbers.len(), 30);
    assert_eq!(numbers[0][1..], ["6", "3", "open, may grow"]);
    assert_eq!(numbers[1][1..], ["28", "9", "closed"]);
    assert_eq!(browser.evaluate("document.querySelector('#series').value"), "product=p");
    assert_eq!(browser.text("#plot-title"), "One series, window by window");
    browser.wait(
        "the group is ranked",
        "document.querySelectorAll('#top-users tbody tr').length === 1",
        "document.querySelector('.tops').textContent",
    );
    assert_eq!(rows(&browser, "#top-users"), [["product=p", "9"]]);
    let rollup = &rows(&browser, "#rollups")[0];
    assert_eq!(rollup[..4], ["daily", "1d", "_daily", "1"]);
    assert_eq!(rollup[5], "its end");

    let select = |name: &str| {
        browser.evaluate(&format!(
            "document.querySelector('#rollup').value = '{name}';
             document.querySelector('#rollup').dispatchEvent(new Event('change'))"
        ))
    };
    select("");
    browser.wait(
        "the minutes are drawn",
        "document.querySelector('#numbers-table thead').textContent.includes('Minute') && document.querySelectorAll('#plot rect.closed').length === 2",
        "document.querySelector('#by-minute').innerHTML",
    );
    assert_eq!(
        browser.evaluate("document.querySelector('#series').value"),
        "event_type=a,product=p"
    );
    assert_eq!(rows(&browser, "#numbers-table").len(), 31);
    assert_clean(&browser, &ground.node);
}

#[test]
fn series_names_are_shown_as_text() {
    const HOSTILE: [&str; 4] = [
        r"a=<img/src\=x/onerror\=window.taken\=1>",
        r"a=</script><script>window.taken\=1</script>",
        r#"a="'><svg/onload\=window.taken\=1>,b=${window.taken\=1}"#,
        r"constructor=__proto__,from=now,tag.to=javascript:window.taken\=1",
    ];
    let ground = Ground::start(&[]);
    let mut sender = Sender::paced_by(&ground.node);
    for (series, users) in HOSTILE.iter().zip([9, 8, 7, 6]) {
        send(&mut sender, series, users, minutes_ago_ns(5));
    }
    wait_sealed(&ground.node, HOSTILE.len());
    let answer = ground.node.json("/api/v1/top?by=unique");
    let series = |item: &Value| item["series"].as_str().unwrap().to_owned();
    let names: Vec<_> = answer["items"].as_array().unwrap().iter().map(series).collect();
    assert_eq!(names.len(), HOSTILE.len());

    let browser = ground.page();
    for (name, users) in names.iter().zip([9, 8, 7, 6]) {
        let button = format!(
            "[...document.querySelectorAll('#top-users button')].find(button => button.textContent === {})",
            json!(name)
        );
        browser.evaluate(&format!("{button}.click()"));
        let shown = format!(
            "[...document.querySelectorAll('#numbers-table td')].some(cell => cell.textContent === '{users}')"
        );
        browser.wait(
            "the numbers of the series are shown",
            &shown,
            "document.querySelector('#numbers-table').textContent",
        );
        let chosen = browser.evaluate("document.querySelector('#series').value");
        assert_eq!(chosen, **name);
    }
    assert_eq!(browser.evaluate("typeof window.taken"), "undefined");
    assert_eq!(
        browser.evaluate("document.querySelectorAll('img, main script, svg svg').length"),
        0
    );
    assert_clean(&browser, &ground.node);
}

#[test]
fn memory_store_is_named_with_its_counts() {
    let node = Node::start(
        "alone",
        &[("store.url", "memory:"), ("output.url", "stdout:"), ("flush.grace", "300ms")],
    );
    let mut sender = Sender::paced_by(&node);
    send(&mut sender, "event_type=login", 3, minutes_ago_ns(5));
    wait_sealed(&node, 1);
    let browser = Chromium::start();
    browser.open(&format!("http://{}/", node.http()));
    browser.wait(
        "the page says where the counts are",
        "document.querySelector('#store').textContent.includes(`this node's memory`) && document.querySelectorAll('#plot rect.closed').length === 2",
        "document.querySelector('main').textContent",
    );
    assert_clean(&browser, &node);
}
