//! [`Writer`]: the task that writes the lines of a [`Queue`] to a server.
//!
//! It gathers for a moment, writes a piece, and tries again until the server takes it, ever more rarely. A line may be at
//! fault, and must cost neither those beside it nor those behind it. A status alone does not tell that: a server may fail at
//! a line, too. So when it refuses a write, or fails at one, a line is written that it took before: if it takes that again the
//! fault is in the write, which is divided; what cannot be divided is dropped. When `stop` is cancelled it writes what waits,
//! and ends when nothing does; whoever ends it before counts the rest as lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use super::queue::Lines;
use super::{Ledger, Loss, Queue};
use crate::diagnosis::{Cause, Diagnosis};
use crate::ingest::beginning;
use crate::node::{Heartbeat, Throttle};
use crate::output::WriteError;
use crate::output::influxdb::LineWriter;

/// How long lines are gathered before they are written.
const GATHERED_FOR: Duration = Duration::from_millis(100);
/// The pause before a write is made again: first, and at most. It doubles until the server takes one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// How many times a piece at fault is divided, at most.
const DIVISIONS_MAX: u32 = 128;
/// How often the server must fail at a write that cannot be divided, and take another one in between.
const FAILURES_MAX: u32 = 3;
/// How often it is logged that the server fails, or refuses.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    server: LineWriter,
    ledger: Arc<Ledger>,
    up: Gauge,
    heartbeat: Heartbeat,
    stop: CancellationToken,
    /// A line that the server took and that is the same when it is written again.
    probe: Option<Lines>,
    /// Whether the server refused the probe the last time: it may be too old by now, and is forgotten when something else is taken.
    refuses_probe: bool,
    /// How long to wait when the next write fails.
    pause: Duration,
    fails_logged: Throttle,
    refuses_logged: Throttle,
}

/// What became of a write.
enum Verdict {
    Taken,
    /// With what the server said, or what happened.
    AtFault(String),
    /// It failed, and nothing is known that the server takes.
    Unknown,
}

impl Writer {
    /// Writes the lines of the queue to the server, and enters into the ledger what became of them; `up` is set to whether
    /// the server takes any.
    #[must_use]
    pub fn new(
        queue: Arc<Queue>,
        server: LineWriter,
        ledger: Arc<Ledger>,
        up: Gauge,
        heartbeat: Heartbeat,
        stop: CancellationToken,
    ) -> Self {
        Self {
            queue,
            server,
            ledger,
            up,
            heartbeat,
            stop,
            probe: None,
            refuses_probe: false,
            pause: PAUSES.0,
            fails_logged: Throttle::new(LOG_INTERVAL),
            refuses_logged: Throttle::new(LOG_INTERVAL),
        }
    }

    /// Writes until it is stopped and nothing waits.
    pub async fn run(mut self) {
        loop {
            let filled = self.heartbeat.during(self.queue.filled());
            let filled = self.stop.run_until_cancelled(filled).await;
            if filled.is_some() && !self.queue.is_large() {
                let gathered = tokio::time::sleep(GATHERED_FOR);
                self.stop.run_until_cancelled(gathered).await;
            }
            match self.queue.take() {
                Some(piece) => self.write(piece).await,
                None if self.stop.is_cancelled() => return,
                None => {}
            }
        }
    }

    /// Writes a piece, and those into which it is divided.
    async fn write(&mut self, piece: Lines) {
        let mut parts = VecDeque::from([piece]);
        let mut divisions = 0;
        while let Some(part) = parts.pop_front() {
            let may_divide = divisions < DIVISIONS_MAX;
            match self.judge(&part, may_divide).await {
                Verdict::Taken => self.ledger.rest(|rest| rest.send(part.count())),
                Verdict::AtFault(message) => match part.halves().filter(|_| may_divide) {
                    Some(halves) => {
                        divisions += 1;
                        parts.extend(halves);
                    }
                    None => self.give_up(&part, &message),
                },
                // With one line that the server takes it is known what it fails at: it may be in a half, or behind.
                Verdict::Unknown => match part.halves() {
                    Some([first, second]) => {
                        parts.push_back(first);
                        self.queue.put_back(second);
                    }
                    None => self.queue.put_back(part),
                },
            }
        }
    }

    /// Writes lines until the server takes them, or they are known to be at fault. While it is away it is waited for.
    async fn judge(&mut self, part: &Lines, may_divide: bool) -> Verdict {
        let failures_max = if may_divide && part.count() > 1 { 1 } else { FAILURES_MAX };
        let mut failures = 0;
        loop {
            let (found, is_refused) = match self.request(part).await {
                Ok(()) => {
                    let probe = self.probe.take().filter(|_| !self.refuses_probe);
                    self.probe = part.repeatable().or(probe);
                    self.refuses_probe = false;
                    return Verdict::Taken;
                }
                Err(WriteError::Rejected(found)) => (found, true),
                // A status as of a wrong token may be that of somebody on the way who looks into what passes.
                Err(WriteError::Failed(found) | WriteError::Misconfigured(found)) => (found, false),
                Err(WriteError::Unavailable { found, .. }) => {
                    self.wait(&found).await;
                    continue;
                }
            };
            let Some(probe) = self.probe.take() else {
                if is_refused {
                    return Verdict::AtFault(found.why);
                }
                self.wait(&found).await;
                return Verdict::Unknown;
            };
            let probed = self.request(&probe).await;
            self.probe = Some(probe);
            self.refuses_probe = matches!(probed, Err(WriteError::Rejected(_)));
            match probed {
                Ok(()) => {}
                Err(WriteError::Unavailable { .. }) => {
                    self.wait(&found).await;
                    continue;
                }
                // Nothing is taken; or the probe is refused for itself, as when it is too old by now, and others may show more.
                Err(_) => {
                    self.wait(&found).await;
                    return Verdict::Unknown;
                }
            }
            failures += 1;
            if is_refused || failures == failures_max {
                return Verdict::AtFault(found.why);
            }
        }
    }

    /// Makes one request.
    async fn request(&mut self, lines: &Lines) -> Result<(), WriteError> {
        let writing = self.server.write(lines.bytes.clone());
        let written = self.heartbeat.during(writing).await;
        match &written {
            Ok(()) => {
                self.up.set(1);
                self.pause = PAUSES.0;
            }
            Err(WriteError::Unavailable { retry_after: Some(wanted), .. }) => {
                self.pause = self.pause.max(*wanted);
            }
            Err(_) => {}
        }
        written
    }

    /// Waits before the next try.
    async fn wait(&mut self, found: &Diagnosis) {
        self.up.set(0);
        if self.fails_logged.is_due() {
            tracing::warn!(
                server = self.server.describe(),
                reason = found.why,
                "{} to the server of rest.url, which takes no lines: they wait, up to rest.queue_bytes, and are then dropped; {}",
                Cause::RelayRestDown.what(),
                found.remedy.replace("output.", "rest.")
            );
        }
        self.heartbeat.during(tokio::time::sleep(self.pause)).await;
        self.pause = PAUSES.1.min(self.pause * 2);
    }

    fn give_up(&mut self, part: &Lines, message: &str) {
        (self.ledger).rest(|rest| rest.lose(Loss::Refused, part.count()));
        if self.refuses_logged.is_due() {
            let line = part.bytes.split(|byte| *byte == b'\n').next();
            tracing::error!(
                server = self.server.describe(),
                lines = part.count(),
                line = %beginning(line.unwrap_or_default()),
                message,
                "the server of rest.url refuses lines that are no events; they are dropped, and counted"
            );
        }
    }
}
