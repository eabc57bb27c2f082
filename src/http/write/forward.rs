//! [`Forward`]: sends the requests of a relay to a node. Nodes share their store, so any of them can record the events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use reqwest::{Client, Url};
use tokio::time::timeout;

use super::{Sink, TRACEPARENT, Write, unavailable};

/// The maximum size of a node's answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sends requests to one of several nodes.
#[derive(Debug)]
pub(crate) struct Forward {
    client: Client,
    nodes: Vec<Url>,
    /// The index of the node that accepted the last request. The next one goes to the same node.
    last: AtomicUsize,
    within: Duration,
}

impl Forward {
    /// Returns the sink of a relay. `within` limits the time for all nodes together.
    pub(crate) const fn new(client: Client, nodes: Vec<Url>, within: Duration) -> Self {
        Self { client, nodes, last: AtomicUsize::new(0), within }
    }

    /// Returns the answer of the first node that accepts or rejects the request. A node that cannot record it is skipped.
    async fn forward(&self, write: &Write) -> Option<(StatusCode, HeaderMap, Vec<u8>)> {
        let mut unrecorded = None;
        let first = self.last.load(Ordering::Relaxed);
        for place in (0..self.nodes.len()).map(|offset| (first + offset) % self.nodes.len()) {
            match self.send(&self.nodes[place], write).await {
                Ok(answer) if answer.0.is_server_error() => unrecorded = Some(answer),
                Ok(answer) => {
                    self.last.store(place, Ordering::Relaxed);
                    return Some(answer);
                }
                Err(error) => {
                    tracing::debug!(%error, node = %self.nodes[place], "a node did not answer a request");
                }
            }
        }
        unrecorded
    }

    async fn send(
        &self,
        node: &Url,
        write: &Write,
    ) -> reqwest::Result<(StatusCode, HeaderMap, Vec<u8>)> {
        let mut url = node.clone();
        url.set_path(write.uri.path());
        url.set_query(write.uri.query());
        let mut request = self.client.post(url).body(write.body.clone());
        for name in [AUTHORIZATION, TRACEPARENT] {
            if let Some(value) = write.headers.get(&name) {
                request = request.header(name, value);
            }
        }
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await? {
            if body.len() + part.len() > ANSWER_BYTES_MAX {
                break;
            }
            body.extend_from_slice(&part);
        }
        Ok((status, headers, body))
    }
}

#[async_trait]
impl Sink for Forward {
    fn refusal(&self) -> Option<&'static str> {
        None
    }

    async fn write(&self, write: Write) -> Response {
        let forwarded = timeout(self.within, self.forward(&write)).await;
        let Some((status, headers, body)) = forwarded.ok().flatten() else {
            return unavailable("no node answers; repeat the request, which counts no event twice");
        };
        let mut response = (status, body).into_response();
        for name in [axum::http::header::CONTENT_TYPE, RETRY_AFTER] {
            response.headers_mut().remove(&name);
            if let Some(value) = headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }
}
