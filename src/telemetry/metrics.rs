//! [`Metrics`]: a node's metrics, which are encoded in Prometheus' classic text format or in OpenMetrics.

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

use super::writes::WriteMetrics;
use super::{Format, encode, family, metric, registry};
use crate::diagnosis::{ByCause, LossCause};
use crate::event::Rejection;
use crate::node::{LedgerTotals, Node};

pub(crate) type OfOutput = [(&'static str, String); 1];
/// A gauge without labels, which is absent while its value is unknown.
type Known = Family<[(&'static str, String); 0], Gauge>;
/// A gauge per output or rollup.
pub type Gauges = Family<OfOutput, Gauge>;
type Counters = Family<OfOutput, Counter>;

/// Returns the label that identifies an output in its metrics.
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
        /// The metrics of a node, except for those kept in [`Node`].
        #[derive(Debug)]
        pub struct Metrics {
            $(#[doc = $help] pub $metric: $kind,)*
            $(#[doc = $output_help] pub $output_metric: Family<OfOutput, $output_kind>,)*
            /// The metrics of events that arrive by HTTP.
            pub writes: WriteMetrics,
            registry: Registry,
        }

        /// The metrics of one output.
        #[derive(Debug, Clone)]
        pub struct OutputMetrics {
            $(#[doc = $output_help] pub $output_metric: $output_kind,)*
        }

        impl Metrics {
            /// Creates the metrics of this node, all zero, and registers them together with those of its process.
            #[must_use]
            pub fn new(node: Arc<Node>) -> Self {
                let mut registry = registry();
                let eds = registry.sub_registry_with_prefix("eds");
                eds.register_collector(Box::new(NodeCollector(node)));
                $(
                    let $metric: $kind = new!($kind $(, $new)?);
                    eds.register(stringify!($metric), $help, $metric.clone());
                )*
                $(
                    let $output_metric: Family<OfOutput, $output_kind> =
                        new!(Family<OfOutput, $output_kind> $(, Family::new_with_constructor($output_new))?);
                    eds.register(stringify!($output_metric), $output_help, $output_metric.clone());
                )*
                let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
                eds.register("build", "Version and commit of this node", Info::new(build));
                let writes = WriteMetrics::default();
                writes.register(eds);
                Self { $($metric,)* $($output_metric,)* writes, registry }
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

// The name of each metric is `eds_` followed by the name of its field.
metrics! {
    node {
        datagrams_received: Counter, "Datagrams read from the sockets";
        receive_buffer_bytes: Gauge, "Total size of the sockets' receive buffers, as granted by the kernel";
        kernel_drops: Counter, "Datagrams dropped by the kernel because a receive buffer was full or a checksum was wrong";
        kernel_drops_inherited: Gauge,
            "Datagrams dropped by the kernel on inherited sockets before this node started; earlier processes may have counted some of them";
        listeners_full: Gauge, "Receiving threads that are not reading their Unix socket because the queue is full; senders to that socket block";
        events_queued_max: Gauge, "Maximum number of events queued in memory (`input.queue_events`)";
        queue_max_bytes: Gauge, "Maximum memory used by queued events (`input.queue_bytes`)";
        record_failures: Counter, "Failed attempts to record a batch, which are retried";
        record_seconds: Histogram = latency(), "Time from the first attempt to record a batch until the store acknowledged it, in seconds";
        dedup_hits: Counter, "Recorded events whose user was not sent to the store because the store already had it";
        events_repeated: Counter,
            "Recorded events that the store already had: duplicates from other nodes and relays, identical events, and retries after a lost response";
        events_seen: Counter,
            "Events that have reached this node in datagrams and been recorded, not counting repeats within a transaction. Divided by the recorded events of all nodes minus those repeated and those by HTTP, this is the share of all datagrams that reached this node";
        events_by_http: Counter, "Recorded events that have reached this node by HTTP";
        events_replayed: Counter, "Events re-recorded because the store may have lost them";
        replay_cut: Counter, "Batches that could not be kept for the whole `store.replay_window` because memory was short";
        spool_written: Counter, "Events written to disk because memory was full";
        spool_restored: Counter, "Events left on disk by an earlier process; they also count as received";
        spool_damaged: Counter, "Damaged event frames found on disk";
        spool_read_failures: Counter, "Failed attempts to read events on disk, which are retried";
        spool_bytes: Gauge, "Total size of the files in `input.spool_dir`";
        spool_max_bytes: Gauge, "Maximum total size of the files in `input.spool_dir` (`input.spool_max`); 0 without a spool";
        claims: Counter, "Minutes claimed by this node, counted per partition";
        claims_taken_over: Counter, "Claims by this node on minutes whose previous claim had expired";
        claims_lost: Counter, "Claims that another node took over while this node was working on them";
        series_sealed: Counter, "Counts sealed by this node, one per series per minute";
        events_rounded: Counter,
            "Recorded events with timestamps in whole milliseconds or seconds, although `input.timestamp_precision` is finer";
        events_coinciding: Counter, "Recorded events that arrived after two others with the same series, user and timestamp; all of these count as one event";
        window_estimates: Counter, "Numbers of users of windows that are estimates, because a limit of the rollup was exceeded";
        old_seals: Counter, "Minutes that this node sealed more than flush.grace plus five minutes after they ended, counted per partition";
        events_late: Counter, "Events that arrived after the counts for their minute and series had been sealed";
        self_metrics_dropped: Counters, "Points with this node's own metrics (`output.self_metrics`) that were not sent to the output or not accepted by it";
        spans_dropped: Counter, "Spans dropped because too many were waiting (each batch of a further minute counts as one), or in requests that the collector did not accept completely";
        backlog_pending: Known,
            "Minutes not yet claimed, including open ones, counted per partition. Like the other backlog metrics, this one is absent while the store is not responding";
        backlog_claimed: Known, "Minutes that any node has claimed for sealing, counted per partition";
        backlog_unsent: Gauges, "Minutes that are sealed but not completely sent to the output, counted per partition; includes outputs that are no longer configured";
        oldest_unsent_minute_age_seconds: Family<OfOutput, Gauge<f64, AtomicU64>>,
            "Time since the end of the oldest minute not completely sent to the output, in seconds; 0 if there is none";
        windows_open: Gauges, "Open windows of the rollup, at most the 60 newest. Like the next metric, this one is absent while the store is not responding";
        windows_bytes: Gauges, "Approximate memory used by the users of the rollup's open windows";
        counts_quarantined: Gauges, "Counts in the output's quarantine";
        counts_quarantined_max: Gauge, "Maximum number of counts in an output's quarantine, across all partitions";
        store_memory_bytes: Gauge, "Approximate memory used by open minutes and unsent counts in this process; 0 if they are in Redis";
        store_memory_max_bytes: Gauge, "Maximum memory used by open minutes and unsent counts in this process (`store.memory_max`); 0 if they are in Redis";
        http_connections: Gauge, "Open HTTP connections";
        http_connections_max: Gauge, "Maximum number of open HTTP connections";
        settings_differ: Gauge, "1 while this node's settings differ from the cluster-wide settings; it then does not close minutes or send counts";
        query_computations: Counter, "Lists of the series with the highest counts that this node has computed";
        store_rollbacks: Counter, "Number of times the store returned to an earlier state or was replaced";
        events_forgotten: Counter,
            "Events recorded by this node that the store lost and that cannot be re-recorded; includes events in closed minutes, although these have been published";
        publications_unconfirmed: Counter,
            "Minutes that the store lost while their counts were being written, counted per partition; an output may be missing some of these counts";
        store_up: Gauge, "1 while the store responds to this node and has room for events";
    }
    output {
        points_sent: Counter, "Points that the output acknowledged; a point written twice counts twice";
        points_quarantined: Counter, "Points that the output rejected and that were quarantined";
        points_discarded: Counter, "Points that the output rejected while the quarantine was full";
        write_failures: Counter, "Failed writes, which are retried";
        write_seconds: Histogram = latency, "Duration of writes, including failed ones, in seconds";
        publish_delay_seconds: Histogram = delay, "Time from the end of a minute until the output had received its last point from this node, in seconds";
        output_up: Gauge, "1 while the output is accepting this node's writes";
    }
}

fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn delay() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

impl Metrics {
    /// Removes the backlog metrics, whose values are unknown until the store reports the backlog again.
    pub fn forget_backlog(&self) {
        self.backlog_pending.clear();
        self.backlog_claimed.clear();
        self.backlog_unsent.clear();
        self.counts_quarantined.clear();
        self.oldest_unsent_minute_age_seconds.clear();
    }

    /// Removes the backlog metrics of an output that no longer exists.
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

    /// Returns all metrics as text in this format.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Encodes the metrics kept in [`Node`]. Takes one snapshot of the ledger per scrape, so that the numbers add up.
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
            ("events_recorded", "Events acknowledged by the store", totals.recorded),
        ] {
            metric(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("events_queued", "Events not yet recorded", totals.queued),
            ("events_spooled", "Queued events that are only on disk", totals.spooled),
            (
                "queue_bytes",
                "Memory used by queued events that are not on disk",
                totals.queued_bytes,
            ),
            ("partitions_lagging", "Partitions whose events this node cannot record", lagging),
            ("listeners_failing", "Receiving threads that cannot read their socket", failing),
            ("name_taken", "1 while another process uses this node's name", name_taken),
        ] {
            metric(to, name, help, &ConstGauge::new(level))?;
        }
        let unacknowledged = LossCause::ALL.into_iter().zip(node.losses.unacknowledged());
        let unacknowledged = unacknowledged
            .map(|(cause, lost)| ([("reason", cause.label())], ConstGauge::new(lost)));
        let help = "Losses on all nodes and relays that no operator has acknowledged, in events, lines, datagrams or minutes depending on the reason";
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
        let help = "Recorded events counted under an overflow series";
        let overflowed = [("too_many_series", totals.overflowed)];
        by_reason("events_overflowed", help, &mut overflowed.into_iter())?;
        let mut rejected = Rejection::ALL.iter().map(|reason| reason.label()).zip(totals.rejected);
        by_reason("events_rejected", "Lines rejected, by reason", &mut rejected)?;
        let mut dropped = LossCause::DROPPED.iter().map(|cause| cause.label()).zip(totals.dropped);
        by_reason("events_dropped", "Received events that were dropped, by reason", &mut dropped)
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
            assert!(text.lines().any(|l| l == line), "{line} is missing from:\n{text}");
        }
    }
}
