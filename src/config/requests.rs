//! Builds the settings for events that arrive by HTTP (`[input.http]`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::access::access;
use super::sections::HttpInput;
use super::values::Effective;
use crate::http::Access;

/// The settings for events that arrive by HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    pub(crate) listen: SocketAddr,
    /// Shared with the server, so that it can be replaced while the server runs.
    pub(crate) access: Arc<Mutex<Access>>,
    pub(crate) body_max: usize,
    /// Maximum time until the events of a request are recorded.
    pub(crate) timeout: Duration,
    /// Time that a batch waits for the events of other requests.
    pub(crate) linger: Duration,
    /// Whether lines without a timestamp are accepted.
    pub(crate) stamps: bool,
}

/// Reads the settings, or returns `None` if there is no address to listen on.
pub(super) fn read(values: &mut Effective) -> Option<Requests> {
    let HttpInput { listen, tokens_file: tokens, body_max, timeout, linger, stamp: stamps } =
        HttpInput::read(values);
    let listen = listen?;
    values.together(
        &["input.http.linger", "input.http.timeout"],
        linger < timeout,
        "must be shorter than input.http.timeout, or no request is answered in time; reduce it",
    );
    values.together(
        &["input.http.listen", "input.http.tokens_file"],
        tokens.is_some() || listen.ip().to_canonical().is_loopback(),
        "accepts requests from other hosts, but input.http.tokens_file is not set; set it, or use 127.0.0.1 or [::1]",
    );
    let access = access(values, "input.http", tokens, None);
    Some(Requests { listen, access, body_max, timeout, linger, stamps })
}
