//! Tests that no element is wider than the page, on screens from a phone to a wall display.

use serde_json::{Value, json};
use testing::chromium::Chromium;

use crate::support::load::Sender;
use crate::{Ground, HOURLY, minutes_ago_ns, send, wait_sealed};

/// Returns the visible elements that extend beyond the right edge of the page.
const TOO_WIDE: &str = "(() => {
    const width = document.documentElement.clientWidth;
    const wide = [...document.querySelectorAll('body *')].filter((element) => {
        const box = element.getBoundingClientRect();
        return box.right > width + 1 && !element.closest('.unseen, thead');
    });
    const all = wide.map((element) => `${element.tagName} ${element.id || element.className} ${element.textContent.slice(0, 40)}`);
    if (document.documentElement.scrollWidth > width) all.push(`the page scrolls to ${document.documentElement.scrollWidth}`);
    return all;
})()";

#[track_caller]
fn assert_fits(browser: &Chromium, width: u32) {
    browser.resize(width, 900);
    let fits = format!(
        "Number(document.querySelector('#plot svg').getAttribute('viewBox').split(' ')[2]) <= {width}"
    );
    browser.wait(
        "the plot is drawn for this width",
        &fits,
        "document.querySelector('#plot').innerHTML",
    );
    let wide = browser.evaluate(TOO_WIDE);
    assert_eq!(wide, Value::Array(Vec::new()), "at {width}");
}

#[test]
fn page_fits_every_width() {
    let ground = Ground::with_counts(&HOURLY);
    let mut sender = Sender::paced_by(&ground.node);
    // A long word without spaces, with the maximum length of a tag.
    let long = format!("event_type={}", "x".repeat(200));
    send(&mut sender, &long, 12, minutes_ago_ns(4));
    wait_sealed(&ground.node, 4);
    let browser = ground.page();
    browser.evaluate("document.querySelector('#numbers').open = true");
    for width in [1600, 320, 400, 768, 1280, 2560] {
        assert_fits(&browser, width);
    }
    let shown = browser.evaluate("document.querySelector('#series').value");
    assert_eq!(shown, json!(long));
}
