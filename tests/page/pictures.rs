//! Takes screenshots of the page for visual checks and for the documents.

use std::fs::File;
use std::io::Write;

use testing::chromium::{Chromium, Theme};
use testing::http::{answer, post};
use testing::prelude::*;

use crate::minutes_ago_ns;
use crate::support::load::Sender;
use crate::support::node::Node;

const USUAL: [(&str, i64); 10] = [
    ("event_type=page_view,product=shop", 42),
    ("event_type=page_view,product=search", 35),
    ("event_type=search,product=search,region=eu-west-1", 21),
    ("event_type=login,product=shop", 13),
    ("event_type=login,product=app-android", 11),
    ("event_type=login,product=app-ios", 9),
    ("event_type=checkout,product=shop", 7),
    ("event_type=browser_error,product=shop,release=2026-11-18", 4),
    ("event_type=http-5xx,product=search", 3),
    ("event_type=payment_failed,product=shop,reason=card_declined", 2),
];
const MINUTES: i64 = 35;

/// Writes PNG files to `target/pictures`, two of which are copied to `docs/images`. Narrow screenshots end above the lists.
#[test]
#[ignore = "only takes screenshots; run scripts/screenshots"]
fn screenshots_of_three_nodes_are_made() {
    let redis = RedisServer::start(&["--maxmemory", "256mb", "--appendonly", "yes"]);
    let influxdb = InfluxServer::start();
    let create = [("q", "CREATE DATABASE events")];
    let to = ([127, 0, 0, 1], influxdb.port()).into();
    answer(post(to, "/query").query(&create)).unwrap();
    let nodes = ["eds-1", "eds-2", "eds-3"].map(|name| {
        let keys = [
            ("store.url", redis.url()),
            ("output.url", influxdb.url()),
            ("output.api", "v1".to_owned()),
            ("output.database", "events".to_owned()),
            ("flush.grace", "1s".to_owned()),
            ("input.max_age", "1h".to_owned()),
        ];
        let keys = keys.each_ref().map(|(key, value)| (*key, value.as_str()));
        Node::start(name, &keys)
    });
    let mut sender = Sender::to_all(&nodes);
    for minute in (0..=MINUTES).rev() {
        let at = minutes_ago_ns(minute);
        for (place, (series, usual)) in (0_i64..).zip(USUAL) {
            // Each series is a slow wave with some noise. The current minute contains only some of its events.
            let wave = ((minute + place * 23) % 60 - 30).abs() + (minute * 37 + place * 13) % 11;
            let many = usual * (70 + wave) / if minute == 0 { 250 } else { 100 };
            let is_bad = series.contains("5xx") && (12..17).contains(&minute);
            for user in 0..if is_bad { many * 6 } else { many } {
                for event in 0..=(user + minute) % 4 {
                    let at = at + 1_237 + user * 1_000_003 + event * 1_009;
                    sender.send_unrecorded(format!("{series} value=user{user} {at}"));
                }
            }
        }
    }
    sender.wait_received();
    eventually("all minutes except the current one are final", SOON, || {
        let path = format!("/api/v1/minutes?from={}", minutes_ago_ns(MINUTES) / 1_000_000_000);
        let sealed = nodes[0].json(&path)["counts"].as_array().unwrap().len();
        when(i64::try_from(sealed).unwrap() >= 10 * MINUTES, sealed)
    });
    let browser = Chromium::start();
    let into = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/pictures");
    std::fs::create_dir_all(&into).unwrap();
    for (name, theme) in [("light", Theme::Light), ("dark", Theme::Dark)] {
        for width in [400, 1600] {
            browser.prefer(theme);
            browser.resize(width, 1000);
            browser.open(&format!("http://{}/", nodes[0].http()));
            browser.wait(
                "all minutes and nodes are shown",
                "document.querySelectorAll('#plot rect.closed').length === 60 && document.querySelectorAll('#nodes tbody tr').length === 3",
                "document.body.textContent",
            );
            let end = if width == 400 { "#by-minute" } else { "footer" };
            let end = format!(
                "Math.ceil(document.querySelector('{end}').getBoundingClientRect().bottom) + 6"
            );
            let height = browser.evaluate(&end).as_u64().unwrap();
            browser.resize(width, u32::try_from(height).unwrap());
            let file = File::create(into.join(format!("{name}-{width}.png"))).unwrap();
            let mut decoding = Command::new("base64")
                .arg("-d")
                .stdin(Stdio::piped())
                .stdout(file)
                .spawn()
                .unwrap();
            let mut to = decoding.stdin.take().unwrap();
            to.write_all(browser.picture().as_bytes()).unwrap();
            drop(to);
            assert!(decoding.wait().unwrap().success());
        }
    }
}
