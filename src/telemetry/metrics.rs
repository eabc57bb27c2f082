//! The metrics, in Prometheus' classic text format and in OpenMetrics.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Format, encode, family, one, registry};
use crate::diagnosis::LossCause;
use crate::event::Rejection;
use crate::node::Node;

/// The label of the metrics of an output.
pub(super) type OfOutput = [(&'static str, String); 1];
/// A gauge without a label, absent while its value is unknown.
type Known = Family<[(&'static str, String); 0], Gauge>;
/// A gauge for each output.
pub type Gauges = Family<OfOutput, Gauge>;
type Counters = Family<OfOutput, Counter>;

/// Returns the label of the metrics of an output.
#[must_use]
pub fn of_output(name: &str) -> OfOutput {
    [("output", name.to_owned())]
}

macro_rules! new {
    ($kind:ty) => {
        <$kind>::default()
    };
    ($kind:ty, $new:expr) => {
        $new
    };
}

macro_rules! metrics {
    (
        node { $($metric:ident: $kind:ty $(= $new:expr)?, $help:literal;)* }
        output { $($output_metric:ident: $output_kind:ty $(= $output_new:expr)?, $output_help:literal;)* }
    ) => {
        /// The metrics of a node that [`Node`] does not know.
        #[derive(Debug)]
        pub struct Metrics {
            $(#[doc = $help] pub $metric: $kind,)*
            $(#[doc = $output_help] pub $output_metric: Family<OfOutput, $output_kind>,)*
            registry: Registry,
        }

        /// The metrics of one output.
        #[derive(Debug, Clone)]
        pub struct OutputMetrics {
            $(#[doc = $output_help] pub $output_metric: $output_kind,)*
        }

        impl Metrics {
            /// Returns metrics of this node and its process, all zero.
            #[must_use]
            pub fn new(node: Arc<Node>) -> Self {
                let mut registry = registry();
                let ours = registry.sub_registry_with_prefix("eds");
                ours.register_collector(Box::new(NodeCollector(node)));
                $(
                    let $metric: $kind = new!($kind $(, $new)?);
                    ours.register(stringify!($metric), $help, $metric.clone());
                )*
                $(
                    let $output_metric: Family<OfOutput, $output_kind> =
                        new!(Family<OfOutput, $output_kind> $(, Family::new_with_constructor($output_new))?);
                    ours.register(stringify!($output_metric), $output_help, $output_metric.clone());
                )*
                let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
                ours.register("build", "What this node was built from", Info::new(build));
                Self { $($metric,)* $($output_metric,)* registry }
            }

            /// Adds an output, which counts as up, and returns its metrics.
            #[must_use]
            pub fn of_output(&self, name: &str) -> OutputMetrics {
                let label = &of_output(name);
                self.output_up.get_or_create_owned(label).set(1);
                OutputMetrics {
                    $($output_metric: self.$output_metric.get_or_create_owned(label),)*
                }
            }
        }
    };
}

// The name of a metric is that of its field after `eds_`.
metrics! {
    node {
        datagrams_received: Counter, "Datagrams read from the sockets";
        receive_buffer_bytes: Gauge,
            "What the kernel gives the receive buffers of the sockets together";
        kernel_drops: Counter,
            "Datagrams that the kernel dropped because a receive buffer was full, or their checksum was wrong";
        kernel_drops_inherited: Gauge,
            "Datagrams that the kernel had dropped from inherited sockets before this node looked. Those before it have counted of them what they saw";
        listeners_full: Gauge,
            "Receiving threads that leave their Unix socket unread because the queue is full: who sends to it waits";
        events_queued_max: Gauge, "The most events that may wait in memory (`input.queue_events`)";
        queue_max_bytes: Gauge, "The most memory for events that wait (`input.queue_bytes`)";
        record_failures: Counter, "Attempts to record that failed and are made again";
        record_seconds: Histogram = latency(),
            "From a batch's first attempt until the store had it, in seconds";
        dedup_hits: Counter, "Events whose user the store had already, so that only the event was sent";
        events_repeated: Counter,
            "Events among the recorded ones that the store had already: copies, which other nodes and relayers bring, events of a user and series that have one timestamp, and what was recorded before by an attempt whose answer was lost";
        events_seen: Counter,
            "Events among the recorded ones without those that came twice in one transaction: what this node has seen. Held against all that is recorded and not repeated, over all nodes, it is the share that reaches this node";
        events_replayed: Counter,
            "Events that were recorded again because the store may have forgotten them";
        replay_cut: Counter,
            "Batches that memory did not allow to keep for the whole of `store.replay_window`";
        spool_written: Counter, "Events that were written to disk because memory had no room";
        spool_restored: Counter, "Events that an earlier run left on disk; they count as received, too";
        spool_damaged: Counter, "Frames of events on disk that were not what had been written";
        spool_read_failures: Counter, "Attempts to read events on disk that failed and are made again";
        spool_bytes: Gauge, "Size of the files in `input.spool_dir`";
        spool_max_bytes: Gauge,
            "The most that the files in `input.spool_dir` may take (`input.spool_max`); 0: there is no such directory";
        claims: Counter, "Claims that this node took";
        claims_taken_over: Counter,
            "Claims among them that another node, or an earlier life of this one, had let lapse";
        claims_lost: Counter, "Claims that were taken over from this node while it worked on them";
        series_sealed: Counter, "Series of a minute whose counts this node sealed";
        events_rounded: Counter,
            "Recorded events whose timestamps are whole milliseconds or seconds, although `input.timestamp_precision` is finer";
        events_coinciding: Counter,
            "Recorded events that came right after two others with the same series, user and timestamp: they count as one";
        old_seals: Counter,
            "Minutes of partitions that this node sealed long after their end: more than flush.grace and five minutes";
        events_late: Counter,
            "Events that came after the counts of their minute and series were sealed";
        self_metrics_dropped: Counters,
            "Points of this node's own metrics that the output was not given or did not take (`output.self_metrics`)";
        backlog_pending: Known,
            "Minutes times partitions that wait for being claimed, open ones included. It and all others of the store's backlog are absent while the store does not answer";
        backlog_claimed: Known, "Minutes times partitions that are claimed by any node to be sealed";
        backlog_unsent: Gauges,
            "Minutes times partitions that are sealed and that the output does not have in full; of outputs, too, that are not configured any more";
        oldest_unsent_minute_age_seconds: Family<OfOutput, Gauge<f64, AtomicU64>>,
            "How long ago the oldest minute ended that the output does not have in full; 0: none is over. A minute that it had counts again when events come for it";
        counts_quarantined: Gauges, "Counts of the output that are quarantined in the store";
        counts_quarantined_max: Gauge,
            "The most counts that the quarantines of an output in all partitions hold";
        store_memory_bytes: Gauge,
            "The memory that open minutes and unsent counts take in this process, roughly; 0: they are in Redis";
        store_memory_max_bytes: Gauge,
            "The most memory for them (`store.memory_max`); 0: they are in Redis";
        http_connections: Gauge, "HTTP connections that are open";
        http_connections_max: Gauge, "The most HTTP connections at a time";
        settings_differ: Gauge,
            "1 while this node's settings differ from those that all nodes must have alike, so that it sends nothing";
        query_computations: Counter, "Lists that this node computed for all that ask";
        store_rollbacks: Counter,
            "How often the store had gone back to what it was before, or was another one";
        events_forgotten: Counter,
            "Events that this node had recorded in what the store forgot, and cannot record again. Those of minutes that were closed by then are among them, and are published";
        publications_unconfirmed: Counter,
            "Minutes of partitions that the store forgot while their counts were written: an output may lack some of them for good";
        store_up: Gauge, "1 while the store answers this node and has room for events";
    }
    output {
        points_sent: Counter,
            "Points that the output confirmed; one that was written twice counts twice";
        points_quarantined: Counter, "Points that the output refused and that are quarantined";
        points_discarded: Counter,
            "Points that the output refused and for which the quarantine had no room";
        write_failures: Counter, "Writes that failed and are made again";
        write_seconds: Histogram = latency, "How long writes took, failed ones included, in seconds";
        publish_delay_seconds: Histogram = delay,
            "From the end of a minute until the output had its last point from this node, in seconds";
        output_up: Gauge, "1 while the output takes what this node writes";
    }
}

fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn delay() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

impl Metrics {
    /// Removes the backlog until the store tells it again: zero, or an old number, would be wrong.
    pub fn forget_backlog(&self) {
        self.backlog_pending.clear();
        self.backlog_claimed.clear();
        self.backlog_unsent.clear();
        self.counts_quarantined.clear();
        self.oldest_unsent_minute_age_seconds.clear();
    }

    /// Removes the backlog of an output that is gone.
    pub fn forget_output(&self, name: &str) {
        let label = &of_output(name);
        self.backlog_unsent.remove(label);
        self.counts_quarantined.remove(label);
        self.oldest_unsent_minute_age_seconds.remove(label);
    }

    /// Returns the text of all metrics.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Reads the node once a scrape, and its ledger at one moment, so that the numbers of a scrape add up.
#[derive(Debug)]
struct NodeCollector(Arc<Node>);

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (node, to) = (&self.0, &mut encoder);
        let totals = node.ledger.totals();
        for (name, help, count) in [
            ("events_received", "Events read from the sockets", totals.received),
            ("events_recorded", "Events confirmed by the store", totals.recorded),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        let failing = node.listeners_failing.load(Ordering::Relaxed) as u64;
        let name_taken = u64::from(node.name_taken.load(Ordering::Relaxed));
        let lagging = node.partitions.lagging() as u64;
        let bytes_help = "Memory of the events on the way to the store that are not on disk";
        let lagging_help = "Partitions whose events this node cannot record at the moment";
        let failing_help = "Receiving threads whose socket cannot be read at the moment";
        for (name, help, level) in [
            ("events_queued", "Events on the way to the store", totals.queued),
            ("events_spooled", "Events among those that are on disk only", totals.spooled),
            ("queue_bytes", bytes_help, totals.queued_bytes),
            ("partitions_lagging", lagging_help, lagging),
            ("listeners_failing", failing_help, failing),
            ("name_taken", "1 while another process uses this node's name", name_taken),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let unacknowledged = LossCause::ALL.into_iter().zip(node.losses.unacknowledged());
        family(
            to,
            "losses_unacknowledged",
            "Events, or datagrams of kernels, that all nodes lost and that no operator has acknowledged",
            unacknowledged
                .map(|(cause, lost)| ([("reason", cause.label())], ConstGauge::new(lost))),
        )?;
        // Until the store has told its time the gauge has no value.
        let help = "How far the store's clock is ahead of this node's, in seconds";
        let offset = to.encode_descriptor("clock_offset_seconds", help, None, MetricType::Gauge)?;
        if node.clock.store_ahead_ms().is_some() {
            ConstGauge::new(node.clock.store_ahead_seconds()).encode(offset)?;
        }
        by_reason(
            to,
            "events_overflowed",
            "Events among the recorded ones that are counted under an overflow series",
            [("too_many_series", totals.overflowed)],
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
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> fmt::Result {
    let counts = counts.into_iter();
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
