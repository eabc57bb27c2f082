//! [`Format`]: the two text formats for metrics, and the choice between them.

use std::fmt::Write as _;

/// A text format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Classic,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format for this `Accept` header: OpenMetrics if the header lists it and does not prefer the classic one.
    #[must_use]
    pub fn wanted(accept: &str) -> Self {
        // The quality of the classic format is that of the most specific media range that matches it.
        let (mut open, mut classic) = (0.0, (0, 0.0));
        for range in accept.to_ascii_lowercase().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0, "1.0.0");
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("q", value)) => quality = value.parse().unwrap_or(0.0),
                    Some(("version", value)) => version = value.trim_matches('"'),
                    _ => {}
                }
            }
            let exactness = match kind {
                "text/plain" => 3,
                "text/*" => 2,
                "*/*" => 1,
                _ => 0,
            };
            if exactness > 0 && (exactness, quality) > classic {
                classic = (exactness, quality);
            } else if kind == "application/openmetrics-text" && version == "1.0.0" {
                open = f32::max(open, quality);
            }
        }
        if open > 0.0 && open >= classic.1 { Self::OpenMetrics } else { Self::Classic }
    }

    /// Returns the value of the `Content-Type` header for this format.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts OpenMetrics text to this format. For each metric, the text must list help, type and samples in this order.
    pub(super) fn convert(self, text: String) -> String {
        if self == Self::OpenMetrics {
            return text;
        }
        let mut classic = String::with_capacity(text.len() + text.len() / 8);
        let mut help = "";
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# HELP ") {
                help = line.split_once(' ').map_or("", |(_, help)| help);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
            {
                // In the classic format, a metric has the same name as its samples.
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                let _ =
                    write!(classic, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
            } else if !line.starts_with('#') {
                classic.push_str(line);
                classic.push('\n');
            }
        }
        classic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_negotiated() {
        use Format::{Classic, OpenMetrics};

        for (accept, wanted) in [
            ("", Classic),
            ("*/*", Classic),
            ("text/plain", Classic),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Classic),
            ("application/json", Classic),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", OpenMetrics),
            // Prometheus 2.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            // Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
            // The same, with native histograms.
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                 application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
            // Prometheus 3 configured to scrape only the classic text.
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.4", Classic),
            ("text/plain, application/openmetrics-text;q=0.9", Classic),
            ("application/openmetrics-text;q=0.2, text/*;q=0.1, */*", OpenMetrics),
            ("application/openmetrics-text;q=0, text/plain;q=0.1", Classic),
            ("application/openmetrics-text;q=much", Classic),
            ("application/openmetrics-text;version=0.0.1", Classic),
            (";;q=,,q=1;*/*", Classic),
        ] {
            assert_eq!(Format::wanted(accept), wanted, "{accept}");
        }
    }

    #[test]
    fn classic_format_names_metrics_like_samples() {
        let open = "# HELP a_seconds A.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1.5\n\
                    # HELP b B # c.\n# TYPE b info\nb_info{c=\"#\"} 1\n# HELP d D.\n# TYPE d unknown\nd 1\n# EOF\n";
        let classic = "# HELP a_seconds_total A.\n# TYPE a_seconds_total counter\na_seconds_total 1.5\n\
                       # HELP b_info B # c.\n# TYPE b_info gauge\nb_info{c=\"#\"} 1\n\
                       # HELP d D.\n# TYPE d untyped\nd 1\n";
        assert_eq!(Format::Classic.convert(open.to_owned()), classic);
        assert_eq!(Format::OpenMetrics.convert(open.to_owned()), open);
    }
}
