//! Health and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`; and the queries, see `api`.
//!
//! `/healthz` says whether the process should live: it fails when a worker stalls. `/readyz` says whether it
//! should be sent events: it fails, with reasons, while the store is away or has no room, a socket fails, and while the node drains. An output
//! that is away is a warning; the counts wait in the store, and other nodes could do no better.

mod api;
mod connections;
mod explained;
mod problem;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::api::{Queries, QuerySources};
use self::problem::Problem;
use crate::node::Node;
use crate::store::Store;
use crate::telemetry::{Format, Metrics};

/// The most connections, however many descriptors there are.
pub const CONNECTIONS_MAX: usize = 256;
/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The longest path and query of a request, in bytes.
const URI_BYTES_MAX: usize = 8 * 1024;
/// How long a worker may stall before the process is unhealthy.
pub const STALLED_AFTER: Duration = Duration::from_secs(30);
/// How long the store may take to answer before the node is not ready.
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// What the answers are made from.
#[derive(Debug, Clone)]
pub struct Health {
    /// Asked whether it answers and has room.
    pub store: Arc<dyn Store>,
    /// What is known of this node.
    pub node: Arc<Node>,
    /// Shown on `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the node drains.
    pub draining: CancellationToken,
}

#[derive(Debug, Serialize)]
struct Readiness {
    ready: bool,
    reasons: Vec<String>,
    warnings: Vec<String>,
}

/// Serves so many connections at a time until `stop` is cancelled.
pub async fn serve(
    listener: TcpListener,
    connections: usize,
    health: Health,
    queries: Arc<Queries>,
    stop: CancellationToken,
) {
    let open = health.metrics.http_connections.clone();
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(health)
        .merge(api::router(queries))
        .fallback(async || Problem::no_path())
        .method_not_allowed_fallback(async || Problem::method())
        .layer(middleware::from_fn(bounded));
    connections::serve(listener, router, connections, open, stop).await;
}

/// Answers what is not too long.
async fn bounded(request: Request, next: Next) -> Response {
    let uri = request.uri();
    let bytes = uri.path().len() + uri.query().map_or(0, |query| 1 + query.len());
    if bytes > URI_BYTES_MAX {
        return Problem::long_uri(bytes).into_response();
    }
    next.run(request).await
}

async fn healthz(State(health): State<Health>) -> Response {
    let stalled = health.node.progress.stalled(STALLED_AFTER);
    if stalled.is_empty() {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        let text = format!("stalled: {}\n", stalled.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    let mut reasons = Vec::new();
    let mut warnings = health.store.warnings();
    match tokio::time::timeout(STORE_ANSWERS_WITHIN, health.store.check()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => reasons.push(error.to_string()),
        Err(_) => reasons.push("store is unavailable: no answer".to_owned()),
    }
    if health.draining.is_cancelled() {
        reasons.push("the node is shutting down".to_owned());
    }
    if health.node.listeners_failing.load(Ordering::Relaxed) > 0 {
        reasons.push("a socket cannot be read; the log says which and why".to_owned());
    }
    for worker in health.node.progress.stalled(STALLED_AFTER) {
        reasons.push(format!("{worker} is stalled"));
    }
    for output in health.node.outputs_down.names() {
        warnings.push(format!(
            "output {output} takes no points; counts wait in the store"
        ));
    }
    if health.node.name_taken.load(Ordering::Relaxed) {
        let warning = "another process uses this node's name; give each node a name of its own (node, EDS_NODE)";
        warnings.push(warning.to_owned());
    }
    let readiness = Readiness {
        ready: reasons.is_empty(),
        reasons,
        warnings,
    };
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = serde_json::to_string(&readiness).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics(State(health): State<Health>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::wanted(&accept.join(","));
    let head = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::VARY, "accept"),
    ];
    match health.metrics.encode(format) {
        Ok(text) => (head, text).into_response(),
        Err(error) => Problem::unavailable(error.to_string()).into_response(),
    }
}
