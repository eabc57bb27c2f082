//! [`Problem`]: the response to a request that failed, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordination::Error;
use serde::{Deserialize, Serialize};

use crate::store::StoreError;

const CONTENT_TYPE: &str = "application/problem+json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: Cow<'static, str>,
    title: Cow<'static, str>,
    status: u16,
    detail: String,
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

    pub(super) fn parameter(name: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail).of(name)
    }

    pub(super) fn too_much(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// Creates the response to a request that the node or its store temporarily cannot serve.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(super) fn busy() -> Self {
        Self::unavailable(
            "other queries are running, and only one runs at a time across all nodes; try again later",
        )
    }

    pub(super) fn late() -> Self {
        let detail = "the request timed out; use a shorter window, or try again later";
        Self::new(StatusCode::GATEWAY_TIMEOUT, detail)
    }

    /// Returns the complete HTTP response to a malformed request. Its headers say that the connection will be closed.
    pub(super) fn message(&self) -> String {
        let (status, title, body) = (self.status, &self.title, self.json());
        let bytes = body.len();
        format!(
            "HTTP/1.1 {status} {title}\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {bytes}\r\n\
             connection: close\r\n\r\n{body}"
        )
    }

    fn json(&self) -> String {
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
                "Redis has exceeded its maxmemory, so queries are rejected ({message}); raise maxmemory"
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
