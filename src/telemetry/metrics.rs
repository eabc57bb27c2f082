//! The metrics, in Prometheus' classic text format and in OpenMetrics.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Format, encode, family, known, one, registry};
use crate::diagnosis::LossCause;
use crate::event::Rejection;
use crate::node::Node;

/// The label of what is counted of one output.
pub(super) type OfOutput = [(&'static str, String); 1];
/// One without a label, or none while it is not known.
type Known = Family<[(&'static str, String); 0], Gauge>;
/// One for each output.
pub type Gauges = Family<OfOutput, Gauge>;
type Counters = Family<OfOutput, Counter>;
type Histograms = Family<OfOutput, Histogram>;

/// The label of this output.
#[must_use]
pub fn of_output(name: &str) -> OfOutput {
    [("output", name.to_owned())]
}

/// What is counted and measured of one output by who sends to it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is explained where the metrics are")]
pub struct OutputMetrics {
    pub points_sent: Counter,
    pub points_quarantined: Counter,
    pub points_discarded: Counter,
    pub write_failures: Counter,
    pub write_seconds: Histogram,
    pub publish_delay_seconds: Histogram,
    pub up: Gauge,
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ty = $metric:expr;)*) => {
        /// All that the service counts and measures, beside what [`Node`] knows.
        #[derive(Debug)]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $field: $kind,)*
            registry: Registry,
        }

        impl Metrics {
            /// Metrics of this node, all zero, and of its process. Each is named as its field is, with `eds_` in front, and has
            /// the field's documentation as its help.
            #[must_use]
            pub fn new(node: Arc<Node>) -> Self {
                let mut registry = registry();
                let ours = registry.sub_registry_with_prefix("eds");
                ours.register_collector(Box::new(NodeCollector(node)));
                $(
                    let $field: $kind = $metric;
                    let help = concat!($($help),+).trim().trim_end_matches('.');
                    ours.register(stringify!($field), help, $field.clone());
                )*
                let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
                ours.register("build", "What this node was built from", Info::new(build));
                Self { $($field,)* registry }
            }
        }
    };
}

metrics! {
    /// Datagrams read from the sockets.
    datagrams_received: Counter = Counter::default();
    /// What the kernel gives the receive buffers of the sockets together.
    receive_buffer_bytes: Gauge = Gauge::default();
    /// Datagrams that the kernel dropped because a receive buffer was full, or their checksum was wrong.
    kernel_drops: Counter = Counter::default();
    /// Datagrams that the kernel had dropped from inherited sockets before this node looked. Those before it have
    /// counted of them what they saw.
    kernel_drops_inherited: Gauge = Gauge::default();
    /// Receiving threads that leave their Unix socket unread because the queue is full: who sends to it waits.
    listeners_full: Gauge = Gauge::default();
    /// The most events that may wait in memory (`input.queue_events`).
    events_queued_max: Gauge = Gauge::default();
    /// The most memory for events that wait (`input.queue_bytes`).
    queue_max_bytes: Gauge = Gauge::default();
    /// Attempts to record that failed and are made again.
    record_failures: Counter = Counter::default();
    /// From a batch's first attempt until the store had it, in seconds.
    record_seconds: Histogram = latency();
    /// Events whose user the store had already, so that only the event was sent.
    dedup_hits: Counter = Counter::default();
    /// Events among the recorded ones that the store had already: copies, which other nodes and relayers bring, events of a
    /// user and series that have one timestamp, and what was recorded before by an attempt whose answer was lost.
    events_repeated: Counter = Counter::default();
    /// Events among the recorded ones without those that came twice in one transaction: what this node has seen. Held against
    /// all that is recorded and not repeated, over all nodes, it is the share that reaches this node.
    events_seen: Counter = Counter::default();
    /// Events that were recorded again because the store may have forgotten them.
    events_replayed: Counter = Counter::default();
    /// Batches that memory did not allow to keep for the whole of `store.replay_window`.
    replay_cut: Counter = Counter::default();
    /// Events that were written to disk because memory had no room.
    spool_written: Counter = Counter::default();
    /// Events that an earlier run left on disk; they count as received, too.
    spool_restored: Counter = Counter::default();
    /// Frames of events on disk that were not what had been written.
    spool_damaged: Counter = Counter::default();
    /// Attempts to read events on disk that failed and are made again.
    spool_read_failures: Counter = Counter::default();
    /// Size of the files in `input.spool_dir`.
    spool_bytes: Gauge = Gauge::default();
    /// The most that the files in `input.spool_dir` may take (`input.spool_max`); 0: there is no such directory.
    spool_max_bytes: Gauge = Gauge::default();
    /// Claims that this node took.
    claims: Counter = Counter::default();
    /// Claims among them that another node, or an earlier life of this one, had let lapse.
    claims_taken_over: Counter = Counter::default();
    /// Claims that were taken over from this node while it worked on them.
    claims_lost: Counter = Counter::default();
    /// Series of a minute whose counts this node sealed.
    series_sealed: Counter = Counter::default();
    /// Recorded events whose timestamps are whole milliseconds or seconds, although `input.timestamp_precision` is finer.
    events_rounded: Counter = Counter::default();
    /// Recorded events that came right after two others with the same series, user and timestamp: they count as one.
    events_coinciding: Counter = Counter::default();
    /// Minutes of partitions that this node sealed long after their end: more than flush.grace and five minutes.
    old_seals: Counter = Counter::default();
    /// Events that came after the counts of their minute and series were sealed.
    events_late: Counter = Counter::default();
    /// Points that the output confirmed; one that was written twice counts twice.
    points_sent: Counters = Family::default();
    /// Points that the output refused and that are quarantined.
    points_quarantined: Counters = Family::default();
    /// Points that the output refused and for which the quarantine had no room.
    points_discarded: Counters = Family::default();
    /// Writes that failed and are made again.
    write_failures: Counters = Family::default();
    /// How long writes took, failed ones included, in seconds.
    write_seconds: Histograms = Family::new_with_constructor(latency);
    /// From the end of a minute until the output had its last point from this node, in seconds.
    publish_delay_seconds: Histograms = Family::new_with_constructor(delay);
    /// Points of this node's own metrics that the output was not given or did not take (`output.self_metrics`).
    self_metrics_dropped: Counters = Family::default();
    /// 1 while the output takes what this node writes.
    output_up: Gauges = Family::default();
    /// Minutes times partitions that wait for being claimed, open ones included. It and all others of the store's backlog are
    /// absent while the store does not answer.
    backlog_pending: Known = Family::default();
    /// Minutes times partitions that are claimed by any node to be sealed.
    backlog_claimed: Known = Family::default();
    /// Minutes times partitions that are sealed and that the output does not have in full; of outputs, too, that are not
    /// configured any more.
    backlog_unsent: Gauges = Family::default();
    /// How long ago the oldest minute ended that the output does not have in full; 0: none is over. A minute that it had
    /// counts again when events come for it.
    oldest_unsent_minute_age_seconds: Family<OfOutput, Gauge<f64, AtomicU64>> = Family::default();
    /// Counts of the output that are quarantined in the store.
    counts_quarantined: Gauges = Family::default();
    /// The most counts that the quarantines of an output in all partitions hold.
    counts_quarantined_max: Gauge = Gauge::default();
    /// The memory that open minutes and unsent counts take in this process, roughly; 0: they are in Redis.
    store_memory_bytes: Gauge = Gauge::default();
    /// The most memory for them (`store.memory_max`); 0: they are in Redis.
    store_memory_max_bytes: Gauge = Gauge::default();
    /// HTTP connections that are open.
    http_connections: Gauge = Gauge::default();
    /// The most HTTP connections at a time.
    http_connections_max: Gauge = Gauge::default();
    /// 1 while this node's settings differ from those that all nodes must have alike, so that it sends nothing.
    settings_differ: Gauge = Gauge::default();
    /// Lists that this node computed for all that ask.
    query_computations: Counter = Counter::default();
    /// How often the store had gone back to what it was before, or was another one.
    store_rollbacks: Counter = Counter::default();
    /// Events that this node had recorded in what the store forgot, and cannot record again. Those of minutes that were
    /// closed by then are among them, and are published.
    events_forgotten: Counter = Counter::default();
    /// Minutes of partitions that the store forgot while their counts were written: an output may lack some of them for good.
    publications_unconfirmed: Counter = Counter::default();
    /// 1 while the store answers this node and has room for events.
    store_up: Gauge = Gauge::default();
}

fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn delay() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

impl Metrics {
    /// Those of an output, from now on there: nothing is known against it yet.
    #[must_use]
    pub fn of_output(&self, name: &str) -> OutputMetrics {
        let of = &of_output(name);
        let up = self.output_up.get_or_create_owned(of);
        up.set(1);
        OutputMetrics {
            points_sent: self.points_sent.get_or_create_owned(of),
            points_quarantined: self.points_quarantined.get_or_create_owned(of),
            points_discarded: self.points_discarded.get_or_create_owned(of),
            write_failures: self.write_failures.get_or_create_owned(of),
            write_seconds: self.write_seconds.get_or_create_owned(of),
            publish_delay_seconds: self.publish_delay_seconds.get_or_create_owned(of),
            up,
        }
    }

    /// Reports nothing of the backlog until it is seen again: a zero, or an old number, would pass for what is there now.
    pub fn forget_backlog(&self) {
        self.backlog_pending.clear();
        self.backlog_claimed.clear();
        self.backlog_unsent.clear();
        self.counts_quarantined.clear();
        self.oldest_unsent_minute_age_seconds.clear();
    }

    /// Reports nothing more of an output that is gone and that nothing waits for.
    pub fn forget_output(&self, name: &str) {
        let of = &of_output(name);
        self.backlog_unsent.remove(of);
        self.counts_quarantined.remove(of);
        self.oldest_unsent_minute_age_seconds.remove(of);
    }

    /// All metrics as text.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Reads the node once a scrape, and its ledger at one moment, so that the figures add up in every scrape.
#[derive(Debug)]
struct NodeCollector(Arc<Node>);

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let node = &self.0;
        let totals = node.ledger.totals();
        let to = &mut encoder;
        for (name, help, count) in [
            ("events_received", "Events read from the sockets", totals.received),
            ("events_recorded", "Events confirmed by the store", totals.recorded),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        let bytes_help = "Memory of the events on the way to the store that are not on disk";
        for (name, help, level) in [
            ("events_queued", "Events on the way to the store", totals.queued),
            ("events_spooled", "Events among those that are on disk only", totals.spooled),
            ("queue_bytes", bytes_help, totals.queued_bytes),
            (
                "partitions_lagging",
                "Partitions whose events this node cannot record at the moment",
                node.lag.partitions() as u64,
            ),
            (
                "listeners_failing",
                "Receiving threads whose socket cannot be read at the moment",
                node.listeners_failing.load(Ordering::Relaxed) as u64,
            ),
            (
                "name_taken",
                "1 while another process uses this node's name",
                node.name_taken.load(Ordering::Relaxed).into(),
            ),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let unacknowledged = node.losses.unacknowledged();
        let causes = LossCause::ALL.iter().map(|cause| cause.label());
        let causes = causes.zip(unacknowledged);
        family(
            to,
            "losses_unacknowledged",
            "Events, or datagrams of kernels, that all nodes lost and that no operator has acknowledged",
            causes.map(|(cause, lost)| ([("reason", cause)], ConstGauge::new(lost))),
        )?;
        let help = "How far the store's clock is ahead of this node's, in seconds";
        let offset = node.clock.store_ahead_ms();
        let offset = offset.map(|_| node.clock.store_ahead_seconds());
        known(to, "clock_offset_seconds", help, offset)?;
        by_reason(
            to,
            "events_overflowed",
            "Events among the recorded ones that are counted under an overflow series",
            std::iter::once(("too_many_series", totals.overflowed)),
        )?;
        let rejected = Rejection::ALL.iter().map(|reason| reason.label()).zip(totals.rejected);
        by_reason(to, "events_rejected", "Lines that are not counted", rejected)?;
        let dropped = LossCause::DROPPED.iter().map(|reason| reason.label()).zip(totals.dropped);
        by_reason(to, "events_dropped", "Events that were not kept", dropped)
    }
}

fn by_reason(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: impl Iterator<Item = (&'static str, u64)>,
) -> Result<(), fmt::Error> {
    let samples = counts.map(|(reason, count)| ([("reason", reason)], ConstCounter::new(count)));
    family(encoder, name, help, samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Intake;

    #[test]
    fn the_ledger_is_reported_with_its_reasons() {
        let node = Arc::new(Node::default());
        let mut intake = Intake { queued: 5, ..Intake::default() };
        intake.rejected[Rejection::NotUtf8.index()] = 2;
        node.ledger.take_in(&intake);
        let metrics = Metrics::new(node);
        let backup = metrics.of_output("backup");
        backup.points_sent.inc_by(2);
        metrics.datagrams_received.inc();
        let text = metrics.encode(Format::Classic).unwrap();
        for line in [
            "eds_events_received_total 7",
            "eds_events_queued 5",
            "eds_events_rejected_total{reason=\"not_utf8\"} 2",
            "eds_events_dropped_total{reason=\"queue_full\"} 0",
            "eds_datagrams_received_total 1",
            "eds_output_up{output=\"backup\"} 1",
            "eds_points_sent_total{output=\"backup\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
