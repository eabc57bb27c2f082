//! What is wrong with a request, or with the node, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::{ArbiterError, ComputeError};
use serde::{Deserialize, Serialize};

use super::{HEAD_BYTES_MAX, URI_BYTES_MAX};
use crate::store::StoreError;

/// The media type of a [`Problem`].
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// The most characters of a host that are shown.
const HOST_CHARS_SHOWN: usize = 100;

/// A request that gets no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    title: Cow<'static, str>,
    status: u16,
    /// What is wrong, and how to fix it.
    detail: String,
    /// The parameter to fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or_default().into(),
            status: status.as_u16(),
            detail: detail.into(),
            parameter: None,
        }
    }

    /// A parameter with a value that it cannot have.
    pub(super) fn parameter(name: &str, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, detail);
        problem.parameter = Some(name.to_owned());
        problem
    }

    /// A request that is right and asks for too much.
    pub(super) fn too_much(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// There is no such path.
    pub(super) fn no_path(there_are: &str) -> Self {
        let detail = format!("there is nothing at this path; there are {there_are}");
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The path is there, but only to be read.
    pub(super) fn method() -> Self {
        let detail = "nothing can be changed here; ask by GET or HEAD";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, detail)
    }

    /// Path and query have so many bytes.
    pub(super) fn long_uri(bytes: usize) -> Self {
        let detail =
            format!("path and query have {bytes} bytes, more than {URI_BYTES_MAX}; ask for less");
        Self::new(StatusCode::URI_TOO_LONG, detail)
    }

    /// What hyper refused with this status before it was a request.
    pub(super) fn of_head(status: &str) -> Option<Self> {
        let (status, detail) = match status {
            "400" => (
                StatusCode::BAD_REQUEST,
                "the head is not one of HTTP/1.1; send a request line and headers as in RFC 9112"
                    .to_owned(),
            ),
            "431" => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                format!(
                    "the head has more than {HEAD_BYTES_MAX} bytes, or too many headers; send less"
                ),
            ),
            _ => return None,
        };
        Some(Self::new(status, detail))
    }

    /// The problem of bytes that are no request of HTTP/1.1, for which hyper has no answer.
    pub(super) fn of_no_request(error: &hyper::Error) -> Option<Self> {
        let (status, detail) = if error.is_parse_version_h2() {
            (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not spoken here; ask by HTTP/1.1")
        } else if error.is_timeout() {
            (StatusCode::REQUEST_TIMEOUT, "the head did not come in time; send it at once")
        } else if error.is_incomplete_message() {
            (StatusCode::BAD_REQUEST, "the head ends too early; end it with an empty line")
        } else {
            return None;
        };
        Some(Self::new(status, detail))
    }

    /// A request that does not say for which host it is, or says so twice or wrongly.
    pub(super) fn host(what: &str) -> Self {
        let detail =
            format!("{what}; send one Host header with the host that you ask, as in RFC 9112");
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A request for a host that is none of `http.hosts`.
    pub(super) fn other_host(host: &str) -> Self {
        let shown: String = host.chars().take(HOST_CHARS_SHOWN).collect();
        let detail = format!(
            "{shown:?} is not known as a name of this host; ask by IP address or localhost, or add the name to http.hosts"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, detail)
    }

    /// The answer with this problem, as it is sent where there is no request to answer. The connection ends with it.
    pub(super) fn message(&self) -> String {
        let Self { status, title, .. } = self;
        let body = self.json();
        let bytes = body.len();
        format!(
            "HTTP/1.1 {status} {title}\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {bytes}\r\n\
             connection: close\r\n\r\n{body}"
        )
    }

    /// The problem as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The value of this parameter names nothing.
    pub(super) fn missing(name: &str, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::NOT_FOUND, detail);
        problem.parameter = Some(name.to_owned());
        problem
    }

    /// A list that is not kept any more.
    pub(super) fn gone(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::GONE, detail);
        problem.parameter = Some("list".to_owned());
        problem
    }

    /// The node, or its store, cannot answer now.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Other requests look through the counts, and this one had no turn in time.
    pub(super) fn busy() -> Self {
        let detail =
            "others look through the counts, one at a time over all nodes; ask again later";
        Self::unavailable(detail)
    }

    /// So many other requests wait for the store that this one has no place.
    pub(super) fn crowded() -> Self {
        Self::unavailable("too many requests wait for the store already; ask again later")
    }

    /// The answer took too long.
    pub(super) fn late() -> Self {
        let detail = "there was no answer in time; ask for a shorter window, or again later";
        Self::new(StatusCode::GATEWAY_TIMEOUT, detail)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<ArbiterError> for Problem {
    fn from(error: ArbiterError) -> Self {
        Self::unavailable(match error {
            ArbiterError::Full(message) => format!(
                "Redis is over its maxmemory, and nothing is computed until it has room; raise maxmemory: {message}"
            ),
            error => error.to_string(),
        })
    }
}

impl From<ComputeError> for Problem {
    fn from(error: ComputeError) -> Self {
        match error {
            ComputeError::TimedOut => Self::late(),
            ComputeError::Arbiter(error) => error.into(),
            ComputeError::Failed(_) | ComputeError::Key(_) => Self::unavailable(error.to_string()),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let body = self.json();
        let headers = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
        let mut response = (status, headers, body).into_response();
        if matches!(self.status, 503 | 504) {
            let after = axum::http::HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
        response
    }
}
