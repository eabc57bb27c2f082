//! Takes connections and serves them: so many at a time, and none for longer than it takes to ask and to be answered.
//!
//! A connection has a place from the moment it is taken until it is closed. When all are taken, the kernel keeps whoever
//! comes next. A place is never held by silence: a head must come in time, an answer must be taken in time, and after
//! [`LASTS_MAX`] a connection ends with its answer, so that all get their turn.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::HEAD_BYTES_MAX;
use super::explained::Explained;
use crate::node::Throttle;

/// How long the head of a request may take, from the connection or the last answer on.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long a client may take to read its answer, in bytes that the kernel does not hold for it.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// After how long a connection ends with the answer that is under way.
const LASTS_MAX: Duration = Duration::from_secs(60);
/// The pause after a connection could not be taken: descriptors come back when others close.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log says that connections wait, or cannot be taken.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Serves `most` connections at a time, and counts those that are `open`, until `stop` is cancelled; then it finishes what
/// is under way.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    open: Gauge,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    let mut logged = Throttle::new(LOG_INTERVAL);
    while !stop.is_cancelled() {
        if places.available_permits() == 0 && logged.is_due() {
            tracing::warn!(
                connections = most,
                "all HTTP connections are taken; new ones wait until one is closed. Let a firewall admit only those who \
                 ask for health, metrics and counts"
            );
        }
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, place)) => {
                let serving = serve_one(stream, router.clone(), stop.clone());
                let open = open.clone();
                open.inc();
                connections.spawn(async move {
                    serving.await;
                    open.dec();
                    drop(place);
                });
            }
            Err(error) => {
                if logged.is_due() {
                    tracing::error!(
                        %error,
                        "cannot take an HTTP connection; trying again. If there are too many open files, raise \
                         LimitNOFILE= in eds.service or `ulimit -n`"
                    );
                }
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    Ok((listener.accept().await?.0, place))
}

/// Serves a connection until it ends, or its client is too slow.
async fn serve_one(stream: TcpStream, router: Router, stop: CancellationToken) {
    let router = TowerToHyperService::new(router);
    // Until when the last answer must be taken, or the next question be there.
    let (taken_by, mut changed) = watch::channel(None::<Instant>);
    let answer = service_fn(|request: hyper::Request<Incoming>| {
        taken_by.send_replace(None);
        let answer = router.call(request);
        async {
            let answer = answer.await;
            taken_by.send_replace(Some(Instant::now() + TAKEN_WITHIN));
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(2 * HEAD_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(Explained(stream)), answer));
    let ends = Instant::now() + LASTS_MAX;
    let mut is_ending = false;
    loop {
        let taken_by = *changed.borrow_and_update();
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = changed.changed() => {}
            () = sleep_until(taken_by.unwrap_or(ends)), if taken_by.is_some() => return,
            () = sleep_until(ends), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = stop.cancelled(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
