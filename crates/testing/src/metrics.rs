//! Reads what `/metrics` says: Prometheus' text format.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Metrics {
    /// Panics at a line that is neither a comment nor `name{label="value",…} number`.
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| sample(line).unwrap_or_else(|| panic!("a sample: {line}")));
        Self {
            samples: samples.collect(),
        }
    }

    /// The sum over all labels, as a whole number; 0 when there is no such metric yet.
    pub fn count(&self, name: &str) -> u64 {
        self.count_of(name, &[])
    }

    /// The same over the samples with these labels.
    pub fn count_of(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let with_labels = self.samples.iter().filter(|(sample, found, _)| {
            sample == name
                && labels
                    .iter()
                    .all(|(key, value)| found.get(*key).is_some_and(|it| it == value))
        });
        let sum: f64 = with_labels.map(|(_, _, value)| value).sum();
        assert!(sum >= 0.0 && sum.fract() == 0.0, "{name} is {sum}");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "just checked"
        )]
        let sum = sum as u64;
        sum
    }

    /// The value of a metric without labels.
    #[track_caller]
    pub fn value(&self, name: &str) -> f64 {
        let mut samples = self.samples.iter();
        let sample = samples.find(|(sample, ..)| sample == name);
        sample.unwrap_or_else(|| panic!("no {name}")).2
    }

    /// Whether there is such a metric at all.
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|(sample, _, _)| sample == name)
    }

    /// Every event that came in is accounted for. Panics with the ledger when it does not add up.
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

fn sample(line: &str) -> Option<(String, BTreeMap<String, String>, f64)> {
    let (key, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = key.split_once('{') else {
        return Some((key.to_owned(), BTreeMap::new(), value));
    };
    let labels = labels.strip_suffix('}')?;
    let mut found = BTreeMap::new();
    // Our labels' values hold no commas or quotes.
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, value) = label.split_once('=')?;
        found.insert(key.to_owned(), value.trim_matches('"').to_owned());
    }
    Some((name.to_owned(), found, value))
}
