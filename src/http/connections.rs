//! Accepts and serves connections: a limited number at a time, each for a limited time. When the limit is reached, the
//! network with the most connections loses the connection that has waited longest for its client. A client that sends its
//! request immediately therefore gets a response even if others hold or keep reopening many connections.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::StatusCode;
use axum::{Extension, Router};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::HEAD_BYTES_MAX;
use super::problem::Problem;
use crate::diagnosis::Cause;
use crate::node::Throttle;

/// Time limit for a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// The time a connection may wait for its client before it can be closed to make room for another: long enough for clients
/// on a busy host, but short enough that queued connections do not time out.
const WAITS_MIN: Duration = Duration::from_millis(500);
/// How long to keep reading after the last response. Closing a socket with unread bytes could make the client lose it.
const LINGERS: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 128 * 1024;
/// How long to pause after a failed accept. If descriptors have run out, other connections may close in the meantime.
const PAUSE: Duration = Duration::from_millis(100);
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How many connections may wait to be accepted, up to `net.core.somaxconn`. If the queue is full, Linux ignores a new
/// connection and its client tries again only after 1, 3 and 7 s.
const QUEUED_MAX: u32 = 4096;

/// The time limits of a server for its clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The maximum time for a request head, from the start of the connection or the previous response.
    pub(super) head: Duration,
    /// The maximum time for a client to read its response, except for the part that fits in the kernel's buffers, and to send
    /// the next request.
    pub(super) read: Duration,
    /// The age at which a connection is closed after its current response.
    pub(super) lasts: Duration,
}

/// The patience with clients that ask for a page or a query.
pub(super) const BRIEF: Patience = Patience {
    head: Duration::from_secs(5),
    read: Duration::from_secs(15),
    lasts: Duration::from_secs(60),
};

/// Returns the current TLS settings; `None` for connections without TLS.
pub(super) type Tls = Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>;

/// A plain or TLS connection.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The event for which a connection waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// When it started to wait for its client; `None` while a request is being processed.
    since: Option<Instant>,
    /// Whether the head of a request has arrived that has not been answered.
    has_request: bool,
}

/// The client of a request.
#[derive(Debug, Clone)]
pub(super) struct Client {
    waiting: Arc<watch::Sender<Waiting>>,
    /// Whether the client has presented a certificate, which is then valid.
    pub(super) has_certificate: bool,
}

impl Client {
    /// Marks the body as complete, so that the connection no longer waits for its client.
    pub(super) fn has_sent(&self) {
        self.waiting.send_modify(|waiting| waiting.since = None);
    }
}

fn idle() -> Waiting {
    Waiting { since: Some(Instant::now()), has_request: false }
}

#[derive(Debug)]
struct Open {
    network: IpAddr,
    waiting: watch::Receiver<Waiting>,
    task: AbortHandle,
}

/// Returns the address of a client or, for IPv6, its /64 network, because a single host may use all addresses in it.
fn network(client: SocketAddr) -> IpAddr {
    match client.ip().to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUED_MAX)
}

/// Serves up to `most` connections at a time, counted in `open`, until `stop` is cancelled; then finishes current requests.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    open: Gauge,
    stop: CancellationToken,
    patience: Patience,
    tls: Tls,
) {
    let mut connections: HashMap<Id, Open> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut logged = Throttle::new(LOG_INTERVAL);
    while !stop.is_cancelled() {
        let is_full = connections.len() >= most;
        let longest = is_full.then(|| longest_waiting(&connections)).flatten();
        let since = longest.map_or_else(Instant::now, |(since, _)| since);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                connections.remove(&id);
                open.dec();
            }
            () = sleep_until(since + WAITS_MIN), if is_full => {
                if let Some(open) = longest.and_then(|(_, id)| connections.remove(&id)) {
                    open.task.abort();
                    if logged.is_due() {
                        tracing::warn!(
                            connections = most,
                            "all HTTP connections are in use; closing those that have waited longest for their clients. Restrict access to \
                             the clients that need it, for example with a firewall"
                        );
                    }
                }
            }
            accepted = listener.accept(), if !is_full => match accepted {
                Ok((stream, client)) => {
                    let (sender, waiting) = watch::channel(idle());
                    let task = {
                        let router = router.clone().layer(Extension(client));
                        let tls = tls();
                        let serve = serve_one(stream, tls, router, sender, stop.clone(), patience);
                        tasks.spawn(serve)
                    };
                    open.inc();
                    connections.insert(task.id(), Open { network: network(client), waiting, task });
                }
                Err(error) => {
                    if logged.is_due() {
                        tracing::error!(
                            %error,
                            "cannot accept an HTTP connection; retrying. If too many files are open, {}",
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

/// Returns the connection that has waited longest for its client, in the network with the most connections, and since when
/// it has waited. Returns `None` if all connections are processing requests.
fn longest_waiting(connections: &HashMap<Id, Open>) -> Option<(Instant, Id)> {
    let mut of_network: HashMap<IpAddr, usize> = HashMap::new();
    for open in connections.values() {
        *of_network.entry(open.network).or_default() += 1;
    }
    let waiting = connections.iter().filter_map(|(id, open)| {
        let since = open.waiting.borrow().since?;
        Some((of_network[&open.network], Reverse(since), *id))
    });
    let (_, Reverse(since), id) = waiting.max_by_key(|&(count, since, _)| (count, since))?;
    Some((since, id))
}

async fn serve_one(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    waiting: watch::Sender<Waiting>,
    stop: CancellationToken,
    patience: Patience,
) {
    let (stream, has_certificate): (Box<dyn Io>, bool) = match tls {
        None => (Box::new(stream), false),
        Some(tls) => match timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(tls).accept(stream)).await {
            Ok(Ok(stream)) => {
                let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                (Box::new(stream), has_certificate)
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                return;
            }
            Err(_) => return,
        },
    };
    let router = TowerToHyperService::new(router);
    let mut changed = waiting.subscribe();
    let client = Client { waiting: Arc::new(waiting), has_certificate };
    let answer = service_fn(|mut request: hyper::Request<Incoming>| {
        let since = (!request.body().is_end_stream()).then(Instant::now);
        client.waiting.send_replace(Waiting { since, has_request: true });
        request.extensions_mut().insert(client.clone());
        let answer = router.call(request);
        async {
            let answer = answer.await;
            client.waiting.send_replace(idle());
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(patience.head)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(2 * HEAD_BYTES_MAX);
    let mut connection = http.serve_connection(TokioIo::new(WithoutRefusals(stream)), answer);
    let ends = Instant::now() + patience.lasts;
    let mut is_ending = false;
    let ended = loop {
        let waiting = *changed.borrow_and_update();
        let idle_since = waiting.since.filter(|_| !waiting.has_request);
        let read_by = idle_since.map(|since| since + patience.read);
        tokio::select! {
            ended = &mut connection => break ended,
            _ = changed.changed() => continue,
            () = sleep_until(read_by.unwrap_or(ends)), if read_by.is_some() => return,
            () = sleep_until(ends), if !is_ending => {}
            () = stop.cancelled(), if !is_ending => {}
        }
        is_ending = true;
        Pin::new(&mut connection).graceful_shutdown();
    };
    let parts = connection.into_parts();
    let has_request = changed.borrow().has_request;
    let refused = ended.err().filter(|_| !has_request);
    let refused = refused.and_then(|error| refusal(&error, parts.read_buf.is_empty()));
    let closing = close(parts.io.into_inner().0, refused);
    let _ = stop.run_until_cancelled(timeout(LINGERS, closing)).await;
}

async fn close(mut stream: Box<dyn Io>, refused: Option<Problem>) -> io::Result<()> {
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

fn refusal(error: &hyper::Error, is_silent: bool) -> Option<Problem> {
    let (status, detail) = if error.is_parse_version_h2() {
        (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is not supported; use HTTP/1.1")
    } else if error.is_parse_too_large() {
        let detail =
            format!("the request head has more than {HEAD_BYTES_MAX} bytes or too many headers");
        return Some(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    } else if error.is_parse() {
        let detail = "the request head is not valid HTTP/1.1; send a request line and headers as in RFC 9112";
        (StatusCode::BAD_REQUEST, detail)
    } else if is_silent {
        return None;
    } else if error.is_timeout() {
        (
            StatusCode::REQUEST_TIMEOUT,
            "the request head did not arrive in time; send it immediately",
        )
    } else if error.is_incomplete_message() {
        (StatusCode::BAD_REQUEST, "the request head is incomplete; end it with an empty line")
    } else {
        return None;
    };
    Some(Problem::new(status, detail))
}

/// A connection that suppresses hyper's own responses to malformed requests. Those from [`refusal`] are sent instead.
struct WithoutRefusals(Box<dyn Io>);

/// Returns the index at which one of hyper's own responses begins, if the bytes end with one.
fn bare_refusal(bytes: &[u8]) -> Option<usize> {
    // A shortcut: few responses consist of a head without a body.
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let start = memchr::memmem::rfind(bytes, b"HTTP/1.")?;
    let head = std::str::from_utf8(&bytes[start..]).ok()?;
    let is_refused = matches!(head.split(' ').nth(1), Some("400" | "431"));
    let is_bare = head.contains("\r\ncontent-length: 0\r\n");
    (is_refused && is_bare).then_some(start)
}

impl AsyncRead for WithoutRefusals {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for WithoutRefusals {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wanted = match bare_refusal(bytes) {
            Some(0) => return Poll::Ready(Ok(bytes.len())),
            Some(start) => &bytes[..start],
            None => bytes,
        };
        Pin::new(&mut self.0).poll_write(context, wanted)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    /// Only flushes, because [`close`] shuts down the connection.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
