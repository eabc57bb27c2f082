//! Checks the dashboards, the template and the alerts against the points and metrics of a real node and a real relay.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of this")]
mod support;

mod alerts;
mod grafana;
mod lifecycle;
mod names;
mod self_metrics;
mod template;
mod world;

use serde::Deserialize as _;
use testing::prelude::*;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

fn yaml(name: &str) -> Vec<Value> {
    let text = read(name);
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    let value =
        |document| Value::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"));
    documents.map(value).collect()
}

fn texts<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    let all = all_of(value, key).into_iter();
    all.filter_map(Value::as_str).collect()
}

fn all_of<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    let inner = |value: &'a Value| all_of(value, key);
    match value {
        Value::Array(items) => items.iter().flat_map(inner).collect(),
        Value::Object(fields) => {
            let own = fields.get(key);
            own.into_iter().chain(fields.values().flat_map(inner)).collect()
        }
        _ => Vec::new(),
    }
}
