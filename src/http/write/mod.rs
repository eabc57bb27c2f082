//! Accepts events by HTTP, as `InfluxDB` 1 and 2 do: `POST /write` and `POST /api/v2/write`. A request is answered with 204
//! only once all its events are recorded, so a client that repeats its request until then loses and duplicates nothing. A
//! node records the events itself; a relay forwards requests to a node.

mod body;
mod forward;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::body::{Bodies, Unread};
pub(crate) use self::forward::Forward;
use super::access::{Access, Token};
use super::connections::{self, Client, Patience};
use crate::event::Precision;
use crate::ingest::{Refused, Terms, Writes, Written};
use crate::node::{Node, Span, lock, log_span, number, sampled};
use crate::telemetry::WriteMetrics;

/// Time limit for an idle connection. Clients that write every few seconds keep theirs.
const IDLE_WITHIN: Duration = Duration::from_secs(75);
/// The age at which a connection is closed after its current response.
const LASTS_MAX: Duration = Duration::from_secs(3600);
/// When a client should repeat a request that was not recorded, in seconds.
const RETRY_AFTER: u64 = 1;
/// The version reported to clients, which choose their API by it.
const VERSION: &str = "1.8.10-eds";

/// A server that accepts events.
#[derive(Debug)]
pub(crate) struct WriteServer {
    pub(crate) listener: TcpListener,
    /// The maximum number of connections.
    pub(crate) connections: usize,
    /// The maximum size of a body, in bytes, also after decompression.
    pub(crate) body_max: usize,
    pub(crate) access: Arc<Mutex<Access>>,
    pub(crate) metrics: WriteMetrics,
    pub(crate) stop: CancellationToken,
}

/// A request whose body has been read.
#[derive(Debug)]
pub(crate) struct Write {
    /// The path and query.
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) precision: Precision,
    pub(crate) token: Option<Arc<Token>>,
    pub(crate) source: Option<SocketAddr>,
}

/// The trace of a request (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What handles the requests.
#[async_trait]
pub(crate) trait Sink: std::fmt::Debug + Send + Sync {
    /// Returns why no request can be accepted now, if so.
    fn refusal(&self) -> Option<&'static str>;

    /// Records the events of a request, and returns the answer to the client.
    async fn write(&self, write: Write) -> Response;
}

/// Records requests on a node.
#[derive(Debug)]
pub(crate) struct NodeSink {
    pub(crate) writes: Arc<Writes>,
    /// Whether lines without a timestamp are accepted.
    pub(crate) stamps: bool,
    /// How long to wait until the events of a request are recorded.
    pub(crate) within: Duration,
}

#[async_trait]
impl Sink for NodeSink {
    fn refusal(&self) -> Option<&'static str> {
        (!self.writes.has_room())
            .then_some("the queue of this node is full; repeat the request later")
    }

    async fn write(&self, write: Write) -> Response {
        let Node { spans, clock, .. } = &*self.writes.node;
        let header = write.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let Some((trace, parent)) = header.and_then(sampled).filter(|_| spans.is_enabled()) else {
            return self.record(write).await;
        };
        let (start_nanos, bytes) = (clock.now_nanos(), write.body.len());
        let response = self.record(write).instrument(log_span(trace)).await;
        let status = response.status();
        let attributes = vec![
            ("http.response.status_code", number(status.as_u16())),
            ("http.request.body.size", number(bytes)),
        ];
        let error = (!status.is_success()).then(|| status.to_string());
        let (parent, end_nanos) = (Some(parent), clock.now_nanos());
        spans.add(Span {
            name: "request",
            trace,
            parent,
            start_nanos,
            end_nanos,
            attributes,
            error,
        });
        response
    }
}

impl NodeSink {
    async fn record(&self, write: Write) -> Response {
        let terms = Terms {
            precision: write.precision,
            stamps: self.stamps,
            quota: write.token.as_ref().and_then(|token| token.series.clone()),
            source: write.source,
        };
        match timeout(self.within, self.writes.write(write.body, terms)).await {
            Ok(Written { is_recorded: true, refused, refused_lines: 0 }) => {
                debug_assert!(refused.is_empty());
                StatusCode::NO_CONTENT.into_response()
            }
            Ok(Written { is_recorded: true, refused, refused_lines }) => {
                partial(&refused, refused_lines)
            }
            Ok(Written { is_recorded: false, .. }) => {
                unavailable("this node is shutting down; repeat the request at another node")
            }
            Err(_) => unavailable(
                "the events are not recorded yet, because the store does not respond; repeat the request, which counts no event twice",
            ),
        }
    }
}

/// Returns the answer to a request with rejected lines, which the client must not repeat.
fn partial(refused: &[Refused], refused_lines: usize) -> Response {
    let each = refused
        .iter()
        .map(|Refused { line, reason, text }| format!("line {line}: {reason} ({text})"));
    let more = if refused_lines > refused.len() { "; …" } else { "" };
    let message = format!(
        "partial write: all lines are recorded except {refused_lines}: {}{more}",
        each.collect::<Vec<_>>().join("; "),
    );
    let line = refused.first().map(|first| first.line);
    answer(StatusCode::BAD_REQUEST, "invalid", &message, line)
}

/// Returns an answer in the form that clients of both versions of the API read.
fn answer(status: StatusCode, code: &str, message: &str, line: Option<usize>) -> Response {
    let mut body = json!({ "code": code, "message": message, "error": message });
    if let Some(line) = line {
        body["line"] = line.into();
    }
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn with_retry(mut response: Response, after: u64) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    response
}

/// Returns the answer to a request that the client should repeat.
fn unavailable(message: &str) -> Response {
    let response = answer(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message, None);
    with_retry(response, RETRY_AFTER)
}

#[derive(Debug)]
struct Shared {
    sink: Arc<dyn Sink>,
    bodies: Bodies,
    access: Arc<Mutex<Access>>,
    metrics: WriteMetrics,
    stop: CancellationToken,
}

impl WriteServer {
    /// Serves requests until `stop` is cancelled; then answers the requests that have been read.
    pub(crate) async fn serve(self, sink: Arc<dyn Sink>) {
        let Self { listener, connections, body_max, access, metrics, stop } = self;
        let shared = Arc::new(Shared {
            sink,
            bodies: Bodies::new(body_max),
            access: Arc::clone(&access),
            metrics: metrics.clone(),
            stop: stop.clone(),
        });
        let router = Router::new()
            .route("/write", post(write))
            .route("/api/v2/write", post(write))
            .route("/query", get(query).post(query))
            .with_state(Arc::clone(&shared))
            .route("/ping", get(async || StatusCode::NO_CONTENT))
            .route("/health", get(health))
            .fallback(async || {
                let message = "this path does not exist; write events to /write or /api/v2/write";
                answer(StatusCode::NOT_FOUND, "not found", message, None)
            })
            .method_not_allowed_fallback(async || {
                let message = "this method is not allowed; use POST for /write and /api/v2/write, and GET otherwise";
                answer(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", message, None)
            })
            .layer(middleware::from_fn_with_state(shared, counted));
        let patience = Patience { head: IDLE_WITHIN, read: IDLE_WITHIN, lasts: LASTS_MAX };
        let tls = Arc::new(move || lock(&access).tls.clone());
        let open = metrics.connections;
        connections::serve(listener, router, connections, open, stop, patience, tls).await;
    }
}

async fn counted(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let is_write = request.method() == Method::POST;
    let began = Instant::now();
    let mut response = next.run(request).await;
    if is_write {
        let seconds = began.elapsed().as_secs_f64();
        shared.metrics.answered(response.status().as_u16(), seconds);
    }
    let headers = response.headers_mut();
    headers
        .insert(HeaderName::from_static("x-influxdb-version"), HeaderValue::from_static(VERSION));
    headers.insert(HeaderName::from_static("x-influxdb-build"), HeaderValue::from_static("OSS"));
    response
}

async fn health() -> Response {
    let body = json!({ "name": "eds", "message": "ready for writes", "status": "pass", "checks": [], "version": VERSION });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// The parameters of a request that are not ignored.
#[derive(Debug, Default, Deserialize)]
struct Parameters {
    precision: Option<String>,
    /// The password, which is the token.
    p: Option<String>,
    q: Option<String>,
}

/// Answers the statement that creates a database, which some clients send before they write.
async fn query(
    State(shared): State<Arc<Shared>>,
    parameters: Result<Query<Parameters>, QueryRejection>,
    request: Request,
) -> Response {
    let Ok(Query(mut parameters)) = parameters else {
        return malformed_query();
    };
    if lock(&shared.access).check(request.headers(), parameters.p.as_deref()).is_err() {
        return unauthorized();
    }
    if parameters.q.is_none()
        && let Ok(body) = shared.bodies.read(&request.headers().clone(), request.into_body()).await
    {
        let form = format!("http://form/?{}", String::from_utf8_lossy(&body));
        let form =
            form.parse().ok().and_then(|uri: Uri| Query::<Parameters>::try_from_uri(&uri).ok());
        parameters.q = form.and_then(|Query(form)| form.q);
    }
    let statement = parameters.q.unwrap_or_default();
    if statement.trim_start().to_ascii_lowercase().starts_with("create database") {
        let body = json!({ "results": [{ "statement_id": 0 }] });
        return ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    }
    let message = "queries are not supported here; ask the server that eds writes to, or /api/v1 of the status page";
    answer(StatusCode::BAD_REQUEST, "invalid", message, None)
}

fn malformed_query() -> Response {
    let message = "the query string is malformed, or contains precision, p or q more than once";
    answer(StatusCode::BAD_REQUEST, "invalid", message, None)
}

fn unauthorized() -> Response {
    let message = "unauthorized access: send a token of input.http.tokens_file as `Authorization: Token …`, or as the password";
    answer(StatusCode::UNAUTHORIZED, "unauthorized", message, None)
}

async fn write(
    State(shared): State<Arc<Shared>>,
    source: Option<Extension<SocketAddr>>,
    parameters: Result<Query<Parameters>, QueryRejection>,
    request: Request,
) -> Response {
    let Ok(Query(parameters)) = parameters else {
        return malformed_query();
    };
    let Ok(token) = lock(&shared.access).check(request.headers(), parameters.p.as_deref()) else {
        return unauthorized();
    };
    if token.is_none() && request.headers().contains_key(header::ORIGIN) {
        let message = "requests from web pages need a token; set input.http.tokens_file";
        return answer(StatusCode::FORBIDDEN, "forbidden", message, None);
    }
    let precision = match precision(parameters.precision.as_deref().unwrap_or("ns")) {
        Ok(precision) => precision,
        Err(message) => return answer(StatusCode::BAD_REQUEST, "invalid", message, None),
    };
    if let Some(reason) = shared.sink.refusal() {
        return unavailable(reason);
    }
    let (parts, body) = request.into_parts();
    let read = shared.bodies.read(&parts.headers, body);
    let body = match shared.stop.run_until_cancelled(read).await {
        None => {
            return unavailable("this process is shutting down; repeat the request at another one");
        }
        Some(Err(unread)) => return refused_body(unread),
        Some(Ok(body)) => body,
    };
    if let Some(client) = parts.extensions.get::<Client>() {
        client.has_sent();
    }
    if let Some(token) = &token {
        let lines = memchr::memchr_iter(b'\n', &body).count().max(1);
        if let Err(wait) = token.take(lines, Instant::now()) {
            shared.metrics.limited(&token.name);
            let message = "the token has used up its events per second (input.http.tokens_file); repeat the request later";
            let response =
                answer(StatusCode::TOO_MANY_REQUESTS, "too many requests", message, None);
            return with_retry(response, wait.as_secs() + 1);
        }
    }
    let source = source.map(|Extension(source)| source);
    let write = Write { uri: parts.uri, headers: parts.headers, body, precision, token, source };
    shared.sink.write(write).await
}

fn precision(text: &str) -> Result<Precision, &'static str> {
    match text {
        "ns" | "n" => Ok(Precision::Nanoseconds),
        "us" | "u" | "µ" => Ok(Precision::Microseconds),
        "ms" => Ok(Precision::Milliseconds),
        "s" => Ok(Precision::Seconds),
        _ => Err(
            "precision is unknown, or so coarse that different events would be the same; use ns, us, ms or s",
        ),
    }
}

fn refused_body(unread: Unread) -> Response {
    let (status, code, message) = match unread {
        Unread::TooLarge => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "request too large",
            "the body is larger than input.http.body_max; send fewer lines at a time",
        ),
        Unread::NoMemory => {
            return unavailable("too many large requests at a time; repeat the request later");
        }
        // Clients repeat a request after 503, but not after 408.
        Unread::TooSlow => {
            return unavailable("the body did not arrive in time; send it again immediately");
        }
        Unread::Incomplete => (StatusCode::BAD_REQUEST, "invalid", "the body is incomplete"),
        Unread::NotGzip => (
            StatusCode::BAD_REQUEST,
            "invalid",
            "the body is not valid gzip, as its Content-Encoding says",
        ),
        Unread::UnknownEncoding => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid",
            "the Content-Encoding is unknown; use gzip, or none",
        ),
    };
    answer(status, code, message, None)
}
