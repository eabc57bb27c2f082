//! The metrics, in the text format of Prometheus and OpenMetrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{DropReason, Ledger};
use crate::event::Rejection;

/// All that the service counts and measures, beside the [`Ledger`].
#[derive(Debug)]
pub struct Metrics {
    /// Datagrams read from the sockets.
    pub datagrams_received: Counter,
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub kernel_drops: Counter,
    /// Attempts to record that failed and are made again.
    pub record_failures: Counter,
    /// From a batch's first attempt until the store had it, in seconds.
    pub record_seconds: Histogram,
    /// Users that were not sent to the store again.
    pub users_spared: Counter,
    /// Claims that this node took.
    pub claims: Counter,
    /// Claims among them that another node, or an earlier life of this one, had let lapse.
    pub claims_taken_over: Counter,
    /// Claims that were taken over from this node while it worked on them.
    pub claims_lost: Counter,
    /// Series of a minute whose counts this node fixed.
    pub series_counted: Counter,
    /// Events that came after the counts of their minute and series were fixed.
    pub events_late: Counter,
    /// Points that the output confirmed. A point that was written twice counts twice.
    pub points_sent: Counter,
    /// Points that the output refused and that are set aside.
    pub points_set_aside: Counter,
    /// Points that the output refused and for which there was no room either: in the log only.
    pub points_discarded: Counter,
    /// Writes that failed and are made again.
    pub write_failures: Counter,
    /// How long writes took, failed ones included, in seconds.
    pub write_seconds: Histogram,
    /// From the end of a minute until this node sent its last point, in seconds.
    pub publish_delay_seconds: Histogram,
    /// Minutes times partitions that wait for being claimed, open ones included.
    pub minutes_waiting: Gauge,
    /// Minutes times partitions that are claimed by any node.
    pub minutes_claimed: Gauge,
    /// Counts that are set aside, in the store.
    pub counts_set_aside: Gauge,
    /// 1 while the store answers this node.
    pub store_up: Gauge,
    /// 1 while the output takes what this node writes.
    pub output_up: Gauge,
    registry: Registry,
}

impl Metrics {
    /// Metrics of a node, all zero, that tell the ledger too.
    #[must_use]
    pub fn new(ledger: Arc<Ledger>) -> Self {
        let mut registry = Registry::with_prefix("eds");
        registry.register_collector(Box::new(LedgerCollector(ledger)));
        let latency = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        let metrics = Self {
            datagrams_received: Counter::default(),
            kernel_drops: Counter::default(),
            record_failures: Counter::default(),
            record_seconds: latency(),
            users_spared: Counter::default(),
            claims: Counter::default(),
            claims_taken_over: Counter::default(),
            claims_lost: Counter::default(),
            series_counted: Counter::default(),
            events_late: Counter::default(),
            points_sent: Counter::default(),
            points_set_aside: Counter::default(),
            points_discarded: Counter::default(),
            write_failures: Counter::default(),
            write_seconds: latency(),
            publish_delay_seconds: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            minutes_waiting: Gauge::default(),
            minutes_claimed: Gauge::default(),
            counts_set_aside: Gauge::default(),
            store_up: Gauge::default(),
            output_up: Gauge::default(),
            registry: Registry::default(),
        };
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter(
            "datagrams_received",
            "Datagrams read from the sockets",
            &metrics.datagrams_received,
        );
        counter(
            "kernel_drops",
            "Datagrams dropped by the kernel: receive buffer full",
            &metrics.kernel_drops,
        );
        counter(
            "record_failures",
            "Failed attempts to record, made again",
            &metrics.record_failures,
        );
        counter(
            "users_spared",
            "Users not sent to the store again",
            &metrics.users_spared,
        );
        counter("claims", "Minutes of a partition claimed", &metrics.claims);
        counter(
            "claims_taken_over",
            "Claims taken over after their lease",
            &metrics.claims_taken_over,
        );
        counter(
            "claims_lost",
            "Claims lost to another node",
            &metrics.claims_lost,
        );
        counter(
            "series_counted",
            "Series of a minute whose counts were fixed",
            &metrics.series_counted,
        );
        counter(
            "events_late",
            "Events after the counts of their minute were fixed",
            &metrics.events_late,
        );
        counter(
            "points_sent",
            "Points confirmed by the output",
            &metrics.points_sent,
        );
        counter(
            "points_set_aside",
            "Points refused by the output and set aside",
            &metrics.points_set_aside,
        );
        counter(
            "points_discarded",
            "Points refused and not kept, see the log",
            &metrics.points_discarded,
        );
        counter(
            "write_failures",
            "Failed writes, made again",
            &metrics.write_failures,
        );
        let mut gauge = |name: &str, help: &str, gauge: &Gauge| {
            registry.register(name, help, gauge.clone());
        };
        gauge(
            "minutes_waiting",
            "Minutes times partitions not claimed yet",
            &metrics.minutes_waiting,
        );
        gauge(
            "minutes_claimed",
            "Minutes times partitions claimed",
            &metrics.minutes_claimed,
        );
        gauge(
            "counts_set_aside",
            "Counts set aside in the store",
            &metrics.counts_set_aside,
        );
        gauge("store_up", "1 while the store answers", &metrics.store_up);
        gauge(
            "output_up",
            "1 while the output takes points",
            &metrics.output_up,
        );
        let mut histogram = |name: &str, help: &str, histogram: &Histogram| {
            registry.register(name, help, histogram.clone());
        };
        histogram(
            "record_seconds",
            "Time until a batch was recorded",
            &metrics.record_seconds,
        );
        histogram(
            "write_seconds",
            "Time of a write to the output",
            &metrics.write_seconds,
        );
        histogram(
            "publish_delay_seconds",
            "Time from a minute's end to its last point",
            &metrics.publish_delay_seconds,
        );
        Self {
            registry,
            ..metrics
        }
    }

    /// All metrics as text, in the format of [`Metrics::CONTENT_TYPE`].
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// The media type of [`Metrics::encode`].
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

/// Reads the ledger once a scrape, so that its figures add up in every one.
#[derive(Debug)]
struct LedgerCollector(Arc<Ledger>);

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let totals = self.0.totals();
        let mut one = |name: &str, help: &str, value: &dyn Fn() -> Value| {
            let value = value();
            let metric = encoder.encode_descriptor(name, help, None, value.metric_type())?;
            value.encode(metric)
        };
        one("events_received", "Events read from the sockets", &|| {
            Value::counter(totals.received)
        })?;
        one("events_recorded", "Events confirmed by the store", &|| {
            Value::counter(totals.recorded)
        })?;
        one("events_queued", "Events on the way to the store", &|| {
            Value::gauge(totals.queued)
        })?;
        one(
            "queue_bytes",
            "Memory of the events on the way to the store",
            &|| Value::gauge(totals.queued_bytes),
        )?;
        let rejected = Rejection::ALL
            .iter()
            .map(|reason| reason.label())
            .zip(totals.rejected);
        by_reason(
            &mut encoder,
            "events_rejected",
            "Lines that are not counted",
            rejected,
        )?;
        let dropped = DropReason::ALL
            .iter()
            .map(|reason| reason.label())
            .zip(totals.dropped);
        by_reason(&mut encoder, "events_dropped", "Events given up", dropped)
    }
}

enum Value {
    Counter(ConstCounter<u64>),
    Gauge(ConstGauge<i64>),
}

impl Value {
    fn counter(value: u64) -> Self {
        Self::Counter(ConstCounter::new(value))
    }

    fn gauge(value: u64) -> Self {
        Self::Gauge(ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn metric_type(&self) -> prometheus_client::metrics::MetricType {
        match self {
            Self::Counter(counter) => counter.metric_type(),
            Self::Gauge(gauge) => gauge.metric_type(),
        }
    }

    fn encode(
        &self,
        encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        match self {
            Self::Counter(counter) => counter.encode(encoder),
            Self::Gauge(gauge) => gauge.encode(encoder),
        }
    }
}

fn by_reason(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: impl Iterator<Item = (&'static str, u64)>,
) -> Result<(), fmt::Error> {
    let kind = prometheus_client::metrics::MetricType::Counter;
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (reason, count) in counts {
        let labels = [("reason", reason)];
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Intake;

    #[test]
    fn the_ledger_is_told_with_its_reasons() {
        let ledger = Arc::new(Ledger::default());
        let mut intake = Intake {
            queued: 5,
            ..Intake::default()
        };
        intake.rejected[Rejection::NotUtf8.index()] = 2;
        ledger.take_in(&intake);
        let metrics = Metrics::new(Arc::clone(&ledger));
        metrics.datagrams_received.inc();
        let text = metrics.encode().unwrap();
        for line in [
            "eds_events_received_total 7",
            "eds_events_queued 5",
            "eds_events_rejected_total{reason=\"not_utf8\"} 2",
            "eds_events_dropped_total{reason=\"queue_full\"} 0",
            "eds_datagrams_received_total 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
