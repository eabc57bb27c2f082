//! Checks that promtool accepts the alerts, and that every metric and label that they use exists.

use testing::prelude::*;

use super::{path, read, texts, yaml};
use crate::names::Written;
use crate::world::World;

fn promtool(arguments: [&str; 2], file: &str) {
    let output = Command::new("promtool")
        .args(arguments)
        .arg(path(file))
        .output()
        .expect("promtool from the Debian package prometheus");
    assert!(output.status.success(), "{file}: {output:?}");
}

#[test]
fn alerts_are_valid_and_fire() {
    promtool(["check", "rules"], "dashboards/alerts.yml");
    promtool(["test", "rules"], "dashboards/alerts.test.yml");
    promtool(["check", "config"], "dashboards/prometheus.yml");
}

#[test]
fn every_alert_is_tested_and_documented() {
    let alerts = &yaml("dashboards/alerts.yml")[0];
    let names = texts(alerts, "alert");
    assert!(names.len() > 20);
    assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
    for key in ["severity", "summary", "action"] {
        assert_eq!(texts(alerts, key).len(), names.len(), "not every alert has a {key}");
    }
    let (tests, document) = (read("dashboards/alerts.test.yml"), read("docs/monitoring.md"));
    for name in names {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
        assert!(
            document.contains(&format!("`{name}`")),
            "{name} is missing from docs/monitoring.md"
        );
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn every_metric_and_label_of_the_alerts_is_reported() {
    let written = Written::by(&World::start());
    let mut metrics = 0;
    for file in ["dashboards/alerts.yml", "dashboards/alerts.test.yml"] {
        let text = read(file);
        for name in words(&text).filter(|word| word.starts_with("eds_")) {
            assert!(written.metrics.contains(name), "{file}: no metric is named {name}");
            metrics += 1;
        }
        let named = text.split("$labels.").skip(1).filter_map(|rest| words(rest).next());
        let lists = ["on(", "ignoring(", "without("].map(|open| {
            let lists = text.split(open).skip(1).filter_map(|rest| rest.split(')').next());
            lists.flat_map(words).collect::<Vec<_>>()
        });
        for label in named.chain(lists.into_iter().flatten()).filter(|label| !label.is_empty()) {
            // Prometheus adds these two labels.
            let known = ["job", "instance"].contains(&label) || written.labels.contains(label);
            assert!(known, "{file}: no metric has the label {label}");
        }
    }
    assert!(metrics > 50);
}
