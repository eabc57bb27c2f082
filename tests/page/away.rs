//! The page while the node, or Redis, or an output is down.

use testing::chromium::Chromium;

use crate::Ground;

#[track_caller]
fn wait_old(browser: &Chromium, is_old: bool) {
    browser.wait(
        "the page knows how old its numbers are",
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
    assert!(connection.starts_with("No answer since "), "{connection}");
    assert!(connection.ends_with("All numbers are old."), "{connection}");
    assert_eq!(browser.text("#answer"), "Unknown");
    assert!(browser.text("#sentence").contains("it cannot be reached"));
    assert!(browser.text("#spoken").contains("does not respond"));
    // The last numbers stay, and are marked.
    assert_eq!(browser.text("#pipeline .figure"), before);
    let mark = "getComputedStyle(document.querySelector('#pipeline-title'), '::after').content";
    assert_eq!(browser.evaluate(mark), "\" (old)\"");

    ground.node.run();
    wait_old(&browser, false);
    browser.wait(
        "the first line has an answer again",
        "!document.querySelector('#sentence').textContent.includes('does not respond')",
        "document.querySelector('#sentence').textContent",
    );
    assert!(!browser.text("#spoken").contains("does not respond"));
}

#[test]
fn hanging_node_is_shown_as_unreachable() {
    let ground = Ground::with_counts(&[]);
    let browser = ground.page();
    ground.node.signal("STOP");
    wait_old(&browser, true);
    assert!(browser.text("#sentence").contains("accepts connections and does not respond"));
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
    browser.wait(
        "the page says that there are no newer counts",
        "document.querySelector('#counts-state').textContent.startsWith('Nothing newer') && !document.body.classList.contains('old')",
        "document.querySelector('main').textContent",
    );
    browser.wait(
        "the page says what is wrong",
        "[...document.querySelectorAll('#findings .critical')].length > 0",
        "document.querySelector('#verdict').textContent",
    );
    assert_eq!(browser.evaluate(drawn), bars);
    // Values that only Redis knows are shown as unknown, and not as zero.
    browser.wait(
        "the page shows what is unknown as unknown",
        "[...document.querySelectorAll('#outputs td[data-label=Unsent], #outputs td[data-label=Quarantined]')].map((it) => it.textContent).join() === '–,–'",
        "document.querySelector('#outputs').textContent",
    );
    ground.redis.signal("CONT");
    browser.wait(
        "the page knows that all is well",
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
    // Requests under way when the page is hidden are finished; there must be none after twice the longest pause.
    let quiet = || browser.evaluate("new Promise((done) => setTimeout(done, 6000))");
    look(true);
    quiet();
    let asked = browser.requests().len();
    quiet();
    assert_eq!(browser.requests().len(), asked);
    look(false);
    browser.wait("it asks again", "performance.getEntriesByType('resource').length > 0", "0");
    testing::eventually::eventually("it asks again", testing::eventually::SOON, || {
        let now = browser.requests().len();
        testing::eventually::when(now > asked, now)
    });
}
