//! `eds demo`: the whole way of an event in one process, at once, with nothing to install.
//!
//! Five lines go over real UDP to a real node with the memory store; the node is set to close a minute
//! sooner than a service would. What it writes is printed, with the sets that it came from.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use coordination::memory::MemoryArbiter;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::ServiceSettings;
use crate::daemon::Service;
use crate::event::{LineRules, Minute, Partitions, Precision, Window};
use crate::flush::{Destination, FlushSettings};
use crate::http::QuerySources;
use crate::ingest::{
    BatcherSettings, CapSettings, Linger, ListenAddress, QueueLimits, RecorderSettings,
};
use crate::output::line_protocol::Points;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::OutputName;
use crate::store::memory::MemoryStore;

/// Series, user, and nanoseconds from the start of the minute: the events of the example that the service
/// began with.
const EVENTS: [(&str, &str, i64); 5] = [
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_928),
    ("event_type=os_error,product=productA", "testusername2", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername3", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername4", 27_352_348_928),
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_930),
];
/// Three series.
const SERIES: usize = 3;
/// If it takes longer than this, something is wrong.
const RETENTION: Duration = Duration::from_secs(7200);
const PATIENCE: Duration = Duration::from_secs(20);
const MINUTE_NANOS: i64 = 60_000_000_000;

/// An output that hands the counts to the demo.
#[derive(Debug)]
struct Handover(mpsc::UnboundedSender<Vec<SealedCounts>>);

#[async_trait]
impl Output for Handover {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        // When the demo has gone, nobody wants them.
        let _ = self.0.send(counts.to_vec());
        Ok(())
    }

    fn describe(&self) -> String {
        "the demo".to_owned()
    }

    fn has_server(&self) -> bool {
        false
    }
}

/// Runs the demo and prints it to standard output.
pub fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shown = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, show()).await.context("the demo took too long")?
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    shown
}

async fn show() -> anyhow::Result<()> {
    let mut out = io::stdout();
    let partitions = Partitions::new(NonZeroU16::MIN);
    let store = Arc::new(MemoryStore::new("demo", &partitions, RETENTION, 1 << 30, u64::MAX));
    let (sender, mut points) = mpsc::unbounded_channel();
    let settings = settings(partitions.clone());
    let sources = QuerySources {
        reading: store.clone(),
        partitions,
        retention: RETENTION,
        arbiter: Arc::new(MemoryArbiter::default()),
    };
    let output = Destination {
        name: OutputName::default(),
        output: Arc::new(Handover(sender)),
        write_counts_max: 2500,
    };
    let outputs = vec![output];
    let mut service =
        Service::start(&settings, Vec::new(), store.clone(), outputs, sources).await?;
    service.listen();
    let Some(&ListenAddress::Udp(address)) = service.addresses.first() else {
        anyhow::bail!("no socket");
    };
    writeln!(out, "A node listens on UDP {address}, with the memory store.\n")?;

    let now = chrono::Utc::now().timestamp_nanos_opt().context("a clock beyond 2262")?;
    let minute = Minute::of_nanos(now - MINUTE_NANOS);
    let datagram = datagram(minute)?;
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(datagram.as_bytes(), address)?;
    writeln!(out, "It is sent five events of the minute just past:\n\n{datagram}")?;

    while service.node.ledger.totals().recorded < EVENTS.len() as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writeln!(out, "It records them in sets, which make copies and repetitions harmless:\n")?;
    for (series, events) in store.open_events(minute) {
        let users: BTreeSet<_> = events.iter().map(|(user, _)| user.clone()).collect();
        let users = users.into_iter().collect::<Vec<_>>().join(", ");
        let events = events.iter().map(|(user, nanos)| format!("{user}_{nanos}"));
        let events = events.collect::<Vec<_>>().join(", ");
        writeln!(out, "{minute}:unique_user:{series} = {{{users}}}")?;
        writeln!(out, "{minute}:cumulative_user:{series} = {{{events}}}")?;
    }

    writeln!(
        out,
        "\nThe minute is over; when nothing comes any more it is closed, and this is written:\n"
    )?;
    let mut counts = Vec::new();
    while counts.len() < SERIES {
        counts.extend(points.recv().await.context("the node ended")?);
    }
    let place =
        |count: &SealedCounts| EVENTS.iter().position(|(series, ..)| *series == count.series);
    counts.sort_by_key(place);
    for count in &counts {
        write!(out, "{}", Points::of(count)?)?;
    }
    writeln!(
        out,
        "\nThe first number of a series is how many different users had the event, the second how many events \
         there were."
    )?;
    let at_once = CancellationToken::new();
    service.drain(Duration::from_secs(5), &at_once).await;
    Ok(())
}

/// The events, of this minute.
fn datagram(minute: Minute) -> Result<String, std::fmt::Error> {
    let mut datagram = String::new();
    for (series, user, offset) in EVENTS {
        let at = minute.start_nanos() + offset;
        writeln!(datagram, "{series} value={user} {at}")?;
    }
    Ok(datagram)
}

/// The defaults of the service, but for a minute that closes a second after its last event.
fn settings(partitions: Partitions) -> ServiceSettings {
    let window = Window::new(Duration::from_secs(3600), Duration::from_secs(60));
    ServiceSettings {
        listen: vec![ListenAddress::Udp((Ipv4Addr::LOCALHOST, 0).into())],
        socket_mode: 0o600,
        receive_buffer: 64 * 1024,
        threads: 1,
        rate_per_source: 0,
        datagram_max: 64 * 1024,
        batcher: BatcherSettings {
            rules: LineRules::default(),
            window,
            partitions,
            limits: QueueLimits { events: 1000, bytes: 1 << 20 },
        },
        spool: None,
        linger: Linger { least: Duration::from_millis(100), most: Duration::from_millis(100) },
        recorder: RecorderSettings {
            window,
            precision: Precision::Nanoseconds,
            caps: CapSettings { series_max: 1000, users_max: 0 },
            lagging_after: Duration::from_millis(250),
        },
        dedup_users: 1000,
        replay_window: Duration::ZERO,
        flush: FlushSettings {
            interval: Duration::from_millis(200),
            grace: Duration::from_secs(1),
            max_hold: Duration::from_secs(60),
            lease: Duration::from_secs(30),
        },
        http: None,
        http_hosts: Vec::new(),
        http_connections: 0,
    }
}
