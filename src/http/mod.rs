//! Health and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`; the queries (see `api`); and the status page (see
//! `page`). `/healthz` fails while a worker is stalled. `/readyz` fails, with reasons, while the store is unavailable or
//! full, a socket is failing, or the node is draining. An unavailable output is a warning, as the store keeps the counts.

mod access;
mod api;
mod connections;
mod hosts;
mod page;
mod problem;
mod write;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::future::join;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use self::access::{Access, Tokens};
pub(crate) use self::api::{Queries, QuerySources};
pub(crate) use self::connections::listen;
use self::connections::{BRIEF, Client, Tls};
use self::hosts::Hosts;
use self::problem::Problem;
pub(crate) use self::write::{Forward, NodeSink, WriteServer};
use crate::diagnosis::Cause;
use crate::node::{Node, Progress, lock};
use crate::store::{Store, StoreError};
use crate::telemetry::{Format, Metrics};

/// Maximum number of connections, if there are enough descriptors.
pub(crate) const CONNECTIONS_MAX: usize = 1024;
/// Number of connections that is enough for all well-behaved clients. Operators are warned if fewer are available.
pub(crate) const CONNECTIONS_ENOUGH: usize = 256;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const URI_BYTES_MAX: usize = 8 * 1024;
/// One in `QUERIES_SHARE` connections may be used for queries, and one in `READYZ_SHARE` for `/readyz`, because both wait
/// for the store. The rest are left for requests that get an immediate response.
const QUERIES_SHARE: usize = 2;
const READYZ_SHARE: usize = 4;
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(30);
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) node: Arc<Node>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) draining: CancellationToken,
}

#[derive(Debug, Default)]
pub(crate) struct Readiness {
    pub(crate) reasons: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

#[async_trait]
pub(crate) trait Vitals: std::fmt::Debug + Send + Sync {
    fn progress(&self) -> &Progress;

    /// Returns the reasons why the process is not ready, except for stalled workers, and any warnings.
    async fn readiness(&self) -> Readiness;

    fn metrics(&self, format: Format) -> Result<String, std::fmt::Error>;

    fn connections(&self) -> Gauge;
}

pub(crate) trait RelayVitals: Vitals {
    fn page(&self) -> String;
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) connections: usize,
    /// The host names allowed in requests, in addition to `localhost` and all IP addresses.
    pub(crate) hosts: Vec<String>,
    pub(crate) access: Arc<Mutex<Access>>,
    pub(crate) stop: CancellationToken,
}

impl Server {
    pub(crate) async fn serve(self, health: Health, queries: Arc<Queries>) {
        let there_are = "/ (the status page), /healthz, /readyz, /metrics and, under /api/v1, status, losses, minutes, live, windows, series, top and coverage";
        let places = self.places(QUERIES_SHARE);
        let queries = api::router(queries).layer(middleware::from_fn_with_state(places, in_place));
        let more = queries.merge(page::router());
        self.serve_with(Arc::new(health), more, there_are).await;
    }

    pub(crate) async fn serve_relay(self, relay: Arc<impl RelayVitals + 'static>) {
        let there_are = "/ (the status page), /healthz, /readyz and /metrics";
        let shown = Arc::clone(&relay);
        let page = async move || {
            let head = [
                (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
                (header::CACHE_CONTROL, "no-store"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            (head, shown.page()).into_response()
        };
        let more = Router::new().route("/", get(page));
        self.serve_with(relay, more, there_are).await;
    }

    fn places(&self, share: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new((self.connections / share).max(1)))
    }

    async fn serve_with(self, vitals: Arc<dyn Vitals>, more: Router, there_are: &'static str) {
        let open = vitals.connections();
        let places = self.places(READYZ_SHARE);
        let readyz = get(readyz).layer(middleware::from_fn_with_state(places, in_place));
        let hosts = Hosts::new(&self.hosts);
        let access = Arc::clone(&self.access);
        let tls: Tls = Arc::new(move || lock(&access).tls.clone());
        let router = Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", readyz)
            .route("/metrics", get(metrics))
            .with_state(vitals)
            .merge(more)
            .fallback(async move || {
                let detail =
                    format!("this path does not exist; the available paths are {there_are}");
                Problem::new(StatusCode::NOT_FOUND, detail)
            })
            .method_not_allowed_fallback(async || {
                let detail = "this method is not allowed; use GET or HEAD";
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
            })
            .layer(middleware::from_fn_with_state((hosts, self.access), admitted));
        let (listener, most, stop) = (self.listener, self.connections, self.stop);
        connections::serve(listener, router, most, open, stop, BRIEF, tls).await;
    }
}

const CROWDED: &str = "too many requests are waiting for the store; try again later";

async fn in_place(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => Problem::unavailable(CROWDED).into_response(),
    }
}

async fn admitted(
    State((hosts, access)): State<(Hosts, Arc<Mutex<Access>>)>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(problem) = hosts.check(&request) {
        return problem.into_response();
    }
    // Orchestrators and load balancers that check the health have neither a token nor a certificate.
    let is_open = ["/healthz", "/readyz"].contains(&request.uri().path());
    if !is_open && let Some(response) = refusal(&lock(&access), &request) {
        return response;
    }
    let uri = request.uri();
    let bytes = uri.path().len() + uri.query().map_or(0, |query| 1 + query.len());
    if bytes > URI_BYTES_MAX {
        let detail = format!(
            "the path and query are {bytes} bytes long, which exceeds the limit of {URI_BYTES_MAX}; shorten them"
        );
        return Problem::new(StatusCode::URI_TOO_LONG, detail).into_response();
    }
    next.run(request).await
}

/// Returns the response to a client without a required certificate or a valid token.
fn refusal(access: &Access, request: &Request) -> Option<Response> {
    let client = request.extensions().get::<Client>();
    if access.requires_certificate && !client.is_some_and(|client| client.has_certificate) {
        let detail = "present a client certificate that is signed by a CA certificate in http.client_ca_file";
        let response = Problem::new(StatusCode::FORBIDDEN, detail).into_response();
        // The client can present a certificate only on a new connection.
        return Some(([(header::CONNECTION, "close")], response).into_response());
    }
    access.check(request.headers(), None).err()?;
    let detail = "send a token of http.tokens_file as `Authorization: Bearer TOKEN`, or as the password of any user";
    let response = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
    Some(([(header::WWW_AUTHENTICATE, "Basic realm=\"eds\"")], response).into_response())
}

#[async_trait]
impl Vitals for Health {
    fn progress(&self) -> &Progress {
        &self.node.progress
    }

    async fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        let warnings = self.store.warnings();
        let mut warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        let checked = join(self.store.difference(), self.store.check());
        match tokio::time::timeout(STORE_ANSWERS_WITHIN, checked).await {
            Ok((Ok(Some(found)), _)) => reasons.push(StoreError::Refused(found).to_string()),
            Ok((difference, checked)) => {
                let error = checked.err().or(difference.err());
                reasons.extend(error.map(|error| error.to_string()));
            }
            Err(_) => reasons.push("store is unavailable: no response in time".to_owned()),
        }
        if self.draining.is_cancelled() {
            reasons.push("the node is shutting down".to_owned());
        }
        if self.node.listeners_failing.load(Ordering::Relaxed) > 0 {
            reasons.push(Cause::SocketFails.to_string());
        }
        let outputs = lock(&self.node.outputs_down).clone();
        warnings.extend(outputs.values().map(ToString::to_string));
        if self.node.name_taken.load(Ordering::Relaxed) {
            warnings.push(Cause::NameTaken.to_string());
        }
        Readiness { reasons, warnings }
    }

    fn metrics(&self, format: Format) -> Result<String, std::fmt::Error> {
        self.metrics.encode(format)
    }

    fn connections(&self) -> Gauge {
        self.metrics.http_connections.clone()
    }
}

async fn healthz(State(vitals): State<Arc<dyn Vitals>>) -> Response {
    let stalled = vitals.progress().stalled(STALLED_AFTER);
    if stalled.is_empty() {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        let text = format!("stalled: {}\n", stalled.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn readyz(State(vitals): State<Arc<dyn Vitals>>) -> Response {
    let mut readiness = vitals.readiness().await;
    for worker in vitals.progress().stalled(STALLED_AFTER) {
        readiness.reasons.push(format!("{worker} is stalled"));
    }
    let Readiness { reasons, warnings } = readiness;
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({ "ready": ready, "reasons": reasons, "warnings": warnings });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(vitals): State<Arc<dyn Vitals>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::wanted(&accept.join(","));
    let head = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    match vitals.metrics(format) {
        Ok(text) => (head, text).into_response(),
        Err(error) => Problem::unavailable(error.to_string()).into_response(),
    }
}
