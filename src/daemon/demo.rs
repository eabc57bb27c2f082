//! `eds demo`: sends six lines over UDP to a real node with the memory store, and prints the sets and points that result.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::build;
use super::run::Running as _;
use super::service::Service;
use crate::config::{self, Flags};
use crate::event::Minute;
use crate::flush::Destination;
use crate::ingest::ListenAddress;
use crate::node::lock;
use crate::output::line_protocol::Lines;
use crate::store::{Bucket, OutputName};

/// The events: series, user, and nanoseconds since the start of the first minute. The last event is in the next minute.
const EVENTS: [(&str, &str, i64); 6] = [
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_928),
    ("event_type=os_error,product=productA", "testusername2", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername3", 27_352_348_928),
    ("event_type=browser_error,product=productB", "testusername4", 27_352_348_928),
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_930),
    ("event_type=http-5xx,product=productA", "testusername1", 27_352_348_930 + MINUTE_NANOS),
];
/// The number of points that the node writes: two for each series in the first minute, in the second, and in the window.
const POINTS: usize = 2 * (3 + 1 + 3);
const SETTINGS: [(&str, &str); 6] = [
    ("EDS_STORE__PARTITIONS", "1"),
    ("EDS_INPUT__RECEIVE_BUFFER", "64KiB"),
    ("EDS_INPUT__LINGER_MAX", "100ms"),
    ("EDS_FLUSH__INTERVAL", "200ms"),
    ("EDS_FLUSH__GRACE", "1s"),
    ("EDS_ROLLUP__EVERY", "5m"),
];
const TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
const MINUTE_NANOS: i64 = 60_000_000_000;

pub(crate) fn demo() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let shown = runtime.block_on(async {
        tokio::time::timeout(TIMEOUT, show()).await.context("the demo timed out")?
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    shown
}

async fn show() -> anyhow::Result<()> {
    let mut out = io::stdout();
    // Do not use the configuration file of a node on this host.
    let flags = Flags {
        config: Some("/dev/null".into()),
        node: Some("demo".to_owned()),
        listen: vec!["127.0.0.1:0".to_owned()],
        http: Some(String::new()),
        ..Flags::default()
    };
    let variables = SETTINGS.map(|(name, value)| (name.into(), value.into()));
    let (config, _) = config::load(&flags, variables)?;
    let (store, sources) = build::store(&config)?;
    let written = Arc::<Mutex<Vec<u8>>>::default();
    let output = Arc::new(Lines(Arc::clone(&written)));
    let outputs = vec![Destination { name: OutputName::default(), output, write_counts_max: 2500 }];
    let reading = Arc::clone(&sources.reading);
    let parts = (Arc::clone(&store), sources);
    let mut service = Service::start_parts(&config, Vec::new(), parts, outputs)?;
    service.listen();
    let Some(&ListenAddress::Udp(address)) = service.parts.addresses.first() else {
        anyhow::bail!("the node has no UDP socket");
    };
    writeln!(out, "A node listens on UDP {address} and stores minutes in memory.\n")?;

    let now =
        chrono::Utc::now().timestamp_nanos_opt().context("the clock is beyond the year 2262")?;
    // The beginning of the last five minutes that have ended.
    let minute = Minute::of_nanos((now.div_euclid(5 * MINUTE_NANOS) - 1) * 5 * MINUTE_NANOS);
    let mut datagram = String::new();
    for (series, user, offset) in EVENTS {
        writeln!(datagram, "{series} value={user} {}", minute.start_nanos() + offset)?;
    }
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(datagram.as_bytes(), address)?;
    writeln!(
        out,
        "It receives five events of one minute, and one of the next minute:\n\n{datagram}"
    )?;

    while service.node.ledger.totals().recorded < EVENTS.len() as u64 {
        tokio::time::sleep(POLL).await;
    }
    writeln!(out, "It records the events in sets, so duplicates do not change the counts:\n")?;
    let bucket = Bucket { partition: config.partitions.of("", minute), minute };
    for series in reading.open_page(bucket, 0).await?.items {
        let mut users = EVENTS.map(|(_, user, _)| user).to_vec();
        users.sort_unstable();
        users.dedup();
        let mut there = store.users(bucket, &series, &users).await?.there.into_iter();
        users.retain(|_| there.next() == Some(true));
        let events = reading.open_counts(bucket, &[&series]).await?.remove(0).cumulative;
        writeln!(out, "{minute}:unique_user:{series} = {{{}}}", users.join(", "))?;
        writeln!(out, "{minute}:cumulative_user:{series} has {events} events")?;
    }

    writeln!(
        out,
        "\nBoth minutes have ended, and so has their window of five minutes. Once no more events arrive, the node writes these points:\n"
    )?;
    let points = loop {
        let bytes = lock(&written).clone();
        let text = String::from_utf8(bytes)?;
        if text.lines().count() == POINTS {
            break text;
        }
        tokio::time::sleep(POLL).await;
    };
    let mut points: Vec<_> = points.lines().collect();
    points.sort_by_key(|point| {
        let series = EVENTS.iter().position(|(series, ..)| point.contains(series));
        (point.contains("_user_event_5m"), point.rsplit(' ').next(), series)
    });
    writeln!(out, "{}", points.join("\n"))?;
    writeln!(
        out,
        "\nThe first point of each series is the number of distinct users, and the second is the number of events.\n\
         The five minutes (`_5m`) of http-5xx have one user, although each of the two minutes has one: it is the same user."
    )?;
    service.drain(Duration::from_secs(5), &CancellationToken::new()).await;
    Ok(())
}
