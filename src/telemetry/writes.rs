//! [`WriteMetrics`]: the metrics of events that arrive by HTTP. A node and a relay have the same.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

type Counters = Family<[(&'static str, String); 1], Counter>;

/// The metrics of events that arrive by HTTP.
#[derive(Debug, Clone)]
pub struct WriteMetrics {
    requests: Counters,
    /// The requests that were recorded, had to be repeated, and were rejected.
    outcomes: [Counter; 3],
    seconds: Histogram,
    limited: Counters,
    /// The number of open connections.
    pub(crate) connections: Gauge,
}

impl Default for WriteMetrics {
    fn default() -> Self {
        Self {
            requests: Counters::default(),
            outcomes: Default::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            limited: Counters::default(),
            connections: Gauge::default(),
        }
    }
}

impl WriteMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let Self { requests, seconds, limited, connections, .. } = self;
        registry.register("http_writes", "Requests to write events, by status", requests.clone());
        let help = "Time from the head of such a request to its answer, in seconds";
        registry.register("http_write_seconds", help, seconds.clone());
        let help = "Such requests rejected because the token had used up its events per second";
        registry.register("http_writes_limited", help, limited.clone());
        let help = "Open connections to `input.http.listen`";
        registry.register("http_write_connections", help, connections.clone());
    }

    pub(crate) fn answered(&self, status: u16, seconds: f64) {
        self.requests.get_or_create_owned(&[("status", status.to_string())]).inc();
        self.seconds.observe(seconds);
        let outcome = match status {
            204 => 0,
            408 | 429 | 500.. => 1,
            400.. => 2,
            // Not a request to write events.
            _ => return,
        };
        self.outcomes[outcome].inc();
    }

    /// Returns the number of requests that were recorded, had to be repeated, and were rejected.
    pub(crate) fn outcomes(&self) -> [u64; 3] {
        self.outcomes.each_ref().map(Counter::get)
    }

    pub(crate) fn limited(&self, token: &str) {
        self.limited.get_or_create_owned(&[("token", token.to_owned())]).inc();
    }
}
