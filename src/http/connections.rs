//! Accepts connections and serves them: a bounded number at a time, and none for longer than its requests need.
//!
//! A connection is either under way, while a request of it is being answered, or waiting for its client: for a head, or for
//! the client to take an answer. Each wait has a time limit. When all places are taken, the connection that has waited
//! longest is closed, of the network that has most of them. So a client that sends its request at once is answered, however
//! many connections others hold open or open anew, and health needs no separate listener. Requests that wait for the store have
//! fewer places (see `http`), so requests that are under way cannot take all of them either.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::HEAD_BYTES_MAX;
use super::problem::{CONTENT_TYPE, Problem};
use crate::diagnosis::Cause;
use crate::node::Throttle;

/// The time for the head of a request, since the connection or the last answer.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// The time for a client to read its answer, without the bytes that the kernel buffers.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// The time after which a connection ends with its current answer.
const LASTS_MAX: Duration = Duration::from_secs(60);
/// The time for which a connection may always wait for its client: long enough for a client on a busy host to
/// send its request, and short enough for the next in line.
const WAITS_MIN: Duration = Duration::from_millis(500);
/// The time for which further bytes of a client are read after the last answer. Closing a socket with unread bytes resets the
/// connection, and the client may lose the answer.
const LINGERS: Duration = Duration::from_secs(1);
/// The maximum number of these bytes.
const LINGER_BYTES_MAX: usize = 128 * 1024;
/// The pause after a connection could not be accepted: descriptors come back when others close.
const PAUSE: Duration = Duration::from_millis(100);
/// The interval of log lines about connections that are closed for others, or cannot be accepted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The state of a connection.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// A request is being answered.
    UnderWay,
    /// Waiting for the client since then.
    Waiting(Instant),
}

/// Where a client is: its address, or the 64 bits of an IPv6 address that a host has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(IpAddr);

impl Network {
    fn of(client: SocketAddr) -> Self {
        Self(match client.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// A connection that is open.
#[derive(Debug)]
struct Open {
    client: Network,
    stage: watch::Receiver<Stage>,
    task: AbortHandle,
}

/// Serves at most `most` connections at a time, and counts those that are open in `open`, until `stop` is cancelled; then it
/// finishes the requests that are under way.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    open: Gauge,
    stop: CancellationToken,
) {
    let mut connections: HashMap<Id, Open> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut logged = Throttle::new(LOG_INTERVAL);
    while !stop.is_cancelled() {
        let is_full = connections.len() >= most;
        let longest = is_full.then(|| longest_waiting(&connections)).flatten();
        let room_at =
            longest.map_or_else(|| Instant::now() + WAITS_MIN, |(since, _)| since + WAITS_MIN);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                connections.remove(&id);
                open.dec();
            }
            () = sleep_until(room_at), if is_full => {
                if let Some(open) = longest.and_then(|(_, id)| connections.remove(&id)) {
                    open.task.abort();
                    if logged.is_due() {
                        tracing::warn!(
                            connections = most,
                            "all HTTP connections are taken; those that wait longest for their clients are closed for new \
                             ones. Let a firewall admit only those who ask for health, metrics and counts"
                        );
                    }
                }
            }
            accepted = listener.accept(), if !is_full => match accepted {
                Ok((stream, client)) => {
                    let (stage, watched) = watch::channel(Stage::Waiting(Instant::now()));
                    let serving = serve_one(stream, router.clone(), stage, stop.clone());
                    let task = tasks.spawn(serving);
                    open.inc();
                    connections.insert(task.id(), Open {
                        client: Network::of(client),
                        stage: watched,
                        task,
                    });
                }
                Err(error) => {
                    if logged.is_due() {
                        tracing::error!(
                            %error,
                            "cannot accept an HTTP connection; trying again. If there are too many open files, {}",
                            Cause::FewDescriptors.remedy()
                        );
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {
        open.dec();
    }
}

/// Returns since when the connection waits that closes first when there are too many: of the clients with the most
/// connections, the longest wait. `None` if all are under way.
fn longest_waiting(connections: &HashMap<Id, Open>) -> Option<(Instant, Id)> {
    let mut of_client: HashMap<Network, usize> = HashMap::new();
    for open in connections.values() {
        *of_client.entry(open.client).or_default() += 1;
    }
    let waiting = connections.iter().filter_map(|(id, open)| {
        let Stage::Waiting(since) = *open.stage.borrow() else {
            return None;
        };
        Some((of_client[&open.client], Reverse(since), *id))
    });
    let (_, Reverse(since), id) = waiting.max_by_key(|&(count, since, _)| (count, since))?;
    Some((since, id))
}

/// Serves a connection until it ends, or its client is too slow.
async fn serve_one(
    stream: TcpStream,
    router: Router,
    stage: watch::Sender<Stage>,
    stop: CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let mut changed = stage.subscribe();
    let answer = service_fn(|request: hyper::Request<Incoming>| {
        stage.send_replace(Stage::UnderWay);
        let answer = router.call(request);
        async {
            let answer = answer.await;
            stage.send_replace(Stage::Waiting(Instant::now()));
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(HEAD_WITHIN)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(2 * HEAD_BYTES_MAX);
    let mut connection = http.serve_connection(TokioIo::new(Explained(stream)), answer);
    let ends = Instant::now() + LASTS_MAX;
    let mut is_ending = false;
    let ended = loop {
        let taken_by = match *changed.borrow_and_update() {
            Stage::UnderWay => None,
            Stage::Waiting(since) => Some(since + TAKEN_WITHIN),
        };
        let is_over = tokio::select! {
            ended = &mut connection => break ended,
            _ = changed.changed() => false,
            () = sleep_until(taken_by.unwrap_or(ends)), if taken_by.is_some() => return,
            () = sleep_until(ends), if !is_ending => true,
            () = stop.cancelled(), if !is_ending => true,
        };
        if is_over {
            is_ending = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
    };
    let parts = connection.into_parts();
    let was_asked = matches!(*changed.borrow(), Stage::UnderWay);
    let refused = ended.err().filter(|_| !was_asked && !parts.read_buf.is_empty());
    let refused = refused.and_then(|error| no_request(&error));
    let closing = close(parts.io.into_inner().0, refused);
    let _ = stop.run_until_cancelled(timeout(LINGERS, closing)).await;
}

/// Sends the answer to bytes that were no request, if there is one, and closes the connection when the client has.
async fn close(mut stream: TcpStream, refused: Option<Problem>) -> io::Result<()> {
    if let Some(problem) = refused {
        stream.write_all(problem.message().as_bytes()).await?;
    }
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match stream.read(&mut rest).await? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

/// The problem of bytes that are no request of HTTP/1.1, for which hyper has no answer.
fn no_request(error: &hyper::Error) -> Option<Problem> {
    let (status, detail) = if error.is_parse_version_h2() {
        (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not spoken here; ask by HTTP/1.1")
    } else if error.is_timeout() {
        (StatusCode::REQUEST_TIMEOUT, "the head did not come in time; send it at once")
    } else if error.is_incomplete_message() {
        (StatusCode::BAD_REQUEST, "the head ends too early; end it with an empty line")
    } else {
        return None;
    };
    Some(Problem::new(status, detail))
}

/// The most bytes of the head of an answer without a body.
const REFUSAL_BYTES_MAX: usize = 512;

/// A connection on which also hyper's answers to malformed heads have a problem: hyper sends only a status, and ends the
/// connection. No answer of ours that refuses a request is empty, so an empty one is hyper's.
#[derive(Debug)]
struct Explained(TcpStream);

/// Returns what to write in the place of an answer of hyper's own.
fn explanation(answer: &[u8]) -> Option<String> {
    if !answer.starts_with(b"HTTP/1.") || answer.len() > REFUSAL_BYTES_MAX {
        return None;
    }
    let head = std::str::from_utf8(answer).ok()?.strip_suffix("\r\n\r\n")?;
    let (before, after) = head.split_once("\r\ncontent-length: 0")?;
    let problem = match before.split(' ').nth(1)? {
        "400" => Problem::new(
            StatusCode::BAD_REQUEST,
            "the head is not one of HTTP/1.1; send a request line and headers as in RFC 9112",
        ),
        "431" => Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "the head has more than {HEAD_BYTES_MAX} bytes, or too many headers; send less"
            ),
        ),
        _ => return None,
    };
    let body = problem.json();
    let bytes = body.len();
    Some(format!(
        "{before}\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {bytes}{after}\r\n\r\n{body}"
    ))
}

impl AsyncRead for Explained {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Explained {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.0);
        let Some(answer) = explanation(bytes) else {
            return stream.poll_write(context, bytes);
        };
        if ready!(stream.poll_write(context, answer.as_bytes()))? < answer.len() {
            // The client has not read for a long time, so that not even this has room.
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
