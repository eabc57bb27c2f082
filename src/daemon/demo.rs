//! `eds demo`: the complete path of an event in one process, without installing anything.
//!
//! Five lines are sent over UDP to a real node with the memory store, which closes a minute earlier than a service. The points
//! are printed, with the sets from which they are counted.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::build;
use super::run::Running as _;
use super::service::Service;
use crate::config::{self, Flags};
use crate::event::Minute;
use crate::flush::Destination;
use crate::ingest::ListenAddress;
use crate::output::line_protocol::lines;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::OutputName;

/// The events: series, user, and nanoseconds from the start of the minute.
const EVENTS: [(&str, &str, i64); 5] = [
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_928),
    ("event_type=os_error,product=productA", "testusername2", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername3", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername4", 27_352_348_928),
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_930),
];
/// The number of series in them.
const SERIES: usize = 3;
/// The settings of the node that differ from the defaults.
const SETTINGS: [(&str, &str); 5] = [
    ("EDS_STORE__PARTITIONS", "1"),
    ("EDS_INPUT__RECEIVE_BUFFER", "64KiB"),
    ("EDS_INPUT__LINGER_MAX", "100ms"),
    ("EDS_FLUSH__INTERVAL", "200ms"),
    ("EDS_FLUSH__GRACE", "1s"),
];
const TIMEOUT: Duration = Duration::from_secs(20);
const MINUTE_NANOS: i64 = 60_000_000_000;

/// An output that passes the counts to the demo.
#[derive(Debug)]
struct Handover(mpsc::UnboundedSender<Vec<SealedCounts>>);

#[async_trait]
impl Output for Handover {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        // It fails when the demo has ended.
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
pub(crate) fn demo() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shown = runtime.block_on(async {
        tokio::time::timeout(TIMEOUT, show()).await.context("the demo took too long")?
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    shown
}

async fn show() -> anyhow::Result<()> {
    let mut out = io::stdout();
    // Not the file of a node on this host.
    let flags = Flags {
        config: Some("/dev/null".into()),
        node: Some("demo".to_owned()),
        listen: vec!["127.0.0.1:0".to_owned()],
        http: Some(String::new()),
        ..Flags::default()
    };
    let variables = SETTINGS.map(|(name, value)| (name.into(), value.into()));
    let (config, _) = config::load(&flags, variables)?;
    let (store, sources) = build::memory_store(&config)?;
    let (sender, mut points) = mpsc::unbounded_channel();
    let output = Arc::new(Handover(sender));
    let outputs = vec![Destination { name: OutputName::default(), output, write_counts_max: 2500 }];
    let parts = (store.clone() as _, sources);
    let mut service = Service::start(&config, Vec::new(), parts, outputs).await?;
    service.listen();
    let Some(&ListenAddress::Udp(address)) = service.parts.addresses.first() else {
        anyhow::bail!("no socket");
    };
    writeln!(out, "A node listens on UDP {address}, with the memory store.\n")?;

    let now = chrono::Utc::now().timestamp_nanos_opt().context("a clock beyond 2262")?;
    let minute = Minute::of_nanos(now - MINUTE_NANOS);
    let mut datagram = String::new();
    for (series, user, offset) in EVENTS {
        writeln!(datagram, "{series} value={user} {}", minute.start_nanos() + offset)?;
    }
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
        write!(out, "{}", lines(count).map_err(anyhow::Error::msg)?)?;
    }
    writeln!(
        out,
        "\nThe first number of a series is how many different users had the event, the second how many events \
         there were."
    )?;
    service.drain(Duration::from_secs(5), &CancellationToken::new()).await;
    Ok(())
}
