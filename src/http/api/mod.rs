//! The queries: `/api/v1/minutes`, `/live`, `/top`, `/series`, `/coverage`, `/status` and `/losses`, as `docs/openapi.json` describes them.
//!
//! `parameters` parses requests, `counts` reads the store in small pieces over a dedicated connection, one request at a time by
//! `turns`, `top` has lists computed once for all nodes, which `lists` keeps.

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
use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, SecondsFormat};
use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, InvalidSetting};
use serde::Serialize;
use tokio::time::timeout;

use self::counts::{Counts, Source};
use self::coverage::CoveredMinute;
use self::lists::{LIST_TTL, Lists};
use self::parameters::{Filter, Parameters, Range};
use self::turns::{Pace, Turns};
use crate::event::{Partitions, tags};
use crate::http::problem::Problem;
use crate::node::Node;
use crate::status::Observer;
use crate::store::CountReader;
use crate::telemetry::Metrics;

/// The longest duration of a request.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// The longest window, in minutes, whatever the store keeps.
const WINDOW_MAX: i64 = 1440;
/// The maximum product of a window's minutes and the partitions.
const PLACES_MAX: i64 = 200_000;
const PATH: &str = "/api/v1/";
const QUERIES: [&str; 7] = ["minutes", "live", "series", "top", "coverage", "status", "losses"];

/// What queries are answered from.
#[derive(Debug)]
pub struct QuerySources {
    /// The counts.
    pub reading: Arc<dyn CountReader>,
    /// How the series are spread.
    pub partitions: Partitions,
    /// The retention of a minute's counts.
    pub retention: Duration,
    /// Who sees to it that a list is computed once.
    pub arbiter: Arc<dyn Arbiter>,
}

/// The queries of a node.
#[derive(Debug)]
pub struct Queries {
    reading: Arc<dyn CountReader>,
    partitions: Partitions,
    window_max: i64,
    /// The lists of all nodes, and those that only this node has, since another list is in their slot.
    lists: [Lists; 2],
    turns: Turns,
    metrics: Arc<Metrics>,
    node: Arc<Node>,
    observer: Observer,
}

/// A series and its tags.
#[derive(Debug, Serialize)]
struct Tagged {
    series: String,
    tags: BTreeMap<String, String>,
}

impl Tagged {
    fn new(series: String) -> Self {
        Self { tags: tags(&series).into_iter().collect(), series }
    }
}

/// The counts of a series in a minute.
#[derive(Debug, Serialize)]
struct Count {
    minute: String,
    #[serde(flatten)]
    series: Tagged,
    unique: u64,
    cumulative: u64,
}

#[derive(Debug, Serialize)]
struct MinutesAnswer {
    from: String,
    to: String,
    filter: Filter,
    counts: Vec<Count>,
}

#[derive(Debug, Serialize)]
struct LiveAnswer {
    provisional: bool,
    filter: Filter,
    /// Whether there are older open minutes that this leaves out.
    minutes_left_out: bool,
    counts: Vec<Count>,
}

#[derive(Debug, Serialize)]
struct SeriesAnswer {
    window: String,
    from: String,
    to: String,
    filter: Filter,
    series: Vec<Tagged>,
}

#[derive(Debug, Serialize)]
struct CoverageAnswer {
    from: String,
    to: String,
    minutes: Vec<CoveredMinute>,
}

impl Queries {
    /// Queries over these sources.
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

    /// Seconds since the epoch.
    fn now(&self) -> i64 {
        self.node.clock.now_nanos().div_euclid(1_000_000_000)
    }

    fn source<'a>(&'a self, filter: &'a Filter) -> Source<'a> {
        Source {
            reading: &*self.reading,
            partitions: self.partitions.clone(),
            filter,
            pace: Pace::default(),
        }
    }

    /// Looks through the counts when it is this request's turn.
    async fn look<T>(
        &self,
        looking: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        self.turns.look(&*self.reading, looking).await
    }

    fn parameters(&self, uri: &Uri, allowed: &[&'static str]) -> Result<Parameters, Problem> {
        Parameters::read(uri, allowed, self.window_max)
    }

    async fn minutes(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["from", "to"])?;
        let range = parameters.range(self.now())?;
        let filter = parameters.filter;
        let found = self.look(self.source(&filter).minutes(range)).await?;
        let (from, to) = (minute(range.from), minute(range.to));
        let answer = MinutesAnswer { from, to, counts: counts(found), filter };
        Ok(json(&answer, Duration::from_secs(5), Duration::ZERO))
    }

    async fn live(&self, uri: &Uri) -> Result<Response, Problem> {
        let filter = self.parameters(uri, &[])?.filter;
        let (found, minutes_left_out) = self.look(self.source(&filter).live()).await?;
        let counts = counts(found);
        let answer = LiveAnswer { provisional: true, filter, minutes_left_out, counts };
        Ok(json(&answer, Duration::from_secs(1), Duration::ZERO))
    }

    async fn series(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["window"])?;
        let minutes = parameters.window()?;
        let range = Range::before(self.now(), minutes);
        let filter = parameters.filter;
        let series = self.look(self.source(&filter).series(range)).await?;
        let answer = SeriesAnswer {
            window: format!("{minutes}m"),
            from: minute(range.from),
            to: minute(range.to),
            series: series.into_iter().map(Tagged::new).collect(),
            filter,
        };
        Ok(json(&answer, Duration::from_secs(15), Duration::ZERO))
    }

    async fn coverage(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["from", "to"])?;
        let range = parameters.range(self.now())?;
        let no_filter =
            parameters.without_tags("events are seen whatever their series; leave it out")?;
        let minutes = self.look(self.source(&no_filter).coverage(range)).await?;
        let (from, to) = (minute(range.from), minute(range.to));
        Ok(json(&CoverageAnswer { from, to, minutes }, Duration::from_secs(5), Duration::ZERO))
    }

    /// How everything is. It takes no turn: it has to answer when nothing else does, and looks once a second at most.
    async fn status(&self, uri: &Uri) -> Result<Response, Problem> {
        self.parameters(uri, &[])?.without_tags(NO_PARAMETERS)?;
        let status = self.observer.status().await;
        Ok(json(&status.to_json(), Duration::from_secs(1), Duration::ZERO))
    }

    /// Answers with the record of losses at the time of the last status.
    async fn losses(&self, uri: &Uri) -> Result<Response, Problem> {
        self.parameters(uri, &[])?.without_tags(NO_PARAMETERS)?;
        let losses = self.observer.status().await.losses();
        let detail = "the record of losses cannot be read while the store does not answer";
        let losses = losses.ok_or_else(|| Problem::unavailable(detail))?;
        Ok(json(&losses, Duration::from_secs(1), Duration::ZERO))
    }

    async fn top(self: &Arc<Self>, uri: &Uri) -> Result<Response, Problem> {
        let allowed = ["by", "window", "n", "position", "list"];
        let top = self.parameters(uri, &allowed)?.top()?;
        let (answer, age) = top::answer(self, top).await?;
        Ok(json(&answer, LIST_TTL, age))
    }
}

const NO_PARAMETERS: &str = "this is asked without parameters; leave it out";

/// The routes of the queries.
pub(super) fn router(queries: Arc<Queries>) -> Router {
    let router = QUERIES
        .iter()
        .fold(Router::new(), |router, name| router.route(&format!("{PATH}{name}"), get(answer)));
    router.with_state(queries)
}

/// Answers within [`ANSWERED_WITHIN`], or with a problem.
async fn answer(State(queries): State<Arc<Queries>>, uri: Uri) -> Response {
    let answering = async {
        match uri.path().strip_prefix(PATH) {
            Some("minutes") => queries.minutes(&uri).await,
            Some("live") => queries.live(&uri).await,
            Some("series") => queries.series(&uri).await,
            Some("top") => queries.top(&uri).await,
            Some("coverage") => queries.coverage(&uri).await,
            Some("losses") => queries.losses(&uri).await,
            _ => queries.status(&uri).await,
        }
    };
    let answer = timeout(ANSWERED_WITHIN, answering).await;
    answer.unwrap_or_else(|_| Err(Problem::late())).unwrap_or_else(IntoResponse::into_response)
}

fn counts(counts: Counts) -> Vec<Count> {
    let counts = counts.into_iter().map(|((at, series), (unique, cumulative))| {
        let (minute, series) = (minute(at.epoch_minutes()), Tagged::new(series));
        Count { minute, series, unique, cumulative }
    });
    counts.collect()
}

/// The first instant of a minute: `2016-12-04T18:38:00Z`.
fn minute(epoch_minutes: i64) -> String {
    DateTime::from_timestamp(epoch_minutes.saturating_mul(60), 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An answer that may be used again until it is `max_age` old, and is `age` old.
fn json(answer: &impl Serialize, max_age: Duration, age: Duration) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CACHE_CONTROL, format!("max-age={}", max_age.as_secs())),
        (header::AGE, age.as_secs().to_string()),
    ];
    (headers, serde_json::to_string(answer).unwrap_or_default()).into_response()
}
