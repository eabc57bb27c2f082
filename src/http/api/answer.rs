//! What the answers are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, SecondsFormat};
use serde::Serialize;

use super::counts::Counts;
use super::coverage::Covered;
use super::parameters::Filter;
use crate::event::{Minute, tags};
use crate::store::Coverage;

/// A series and its tags.
#[derive(Debug, Serialize)]
pub(super) struct Tagged {
    series: String,
    tags: BTreeMap<String, String>,
}

impl Tagged {
    pub(super) fn new(series: String) -> Self {
        Self { tags: tags(&series).into_iter().collect(), series }
    }
}

/// The counts of a series in a minute.
#[derive(Debug, Serialize)]
pub(super) struct Count {
    minute: String,
    #[serde(flatten)]
    series: Tagged,
    unique: u64,
    cumulative: u64,
}

/// The answer of `/api/v1/minutes`.
#[derive(Debug, Serialize)]
pub(super) struct MinutesAnswer {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) filter: Filter,
    pub(super) counts: Vec<Count>,
}

/// The answer of `/api/v1/live`.
#[derive(Debug, Serialize)]
pub(super) struct LiveAnswer {
    pub(super) provisional: bool,
    pub(super) filter: Filter,
    /// Whether there are older open minutes that this leaves out.
    pub(super) minutes_left_out: bool,
    pub(super) counts: Vec<Count>,
}

/// The answer of `/api/v1/series`.
#[derive(Debug, Serialize)]
pub(super) struct SeriesAnswer {
    pub(super) window: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) filter: Filter,
    pub(super) series: Vec<Tagged>,
}

/// The answer of `/api/v1/coverage`.
#[derive(Debug, Serialize)]
pub(super) struct CoverageAnswer {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) minutes: Vec<CoveredMinute>,
}

/// What each node saw of a minute.
#[derive(Debug, Serialize)]
pub(super) struct CoveredMinute {
    minute: String,
    /// All together, each counted once.
    events: u64,
    nodes: Vec<NodeShare>,
}

/// What a node saw of it.
#[derive(Debug, Serialize)]
struct NodeShare {
    node: String,
    events: u64,
    /// Of all.
    share: f64,
}

/// Every minute has all the nodes that saw something of any.
pub(super) fn coverage(covered: &Covered) -> Vec<CoveredMinute> {
    let names: BTreeSet<_> = covered.values().flat_map(|(_, nodes)| nodes.keys()).collect();
    let of_minute = |(minute, (events, nodes)): (&Minute, &(u64, Coverage))| CoveredMinute {
        minute: self::minute(minute.epoch_minutes()),
        events: *events,
        nodes: names
            .iter()
            .map(|&node| {
                let seen = nodes.get(node).copied().unwrap_or_default();
                NodeShare { node: node.clone(), events: seen, share: share(seen, *events) }
            })
            .collect(),
    };
    covered.iter().map(of_minute).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

pub(super) fn counts(counts: Counts) -> Vec<Count> {
    let count = |((minute, series), (unique, cumulative)): ((Minute, String), _)| Count {
        minute: self::minute(minute.epoch_minutes()),
        series: Tagged::new(series),
        unique,
        cumulative,
    };
    counts.into_iter().map(count).collect()
}

/// The first instant of a minute: `2016-12-04T18:38:00Z`.
pub(super) fn minute(epoch_minutes: i64) -> String {
    DateTime::from_timestamp(epoch_minutes.saturating_mul(60), 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An answer that may be used again until it is `max_age` old, and is `age` old.
pub(super) fn json(answer: &impl Serialize, max_age: Duration, age: Duration) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CACHE_CONTROL, format!("max-age={}", max_age.as_secs())),
        (header::AGE, age.as_secs().to_string()),
    ];
    let body = serde_json::to_string(answer).unwrap_or_default();
    (headers, body).into_response()
}
