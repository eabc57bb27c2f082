//! The queries: `/api/v1/minutes`, `/live`, `/top`, `/series`, `/coverage`, `/status` and `/losses`, as `docs/openapi.json` describes them.
//!
//! `parameters` reads what is asked for, `counts` gathers it from the store in small pieces over a connection of
//! its own when `turns` says that it is time, `top` has lists computed once for all nodes, which `lists` keeps.

mod answer;
mod counts;
mod coverage;
mod lists;
mod parameters;
mod top;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, InvalidSetting};

use self::answer::{CoverageAnswer, LiveAnswer, MinutesAnswer, SeriesAnswer, Tagged};
use self::counts::Source;
use self::lists::{LIST_TTL, Lists};
use self::parameters::{Filter, Parameters, Range};
use self::turns::{Pace, Turns};
use crate::event::Partitions;
use crate::http::problem::Problem;
use crate::node::Node;
use crate::status::Observer;
use crate::store::CountReader;
use crate::telemetry::Metrics;

/// How long a request may take in all.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// The longest window, in minutes, whatever the store keeps.
const WINDOW_MAX: i64 = 1440;
/// The most that a window's minutes and the partitions may come to, multiplied.
const PLACES_MAX: i64 = 200_000;

/// What queries are answered from.
#[derive(Debug)]
pub struct QuerySources {
    /// The counts.
    pub reading: Arc<dyn CountReader>,
    /// How the series are spread.
    pub partitions: Partitions,
    /// How long the counts of a minute are kept.
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
    lists: Lists,
    /// For those that have no place among the others.
    own_lists: Lists,
    turns: Turns,
    metrics: Arc<Metrics>,
    node: Arc<Node>,
    observer: Observer,
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
        Ok(Self {
            window_max: kept.min(WINDOW_MAX).min(places).max(1),
            lists: Lists::new(&sources.arbiter, true)?,
            own_lists: Lists::new(&(Arc::new(MemoryArbiter::default()) as _), false)?,
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

    /// The lists of all nodes, and those that only this one has.
    fn lists(&self) -> [&Lists; 2] {
        [&self.lists, &self.own_lists]
    }

    fn parameters(&self, uri: &Uri, allowed: &[&'static str]) -> Result<Parameters, Problem> {
        Parameters::read(uri, allowed, self.window_max)
    }

    async fn minutes(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["from", "to"])?;
        let range = parameters.range(self.now())?;
        let filter = parameters.filter();
        let source = self.source(&filter);
        let counts = self.look(source.minutes(range)).await?;
        let answer = MinutesAnswer {
            from: answer::minute(range.from),
            to: answer::minute(range.to),
            counts: answer::counts(counts),
            filter,
        };
        Ok(answer::json(&answer, Duration::from_secs(5), Duration::ZERO))
    }

    async fn live(&self, uri: &Uri) -> Result<Response, Problem> {
        let filter = self.parameters(uri, &[])?.filter();
        let source = self.source(&filter);
        let (counts, minutes_left_out) = self.look(source.live()).await?;
        let answer = LiveAnswer {
            provisional: true,
            minutes_left_out,
            counts: answer::counts(counts),
            filter,
        };
        Ok(answer::json(&answer, Duration::from_secs(1), Duration::ZERO))
    }

    async fn series(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["window"])?;
        let minutes = parameters.window()?;
        let range = Range::before(self.now(), minutes);
        let filter = parameters.filter();
        let source = self.source(&filter);
        let series = self.look(source.series(range)).await?;
        let answer = SeriesAnswer {
            window: format!("{minutes}m"),
            from: answer::minute(range.from),
            to: answer::minute(range.to),
            series: series.into_iter().map(Tagged::new).collect(),
            filter,
        };
        Ok(answer::json(&answer, Duration::from_secs(15), Duration::ZERO))
    }

    async fn coverage(&self, uri: &Uri) -> Result<Response, Problem> {
        let parameters = self.parameters(uri, &["from", "to"])?;
        let range = parameters.range(self.now())?;
        let filter = parameters.filter();
        if let Some(tag) = filter.keys().next() {
            let detail = "events are seen whatever their series; leave it out";
            return Err(Problem::parameter(tag, detail));
        }
        let source = self.source(&filter);
        let minutes = self.look(source.coverage(range)).await?;
        let answer = CoverageAnswer {
            from: answer::minute(range.from),
            to: answer::minute(range.to),
            minutes: answer::coverage(&minutes),
        };
        Ok(answer::json(&answer, Duration::from_secs(5), Duration::ZERO))
    }

    /// How everything is. It takes no turn: it has to answer when nothing else does, and looks once a second at most.
    async fn status(&self, uri: &Uri) -> Result<Response, Problem> {
        let filter = self.parameters(uri, &[])?.filter();
        if let Some(tag) = filter.keys().next() {
            let detail = "this is asked without parameters; leave it out";
            return Err(Problem::parameter(tag, detail));
        }
        let status = self.observer.status().await;
        Ok(answer::json(&status.to_json(), Duration::from_secs(1), Duration::ZERO))
    }

    /// The record of losses, as it was when the status was looked at last.
    async fn losses(&self, uri: &Uri) -> Result<Response, Problem> {
        let filter = self.parameters(uri, &[])?.filter();
        if let Some(tag) = filter.keys().next() {
            let detail = "this is asked without parameters; leave it out";
            return Err(Problem::parameter(tag, detail));
        }
        let losses = self.observer.status().await.losses();
        let detail = "the record of losses cannot be read while the store does not answer";
        let losses = losses.ok_or_else(|| Problem::unavailable(detail))?;
        Ok(answer::json(&losses, Duration::from_secs(1), Duration::ZERO))
    }

    async fn top(self: &Arc<Self>, uri: &Uri) -> Result<Response, Problem> {
        let allowed = ["by", "window", "n", "position", "list"];
        let top = self.parameters(uri, &allowed)?.top()?;
        let (answer, age) = top::answer(self, top).await?;
        Ok(answer::json(&answer, LIST_TTL, age))
    }

    /// Answers in time, or says that it did not.
    async fn bounded(answer: impl Future<Output = Result<Response, Problem>>) -> Response {
        let answer = tokio::time::timeout(ANSWERED_WITHIN, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(Problem::late()));
        answer.unwrap_or_else(IntoResponse::into_response)
    }
}

/// The routes of the queries.
pub(super) fn router(queries: Arc<Queries>) -> Router {
    type Asked = State<Arc<Queries>>;
    Router::new()
        .route(
            "/api/v1/minutes",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.minutes(&uri)).await }),
        )
        .route(
            "/api/v1/live",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.live(&uri)).await }),
        )
        .route(
            "/api/v1/series",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.series(&uri)).await }),
        )
        .route(
            "/api/v1/top",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.top(&uri)).await }),
        )
        .route(
            "/api/v1/coverage",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.coverage(&uri)).await }),
        )
        .route(
            "/api/v1/status",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.status(&uri)).await }),
        )
        .route(
            "/api/v1/losses",
            get(|State(it): Asked, uri: Uri| async move { Queries::bounded(it.losses(&uri)).await }),
        )
        .with_state(queries)
}
