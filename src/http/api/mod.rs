//! The queries under `/api/v1/`, as described in `docs/openapi.json`. `parameters` parses a request, `turns` lets one
//! request at a time read the store, `counts` reads it, `top` computes lists once for all nodes, and `lists` keeps them.

mod counts;
mod coverage;
mod lists;
mod parameters;
mod top;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, SecondsFormat};
use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, InvalidSetting};
use serde_json::{Value, json};
use tokio::time::timeout;

use self::counts::{Numbers, Source};
use self::lists::{LIST_TTL, Lists};
use self::parameters::{Counted, Filter, Parameters, Range, no_rollup};
use self::turns::{Pace, Turns};
use crate::event::{ESTIMATE_ERROR, Minute, Partitions};
use crate::http::problem::Problem;
use crate::node::Node;
use crate::status::Observer;
use crate::store::CountReader;
use crate::telemetry::Metrics;

const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// Maximum length of a window in minutes. The limit is lower if counts are kept for less time or there are many partitions.
const WINDOW_MAX: i64 = 1440;
/// Maximum length of a window in minutes, multiplied by the number of partitions.
const PLACES_MAX: i64 = 200_000;

#[derive(Debug)]
pub(crate) struct QuerySources {
    pub(crate) reading: Arc<dyn CountReader>,
    pub(crate) partitions: Partitions,
    pub(crate) retention: Duration,
    pub(crate) arbiter: Arc<dyn Arbiter>,
}

#[derive(Debug)]
pub(crate) struct Queries {
    reading: Arc<dyn CountReader>,
    partitions: Partitions,
    window_max: i64,
    /// The lists shared by all nodes, and this node's own lists, which are used if a shared slot is taken.
    lists: [Lists; 2],
    turns: Turns,
    metrics: Arc<Metrics>,
    node: Arc<Node>,
    observer: Observer,
}

impl Queries {
    pub(crate) fn new(
        sources: QuerySources,
        metrics: Arc<Metrics>,
        node: Arc<Node>,
        observer: Observer,
    ) -> Result<Self, InvalidSetting> {
        let kept = i64::try_from(sources.retention.as_secs() / 60).unwrap_or(i64::MAX);
        let places = PLACES_MAX / i64::from(sources.partitions.count());
        let own: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::default());
        Ok(Self {
            window_max: kept.min(WINDOW_MAX).min(places).max(1),
            lists: [Lists::new(&sources.arbiter, true)?, Lists::new(&own, false)?],
            turns: Turns::new(&sources.arbiter)?,
            reading: sources.reading,
            partitions: sources.partitions,
            metrics,
            node,
            observer,
        })
    }

    fn now(&self) -> i64 {
        self.node.clock.now_nanos().div_euclid(1_000_000_000)
    }

    fn source<'a>(&'a self, filter: &'a Filter, counted: &'a Counted) -> Source<'a> {
        Source { reading: &*self.reading, counted, filter, pace: Pace::default() }
    }

    async fn read<T>(
        &self,
        reading: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        self.turns.take(&*self.reading, reading).await
    }

    fn parameters(&self, uri: &Uri, allowed: &[&'static str]) -> Result<Parameters, Problem> {
        Parameters::read(uri, allowed, &self.partitions, self.window_max)
    }
}

type Answer = Result<Response, Problem>;

pub(super) fn router(queries: Arc<Queries>) -> Router {
    Router::new()
        .route("/api/v1/minutes", get(minutes))
        .route("/api/v1/live", get(live))
        .route("/api/v1/windows", get(windows))
        .route("/api/v1/series", get(series))
        .route("/api/v1/top", get(top))
        .route("/api/v1/coverage", get(coverage))
        .route("/api/v1/status", get(status))
        .route("/api/v1/losses", get(losses))
        .layer(middleware::from_fn(in_time))
        .with_state(queries)
}

async fn in_time(request: Request, next: Next) -> Answer {
    timeout(ANSWERED_WITHIN, next.run(request)).await.map_err(|_elapsed| Problem::late())
}

async fn minutes(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let parameters = queries.parameters(&uri, &["from", "to"])?;
    let range = parameters.range(queries.now())?;
    let Parameters { filter, counted, .. } = parameters;
    let found = queries.read(queries.source(&filter, &counted).minutes(range)).await?;
    let counts: Vec<_> = found.into_iter().map(count).collect();
    let (from, to) = (minute(range.from), minute(range.to));
    let answer = json!({ "from": from, "to": to, "filter": filter, "counts": counts });
    Ok(respond(&answer, Duration::from_secs(5), Duration::ZERO))
}

async fn live(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let Parameters { filter, counted, .. } = queries.parameters(&uri, &[])?;
    let source = queries.source(&filter, &counted);
    let (found, left_out) = queries.read(source.live(Range::ALL)).await?;
    let counts: Vec<_> = found.into_iter().map(count).collect();
    let answer = json!({
        "provisional": true, "filter": filter, "minutes_left_out": left_out, "counts": counts,
    });
    Ok(respond(&answer, Duration::from_secs(1), Duration::ZERO))
}

async fn windows(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let parameters = queries.parameters(&uri, &["rollup", "from", "to"])?;
    let range = parameters.range(queries.now())?;
    let Parameters { filter, counted, .. } = parameters;
    let Some(rollup) = &counted.rollup else {
        return Err(no_rollup(&queries.partitions, "this path requires the name of a rollup"));
    };
    let source = queries.source(&filter, &counted);
    // The sealed windows are read last, so that they include windows that have been sealed in the meantime.
    let reading = async { Ok((source.live(range).await?, source.minutes(range).await?)) };
    let ((mut all, left_out), sealed) = queries.read(reading).await?;
    all.extend(sealed.clone());
    let window = |last: Minute| {
        let [start, last] = counted.every.window(last).map(Minute::epoch_minutes);
        json!({ "start": minute(start), "end": minute(last + 1) })
    };
    let counts = all.into_iter().map(|(key, (unique, cumulative, quality))| {
        let window = window(key.0);
        json!({
            "start": window["start"], "end": window["end"], "tags": tags(&key.1), "series": key.1,
            "unique": unique, "cumulative": cumulative, "provisional": !sealed.contains_key(&key),
            "error": if quality.is_estimated { ESTIMATE_ERROR } else { 0.0 },
            "complete": !quality.is_incomplete,
        })
    });
    let (from, to) = (minute(range.from), minute(range.to));
    let answer = json!({
        "rollup": rollup, "from": from, "to": to, "filter": filter, "windows_left_out": left_out,
        "windows": range.windows(counted.every).map(window).collect::<Vec<_>>(),
        "counts": counts.collect::<Vec<_>>(),
    });
    Ok(respond(&answer, Duration::from_secs(5), Duration::ZERO))
}

async fn series(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let parameters = queries.parameters(&uri, &["window", "rollup"])?;
    let minutes = parameters.window()?;
    let Parameters { filter, counted, .. } = parameters;
    let range = Range::before(queries.now(), minutes, counted.every);
    let series = queries.read(queries.source(&filter, &counted).series(range)).await?;
    let series = series.iter().map(|series| json!({ "series": series, "tags": tags(series) }));
    let mut answer = json!({
        "window": format!("{minutes}m"), "from": minute(range.from), "to": minute(range.to),
        "filter": filter, "series": series.collect::<Vec<_>>(),
    });
    if let Some(name) = counted.rollup {
        answer["rollup"] = json!(name);
    }
    Ok(respond(&answer, Duration::from_secs(15), Duration::ZERO))
}

async fn coverage(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let parameters = queries.parameters(&uri, &["from", "to"])?;
    let range = parameters.range(queries.now())?;
    let no_tags = "coverage includes all series; remove this parameter";
    let Parameters { filter, counted, .. } = parameters.without_tags(no_tags)?;
    let minutes = queries.read(queries.source(&filter, &counted).coverage(range)).await?;
    let (from, to) = (minute(range.from), minute(range.to));
    let answer = json!({ "from": from, "to": to, "minutes": minutes });
    Ok(respond(&answer, Duration::from_secs(5), Duration::ZERO))
}

/// Returns the status without waiting for a turn, because it must be available when queries are not.
async fn status(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    queries.parameters(&uri, &[])?.without_tags(NO_PARAMETERS)?;
    let status = queries.observer.status().await;
    Ok(respond(&status.to_json(), Duration::from_secs(1), Duration::ZERO))
}

async fn losses(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    queries.parameters(&uri, &[])?.without_tags(NO_PARAMETERS)?;
    let losses = queries.observer.status().await.losses();
    let detail = "the loss record cannot be read while the store is not responding";
    let losses = losses.ok_or_else(|| Problem::unavailable(detail))?;
    Ok(respond(&losses, Duration::from_secs(1), Duration::ZERO))
}

const NO_PARAMETERS: &str = "this path takes no parameters; remove them";

async fn top(State(queries): State<Arc<Queries>>, uri: Uri) -> Answer {
    let allowed = ["by", "window", "n", "position", "list", "rollup"];
    let top = queries.parameters(&uri, &allowed)?.top()?;
    let (answer, age) = top::answer(&queries, &top).await?;
    Ok(respond(&answer, LIST_TTL, age))
}

fn count(((at, series), (unique, cumulative, _)): ((Minute, String), Numbers)) -> Value {
    json!({
        "minute": minute(at.epoch_minutes()), "tags": tags(&series), "series": series,
        "unique": unique, "cumulative": cumulative,
    })
}

fn tags(series: &str) -> BTreeMap<String, String> {
    crate::event::tags(series).into_iter().collect()
}

/// Returns the start time of a minute, such as `2016-12-04T18:38:00Z`.
fn minute(epoch_minutes: i64) -> String {
    DateTime::from_timestamp(epoch_minutes.saturating_mul(60), 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Returns a JSON response whose headers state that it is `age` old and may be cached until it is `max_age` old.
fn respond(answer: &Value, max_age: Duration, age: Duration) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CACHE_CONTROL, format!("max-age={}", max_age.as_secs())),
        (header::AGE, age.as_secs().to_string()),
    ];
    (headers, answer.to_string()).into_response()
}
