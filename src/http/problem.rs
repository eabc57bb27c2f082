//! The problem of a request, or of the node, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::Error;
use serde::{Deserialize, Serialize};

use crate::store::StoreError;

/// The media type of a [`Problem`].
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// A request that gets no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    title: Cow<'static, str>,
    status: u16,
    /// The cause and its fix.
    detail: String,
    /// The parameter to fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or_default().into(),
            status: status.as_u16(),
            detail: detail.into(),
            parameter: None,
        }
    }

    pub(super) fn of(self, parameter: &str) -> Self {
        Self { parameter: Some(parameter.to_owned()), ..self }
    }

    /// A parameter with a value that it cannot have.
    pub(super) fn parameter(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail).of(name)
    }

    /// A request that is right and asks for too much.
    pub(super) fn too_much(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// The node, or its store, cannot answer now.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Other requests look through the counts, and this one had no turn in time.
    pub(super) fn busy() -> Self {
        Self::unavailable(
            "others look through the counts, one at a time over all nodes; ask again later",
        )
    }

    /// The answer took too long.
    pub(super) fn late() -> Self {
        let detail = "there was no answer in time; ask for a shorter window, or again later";
        Self::new(StatusCode::GATEWAY_TIMEOUT, detail)
    }

    /// Returns the answer to bytes that were no request. The connection ends with it.
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
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::TimedOut => Self::late(),
            Error::Full(message) => Self::unavailable(format!(
                "Redis is over its maxmemory, and nothing is computed until it has room; raise maxmemory: {message}"
            )),
            error => Self::unavailable(error.to_string()),
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
        let headers = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
        let mut response = (status, headers, self.json()).into_response();
        if matches!(self.status, 503 | 504) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
