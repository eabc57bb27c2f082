//! Converts a node's metrics to points, for operators who have InfluxDB but no Prometheus. Each scrape produces one point in
//! the measurement `eds` per set of labels. Its tags are the labels and the node, and its fields are the metrics, without
//! the `eds_` prefix. Histogram buckets and build information are left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The measurement for a node's own metrics. The measurements for counts never have this name.
const MEASUREMENT: &str = "eds";

/// Converts metrics in the classic format to line protocol. Nothing needs escaping, as all texts match `[A-Za-z0-9._-]+`.
#[must_use]
pub fn points(metrics: &str, node: &str, at: SystemTime) -> Vec<String> {
    let mut points: BTreeMap<String, String> = BTreeMap::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let Some((sample, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let is_number = value.parse().is_ok_and(f64::is_finite);
        if !is_number || name.ends_with("_bucket") || name == "eds_build_info" {
            continue;
        }
        let mut tags = format!("node={node}");
        for label in labels.trim_end_matches('}').split(',') {
            if let Some((key, value)) = label.split_once('=') {
                let _ = write!(tags, ",{key}={}", value.trim_matches('"'));
            }
        }
        let fields = points.entry(tags).or_default();
        let comma = if fields.is_empty() { "" } else { "," };
        let field = name.strip_prefix("eds_").unwrap_or(name);
        let _ = write!(fields, "{comma}{field}={value}");
    }
    let nanos = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let line = |(tags, fields)| format!("{MEASUREMENT},{tags} {fields} {nanos}\n");
    points.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_point_has_the_metrics_of_one_set_of_labels() {
        let metrics = "# HELP eds_a_total A.\n# TYPE eds_a_total counter\neds_a_total 7\neds_b -0.5\n\
                       eds_c_total{output=\"x\",reason=\"y\"} 1\neds_d_bucket{le=\"+Inf\",output=\"x\"} 9\n\
                       eds_d_sum{output=\"x\"} 0.25\neds_e NaN\neds_build_info{version=\"1 2\"} 1\nprocess_f 3\n";
        let at = UNIX_EPOCH + Duration::from_nanos(1_480_876_707_352_348_928);
        assert_eq!(
            points(metrics, "n-1", at),
            [
                "eds,node=n-1 a_total=7,b=-0.5,process_f=3 1480876707352348928\n",
                "eds,node=n-1,output=x d_sum=0.25 1480876707352348928\n",
                "eds,node=n-1,output=x,reason=y c_total=1 1480876707352348928\n",
            ]
        );
    }
}
