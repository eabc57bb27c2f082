//! Checks that the events of real clients are counted as documented. The test data is the table in `docs/clients.md`.

use std::num::NonZeroU16;

use event_data_service::event::{LineRules, Partitions, Window};
use event_data_service::ingest::{BatcherSettings, Delivery, LineBatcher, QueueLimits};
use testing::prelude::*;

/// The time of arrival, three seconds after the events.
const NOW: i64 = 1_480_876_710_000_000_000;

/// Returns the events of a datagram in the notation of the table.
fn counted(datagram: &str) -> String {
    let settings = BatcherSettings {
        rules: LineRules::default(),
        // The timestamps in some rows are from the time at which the lines were captured.
        window: Window::new(Duration::from_secs(3600), Duration::MAX),
        partitions: Partitions::new(NonZeroU16::MIN),
        limits: QueueLimits { events: 100, bytes: 1 << 20 },
    };
    let (recorder, mut deliveries) = tokio::sync::mpsc::channel(1);
    let mut batcher = LineBatcher::new(&settings, Arc::default(), Arc::default(), vec![recorder]);
    batcher.add(datagram.into(), usize::MAX, NOW);
    batcher.hand_over(Duration::ZERO, tokio::time::Instant::now());
    let mut shown: Vec<String> = Vec::new();
    while let Ok(Delivery { batch, .. }) = deliveries.try_recv() {
        for group in batch.groups() {
            for event in &group.occurrences {
                let at = match event.timestamp {
                    NOW => "on arrival".to_owned(),
                    timestamp => format!("`{timestamp}`"),
                };
                shown.push(format!("`{}` `{}` {at}", group.series, batch.user(event)));
            }
        }
    }
    let rejected = batcher.take_samples();
    let rejected = rejected.keys().map(|reason| reason.label());
    shown.extend(rejected.map(|reason| format!("rejected: `{reason}`")));
    shown.join("<br>")
}

#[test]
fn documented_client_datagrams_are_counted() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/clients.md");
    let document = std::fs::read_to_string(document).unwrap();
    let mut rows = 0;
    for row in document.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [.., datagram, expected] = cells[..] else {
            panic!("no table: {row}");
        };
        let Some(datagram) = datagram.strip_prefix('`') else {
            continue;
        };
        let datagram = datagram.strip_suffix('`').unwrap();
        let datagram = datagram.replace('␊', "\n").replace('␍', "\r").replace("⟨BOM⟩", "\u{feff}");
        assert_eq!(counted(&datagram), expected, "{row}");
        rows += 1;
    }
    assert!(rows > 30, "only {rows} rows");
}
