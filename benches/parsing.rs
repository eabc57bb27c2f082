//! Measures the cost of turning bytes into batches, without a socket: splitting and parsing alone, and the complete batcher.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use event_data_service::event::Parser;
use event_data_service::event::datagram::{Piece, pieces};
use event_data_service::ingest::{ArrivalStamps, LineBatcher};
use event_data_service::node::Node;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::load::{Load, SERIES, START_NANOS, batcher_settings, partitions};
use crate::measure::{Way, figure, side_by_side, thread_cpu};
use crate::report::{Report, column};

const LINES: u64 = 600_000;
const ROUNDS: usize = 7;
const LINES_PER_DATAGRAM: usize = 15;
/// The number of lines between two sweeps of a listener at full speed: those that arrive in the linger at 1 million lines
/// per second.
const LINES_PER_SWEEP: usize = 100_000;

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let load = Load::new(LINES, SERIES);
    let seeds = load.datagrams(LINES_PER_DATAGRAM);
    let strict = load.strict_datagrams(LINES_PER_DATAGRAM);
    let way = |name, datagrams, work: fn(&[String]) -> anyhow::Result<()>| Way {
        name,
        run: Box::new(move || nanos_per_line(datagrams, work)),
    };
    side_by_side(
        report,
        "parsing",
        &format!("parsing {LINES} lines"),
        ROUNDS,
        &[column("ns/line", 0)],
        &mut [
            way("parser, the short form", &seeds, parse),
            way("parser, strict line protocol", &strict, parse),
            way("batcher, the short form", &seeds, batch),
            way("batcher, strict line protocol", &strict, batch),
        ],
    )?;
    Ok(())
}

fn nanos_per_line(
    datagrams: &[String],
    work: fn(&[String]) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let lines: usize = datagrams.iter().map(|d| d.lines().count()).sum();
    let before = thread_cpu()?;
    work(datagrams)?;
    Ok(vec![(thread_cpu()? - before) * 1e9 / figure(lines)])
}

fn parse(datagrams: &[String]) -> anyhow::Result<()> {
    let mut parser = Parser::new(&batcher_settings().rules);
    for piece in datagrams.iter().flat_map(|d| pieces(d.as_bytes(), false)) {
        if let Piece::Line(line) = piece {
            black_box(parser.parse(line)?);
        }
    }
    Ok(())
}

fn batch(datagrams: &[String]) -> anyhow::Result<()> {
    let node = Arc::new(Node::default());
    let (recorder, mut deliveries) = mpsc::channel(usize::from(partitions().count()));
    let mut batcher = LineBatcher::new(
        &batcher_settings(),
        Arc::new(ArrivalStamps::default()),
        Arc::clone(&node),
        partitions().iter().map(|_| recorder.clone()).collect(),
    );
    for swept in datagrams.chunks(LINES_PER_SWEEP / LINES_PER_DATAGRAM) {
        for datagram in swept {
            batcher.add(datagram.as_str().into(), usize::MAX, START_NANOS);
        }
        batcher.hand_over(Duration::ZERO, Instant::now());
        while let Ok(delivery) = deliveries.try_recv() {
            black_box(delivery);
        }
    }
    let totals = node.ledger.totals();
    ensure!(totals.queued == totals.received, "lines were rejected");
    Ok(())
}
