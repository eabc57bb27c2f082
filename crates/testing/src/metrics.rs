//! Reads the response of `/metrics`, which is in the Prometheus text format.

use prometheus_parse::{Sample, Scrape, Value};

/// The metrics of one scrape.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<Sample>);

/// Returns the number of a sample, or None for a histogram or a summary.
fn number(sample: &Sample) -> Option<f64> {
    match sample.value {
        Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => Some(number),
        Value::Histogram(_) | Value::Summary(_) => None,
    }
}

impl Metrics {
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        Self(Scrape::parse(lines).expect("lines of text").samples)
    }

    /// Returns the sum of a metric over all labels, which must be a whole number. Returns 0 if the metric does not exist
    /// yet.
    pub fn count(&self, name: &str) -> u64 {
        self.count_of(name, &[])
    }

    /// Like [`count`](Self::count), but only for samples with these labels.
    pub fn count_of(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let has = |sample: &Sample| {
            let mut labels = labels.iter();
            labels.all(|(key, value)| sample.labels.get(key) == Some(value))
        };
        let samples = self.samples(name).filter(|sample| has(sample));
        let sum: f64 = samples.filter_map(number).sum();
        assert!(sum >= 0.0 && sum.fract() == 0.0, "{name} is {sum}");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
        let sum = sum as u64;
        sum
    }

    /// Returns the value of a metric without labels. Panics if the metric does not exist.
    #[track_caller]
    pub fn value(&self, name: &str) -> f64 {
        let value = self.samples(name).find_map(number);
        value.unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Returns whether the metric exists.
    pub fn has(&self, name: &str) -> bool {
        self.samples(name).next().is_some()
    }

    fn samples(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.metric == name)
    }

    /// Asserts that every received event is accounted for. Panics with all parts of the sum if they do not add up.
    #[track_caller]
    pub fn assert_ledger_adds_up(&self) {
        let received = self.count("eds_events_received_total");
        let parts = [
            "eds_events_recorded_total",
            "eds_events_rejected_total",
            "eds_events_dropped_total",
            "eds_events_queued",
        ]
        .map(|name| (name, self.count(name)));
        let sum: u64 = parts.iter().map(|(_, count)| count).sum();
        assert_eq!(received, sum, "received {received}, but {parts:?}");
    }
}
