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
use crate::diagnosis::{ByCause, LossCause};
use crate::event::Rejection;
use crate::node::{LedgerTotals, Node};

pub(crate) type OfOutput = [(&'static str, String); 1];
/// A gauge without labels, absent while its value is unknown.
type Known = Family<[(&'static str, String); 0], Gauge>;
/// A gauge per output.
pub type Gauges = Family<OfOutput, Gauge>;
type Counters = Family<OfOutput, Counter>;

/// Returns the label for an output's metrics.
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
        /// The metrics of a node that are not kept in [`Node`].
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
            /// Returns the metrics of this node and its process, all zero.
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
                ours.register("build", "Version and commit of this node", Info::new(build));
                Self { $($metric,)* $($output_metric,)* registry }
            }

            /// Adds an output, which is initially up, and returns its metrics.
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

// A metric is named `eds_` followed by its field.
metrics! {
    node {
        datagrams_received: Counter, "Datagrams read from the sockets";
        receive_buffer_bytes: Gauge, "Total size of the receive buffers of the sockets, as granted by the kernel";
        kernel_drops: Counter, "Datagrams dropped by the kernel because a receive buffer was full or a checksum was wrong";
        kernel_drops_inherited: Gauge,
            "Datagrams dropped by the kernel from inherited sockets before this node started; earlier nodes may have counted a part of them";
        listeners_full: Gauge, "Receiving threads that do not read their Unix socket because the queue is full: its senders are blocked";
        events_queued_max: Gauge, "Limit of events queued in memory (`input.queue_events`)";
        queue_max_bytes: Gauge, "Limit of the memory of queued events (`input.queue_bytes`)";
        record_failures: Counter, "Failed attempts to record a batch, which are retried";
        record_seconds: Histogram = latency(), "Time from the first attempt to record a batch until the store confirmed it, in seconds";
        dedup_hits: Counter, "Events whose user the store already had, so that only the event was sent";
        events_repeated: Counter,
            "Recorded events that the store already had: copies from other nodes and relays, equal events, and retries after a lost answer";
        events_seen: Counter,
            "Recorded events, each once per transaction: what this node has seen. Divided by recorded minus repeated events of all nodes, the share of events that reaches this node";
        events_replayed: Counter, "Events recorded again because the store may have lost them";
        replay_cut: Counter, "Batches that were not kept for the whole `store.replay_window` for lack of memory";
        spool_written: Counter, "Events written to disk because memory was full";
        spool_restored: Counter, "Events that an earlier process left on disk; they also count as received";
        spool_damaged: Counter, "Damaged frames of events on disk";
        spool_read_failures: Counter, "Failed attempts to read events on disk, which are retried";
        spool_bytes: Gauge, "Size of the files in `input.spool_dir`";
        spool_max_bytes: Gauge, "Limit of the size of the files in `input.spool_dir` (`input.spool_max`); 0 without a spool";
        claims: Counter, "Minutes of partitions that this node claimed";
        claims_taken_over: Counter, "Claims of a minute whose earlier claim had lapsed";
        claims_lost: Counter, "Claims that another node took over from this node during its work";
        series_sealed: Counter, "Series of a minute whose counts this node sealed";
        events_rounded: Counter,
            "Recorded events with timestamps of whole milliseconds or seconds although `input.timestamp_precision` is finer";
        events_coinciding: Counter, "Recorded events that follow two others with the same series, user and timestamp: they count as one";
        old_seals: Counter, "Minutes of partitions that this node sealed more than flush.grace and five minutes after their end";
        events_late: Counter, "Events that arrived after the counts of their minute and series were sealed";
        self_metrics_dropped: Counters, "Points of this node's own metrics that the output did not accept or was not offered (`output.self_metrics`)";
        backlog_pending: Known,
            "Minutes per partition that are not claimed, open minutes included. Absent, like the other backlog metrics, while the store does not respond";
        backlog_claimed: Known, "Minutes per partition that any node has claimed to seal";
        backlog_unsent: Gauges, "Minutes per partition that are sealed and not completely sent to the output, also of outputs that are no longer configured";
        oldest_unsent_minute_age_seconds: Family<OfOutput, Gauge<f64, AtomicU64>>,
            "Time since the end of the oldest minute that the output does not have completely; 0 if it has all";
        counts_quarantined: Gauges, "Counts in the quarantine of the output";
        counts_quarantined_max: Gauge, "Limit of the counts in the quarantine of an output, in all partitions";
        store_memory_bytes: Gauge, "Approximate memory of open minutes and unsent counts in this process; 0 if they are in Redis";
        store_memory_max_bytes: Gauge, "Limit of this memory (`store.memory_max`); 0 if they are in Redis";
        http_connections: Gauge, "Open HTTP connections";
        http_connections_max: Gauge, "Limit of open HTTP connections";
        settings_differ: Gauge, "1 while this node's settings differ from the cluster-wide settings, so that it sends nothing";
        query_computations: Counter, "Lists that this node computed for all nodes";
        store_rollbacks: Counter, "Times that the store had returned to an earlier state or was replaced";
        events_forgotten: Counter,
            "Events that this node had recorded, that the store lost, and that cannot be recorded again; those of closed minutes are included although they are published";
        publications_unconfirmed: Counter,
            "Minutes of partitions that the store lost while their counts were written: an output may lack some of them";
        store_up: Gauge, "1 while the store responds to this node and has room for events";
    }
    output {
        points_sent: Counter, "Points that the output confirmed; a point that was written twice counts twice";
        points_quarantined: Counter, "Points that the output refused and that are quarantined";
        points_discarded: Counter, "Points that the output refused while the quarantine was full";
        write_failures: Counter, "Failed writes, which are retried";
        write_seconds: Histogram = latency, "Duration of writes, including failed ones, in seconds";
        publish_delay_seconds: Histogram = delay, "Time from the end of a minute until the output had its last point from this node, in seconds";
        output_up: Gauge, "1 while the output accepts the writes of this node";
    }
}

fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn delay() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

impl Metrics {
    /// Removes the backlog, which is unknown until the store reports it again.
    pub fn forget_backlog(&self) {
        self.backlog_pending.clear();
        self.backlog_claimed.clear();
        self.backlog_unsent.clear();
        self.counts_quarantined.clear();
        self.oldest_unsent_minute_age_seconds.clear();
    }

    /// Removes the backlog of an output that has been removed.
    pub fn forget_output(&self, name: &str) {
        let label = &of_output(name);
        self.backlog_unsent.remove(label);
        self.counts_quarantined.remove(label);
        self.oldest_unsent_minute_age_seconds.remove(label);
    }

    pub(crate) fn dropped(&self, ledger: &LedgerTotals) -> ByCause {
        let mut dropped = ledger.dropped;
        dropped[LossCause::KernelDrops as usize] = self.kernel_drops.get();
        dropped
    }

    /// Returns all metrics as text.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Reads the node's ledger at a single moment per scrape, so that its numbers add up.
#[derive(Debug)]
struct NodeCollector(Arc<Node>);

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (node, to) = (&self.0, &mut encoder);
        let totals = node.ledger.totals();
        let failing = node.listeners_failing.load(Ordering::Relaxed) as u64;
        let name_taken = u64::from(node.name_taken.load(Ordering::Relaxed));
        let lagging = node.partitions.lagging() as u64;
        for (name, help, count) in [
            ("events_received", "Events read from the sockets", totals.received),
            ("events_recorded", "Events confirmed by the store", totals.recorded),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("events_queued", "Events that are not recorded yet", totals.queued),
            ("events_spooled", "Queued events that are on disk only", totals.spooled),
            (
                "queue_bytes",
                "Memory of the queued events that are not on disk",
                totals.queued_bytes,
            ),
            ("partitions_lagging", "Partitions whose events this node cannot record now", lagging),
            ("listeners_failing", "Receiving threads that cannot read their socket now", failing),
            ("name_taken", "1 while another process uses this node's name", name_taken),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let unacknowledged = LossCause::ALL.into_iter().zip(node.losses.unacknowledged());
        let unacknowledged = unacknowledged
            .map(|(cause, lost)| ([("reason", cause.label())], ConstGauge::new(lost)));
        let help = "Lost events, lines or datagrams of all nodes and relays that no operator has acknowledged";
        family(to, "losses_unacknowledged", help, unacknowledged)?;
        // The gauge has no value until the store has reported its time.
        let help = "How far the store's clock is ahead of this node's, in seconds";
        let offset = to.encode_descriptor("clock_offset_seconds", help, None, MetricType::Gauge)?;
        if node.clock.store_ahead_ms().is_some() {
            ConstGauge::new(node.clock.store_ahead_seconds()).encode(offset)?;
        }
        let mut by_reason = |name, help, counts: &mut dyn Iterator<Item = (&'static str, u64)>| {
            let counts = counts.map(|(reason, n)| ([("reason", reason)], ConstCounter::new(n)));
            family(to, name, help, counts)
        };
        let help = "Recorded events that count under an overflow series";
        let overflowed = [("too_many_series", totals.overflowed)];
        by_reason("events_overflowed", help, &mut overflowed.into_iter())?;
        let mut rejected = Rejection::ALL.iter().map(|it| it.label()).zip(totals.rejected);
        by_reason("events_rejected", "Lines that are not counted", &mut rejected)?;
        let mut dropped = LossCause::DROPPED.iter().map(|it| it.label()).zip(totals.dropped);
        by_reason("events_dropped", "Events that were received and not kept", &mut dropped)
    }
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
