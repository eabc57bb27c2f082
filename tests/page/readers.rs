//! Tests that the page can be used with a keyboard, with a screen reader, and on a screen with low contrast.

use std::process::Command;

use serde_json::json;
use testing::chromium::{Chromium, Theme};
use testing::prelude::*;

use crate::support::load::Sender;
use crate::{Ground, HOURLY};

const FOCUSED: &str = "(() => {
    const focused = document.activeElement;
    const seen = getComputedStyle(focused).outlineStyle !== 'none' && focused.getBoundingClientRect().right > 0;
    return [focused.id || focused.dataset.key || focused.className || focused.tagName, seen];
})()";

/// Returns the texts whose contrast is below the minimum of WCAG 2.2 AA.
const FAINT: &str = r"(() => {
    const channels = (color) => color.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((channel) => channel / 255)
        .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4))
        .reduce((sum, channel, place) => sum + channel * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = (element) => {
        for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
            const color = channels(getComputedStyle(ancestor).backgroundColor);
            if (color.length === 3 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== '');
        if (!own || element.closest('option, noscript, title')) continue;
        const style = getComputedStyle(element);
        const color = channels(element.namespaceURI.includes('svg') ? style.fill : style.color);
        const [a, b] = [light(color), light(behind(element))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) faint.push(`${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}: ${contrast}`);
    }
    return faint;
})()";

#[test]
fn keyboard_reaches_every_control_with_visible_focus() {
    let ground = Ground::with_counts(&HOURLY);
    let browser = ground.page();
    let controls =
        browser.evaluate("document.querySelectorAll('a, input, select, button, summary').length");
    let mut reached = Vec::new();
    for _ in 0..controls.as_u64().unwrap() {
        browser.press("Tab");
        let [name, seen] = serde_json::from_value::<[Value; 2]>(browser.evaluate(FOCUSED)).unwrap();
        assert_eq!(seen, true, "{name} has the focus, but this is not visible");
        reached.push(name.as_str().unwrap().to_owned());
    }
    let others: Vec<_> = reached.iter().filter(|name| !name.contains('=')).collect();
    assert_eq!(others[..5], ["skip", "search", "series", "rollup", "window"]);
    // Each series has a button in both lists and in both legends, so each name is reached four times.
    let different: BTreeSet<_> = reached.iter().collect();
    assert_eq!(different.len(), 6 + 3, "{reached:?}");

    // The focused button selects a series. After the list has been redrawn, the new button for the series has the focus.
    browser.press("Enter");
    let chosen = reached.last().unwrap();
    browser.wait(
        "the series is selected",
        &format!("document.querySelector('#series').value === '{chosen}'"),
        "document.querySelector('#series').value",
    );
    browser.evaluate(
        "document.activeElement.old = true;
         document.querySelector('#window').value = '15';
         document.querySelector('#window').dispatchEvent(new Event('change'))",
    );
    browser.wait(
        "the list is redrawn",
        "![...document.querySelectorAll('button')].some((button) => button.old)",
        "document.activeElement.outerHTML",
    );
    let focused = "[document.activeElement.dataset.key, document.activeElement.ariaPressed]";
    assert_eq!(browser.evaluate(focused), json!([chosen, "true"]));
}

#[test]
fn page_has_landmarks_headings_tables_and_names() {
    let ground = Ground::with_counts(&HOURLY);
    let browser = ground.page();
    let found = browser.accessible();
    let names = |role: &str| -> Vec<&str> {
        let of_role = found.iter().filter(|(actual, _)| actual == role);
        of_role.map(|(_, name)| name.as_str()).collect()
    };
    for landmark in ["banner", "main", "contentinfo"] {
        assert_eq!(names(landmark).len(), 1, "{landmark}: {found:?}");
    }
    let answer = browser.text("#answer");
    let first = format!("Has anything been lost? {answer}");
    let headings = names("heading");
    assert_eq!(headings[0], first);
    for heading in [
        "From events to points",
        "All series, minute by minute",
        "One series, minute by minute",
        "Most users",
        "Most events",
        "Nodes",
        "Rollups",
        "Headroom",
        "Outputs",
        "Store",
    ] {
        assert!(headings.contains(&heading), "{headings:?}");
    }
    let plots = names("image");
    assert_eq!(plots.len(), 4, "{found:?}");
    for (plot, beginning) in [
        (plots[0], "Events per minute of all series, stacked. Highest: 40 at "),
        (plots[2], "Events per minute for event_type=login,product=shop from "),
    ] {
        assert!(plot.starts_with(beginning), "{plots:?}");
    }
    for role in ["table", "button", "combobox", "searchbox", "image", "region"] {
        let names = names(role);
        assert!(!names.is_empty(), "no {role}");
        assert!(names.iter().all(|name| !name.is_empty()), "{role}: {names:?}");
    }
    assert!(names("columnheader").contains(&"Dropped"));
    assert!(names("rowheader").contains(&"one"));
    assert_eq!(names("status").len(), 1);
}

#[test]
fn axe_finds_nothing() {
    let setup = Command::new("scripts/setup").args(["--tool", "axe-core"]).output().unwrap();
    let path = String::from_utf8(setup.stdout).unwrap();
    assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
    let axe = std::fs::read_to_string(path.trim()).unwrap();
    let ground = Ground::with_counts(&HOURLY);
    Sender::paced_by(&ground.node).send_unrecorded(b"event_type= value=ann");
    let browser = ground.page();
    browser.wait(
        "the rejected line is shown",
        "!document.querySelector('#rejected-section').hidden",
        "document.querySelector('#rejected').textContent",
    );
    // Returns nothing, since the script's value cannot be returned.
    browser.evaluate(&format!("{axe}; null"));
    let found = "axe.run().then(({ violations }) =>
        violations.map(({ id, nodes }) => [id, ...nodes.map((node) => node.html)]))";
    for (theme, width) in [(Theme::Light, 1280), (Theme::Dark, 1280), (Theme::Light, 360)] {
        browser.prefer(theme);
        browser.resize(width, 900);
        assert_eq!(browser.evaluate(found), json!([]), "{theme:?}, {width} px");
    }
}

#[test]
fn every_text_has_contrast_in_both_themes() {
    let mut ground = Ground::with_counts(&HOURLY);
    let browser = ground.page();
    let check = |browser: &Chromium, state: &str| {
        for theme in [Theme::Light, Theme::Dark] {
            browser.prefer(theme);
            let faint = browser.evaluate(FAINT);
            assert_eq!(faint, Value::Array(Vec::new()), "{state}, {theme:?}");
        }
    };
    check(&browser, "live");
    let ground_of = |theme| {
        browser.prefer(theme);
        browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    };
    assert_ne!(ground_of(Theme::Light), ground_of(Theme::Dark));
    ground.node.kill();
    browser.wait(
        "the numbers are marked as stale",
        "document.body.classList.contains('old')",
        "document.querySelector('header').textContent",
    );
    check(&browser, "old");
}
