//! Tests the page while the node, Redis or an output is down.

use testing::chromium::Chromium;

use crate::Ground;

#[track_caller]
fn wait_old(browser: &Chromium, is_old: bool) {
    browser.wait(
        "the page shows the age of its numbers",
        &format!("document.body.classList.contains('old') === {is_old} && document.querySelector('#connection').textContent.startsWith('Live') === {}", !is_old),
        "document.querySelector('header').textContent",
    );
}

#[test]
fn page_shows_an_unreachable_node_and_recovers() {
    let mut ground = Ground::with_counts(&[]);
    let browser = ground.page();
    let before = browser.text("#pipeline .figure");
    ground.node.kill();
    wait_old(&browser, true);
    let connection = browser.text("#connection");
    assert!(connection.starts_with("No response since "), "{connection}");
    assert!(connection.ends_with("All numbers are stale."), "{connection}");
    assert_eq!(browser.text("#answer"), "Unknown");
    assert!(browser.text("#sentence").contains("it cannot be reached"));
    assert!(browser.text("#spoken").contains("is not responding"));
    // The last numbers are still shown, but marked as stale.
    assert_eq!(browser.text("#pipeline .figure"), before);
    let mark = "getComputedStyle(document.querySelector('#pipeline-title'), '::after').content";
    assert_eq!(browser.evaluate(mark), "\" (stale)\"");

    ground.node.run();
    wait_old(&browser, false);
    browser.wait(
        "the first line says that the node is responding again",
        "!document.querySelector('#sentence').textContent.includes('is not responding')",
        "document.querySelector('#sentence').textContent",
    );
    assert!(!browser.text("#spoken").contains("is not responding"));
}

#[test]
fn hanging_node_is_shown_as_unreachable() {
    let ground = Ground::with_counts(&[]);
    let browser = ground.page();
    ground.node.signal("STOP");
    wait_old(&browser, true);
    assert!(browser.text("#sentence").contains("the request timed out"));
    ground.node.signal("CONT");
    wait_old(&browser, false);
}

#[test]
fn unreadable_section_is_named_and_others_update() {
    let ground = Ground::with_counts(&[]);
    let browser = ground.page();
    let drawn = "document.querySelectorAll('#plot rect.closed').length";
    let bars = browser.evaluate(drawn);
    ground.redis.signal("STOP");
    // Asks now. On a busy machine, the page may pause for longer than this test waits.
    browser.evaluate("document.querySelector('#window').dispatchEvent(new Event('change')); null");
    browser.wait(
        "the page says that the counts are outdated",
        "document.querySelector('#counts-state').textContent.startsWith('No update at') && !document.body.classList.contains('old')",
        "document.querySelector('main').textContent",
    );
    browser.wait(
        "the page shows the problem",
        "[...document.querySelectorAll('#findings .critical')].length > 0",
        "document.querySelector('#verdict').textContent",
    );
    assert_eq!(browser.evaluate(drawn), bars);
    // Values that only Redis knows are shown as unknown, not as zero.
    browser.wait(
        "unknown values are shown as unknown",
        "[...document.querySelectorAll('#outputs td[data-label=Unsent], #outputs td[data-label=Quarantined]')].map((cell) => cell.textContent).join() === '–,–'",
        "document.querySelector('#outputs').textContent",
    );
    ground.redis.signal("CONT");
    browser.wait(
        "the page shows that everything is healthy",
        "document.querySelectorAll('#findings .critical').length === 0",
        "document.querySelector('#verdict').textContent",
    );
    browser.wait(
        "the page has counts again",
        "document.querySelector('#counts-state').textContent === ''",
        "document.querySelector('#counts-state').textContent",
    );
}

#[test]
fn hidden_page_sends_no_request() {
    let ground = Ground::with_counts(&[]);
    let browser = ground.page();
    let look = |hidden: bool| {
        browser.evaluate(&format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});
             document.dispatchEvent(new Event('visibilitychange'))"
        ));
    };
    // Requests that are in flight when the page is hidden may finish. Wait for twice the longest pause between requests.
    let quiet = || browser.evaluate("new Promise((done) => setTimeout(done, 6000))");
    look(true);
    quiet();
    let asked = browser.requests().len();
    quiet();
    assert_eq!(browser.requests().len(), asked);
    look(false);
    browser.wait(
        "the page sends requests again",
        "performance.getEntriesByType('resource').length > 0",
        "0",
    );
    testing::eventually::eventually(
        "the page sends requests again",
        testing::eventually::SOON,
        || {
            let now = browser.requests().len();
            testing::eventually::when(now > asked, now)
        },
    );
}
