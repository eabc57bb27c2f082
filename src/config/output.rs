//! `[output]` or each `[[output]]`: where the counts go, and as whom they are written.

use std::time::Duration;

use super::credentials::{HttpKeys, http, refuse_keys};
use super::sections;
use super::urls::exposed_host;
use super::values::Effective;
use crate::output::influxdb::{Api, Settings};
use crate::output::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT};
use crate::store::OutputName;

/// The maximum number of outputs. Each has its tasks, connections and backlog.
const OUTPUTS_MAX: usize = 16;
/// No chart shows a higher rate.
const SELF_METRICS_MIN: Duration = Duration::from_secs(1);

/// One of the outputs.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) name: OutputName,
    pub(crate) target: Target,
    /// The maximum number of counts in one write; each is two points.
    pub(crate) write_counts_max: usize,
    pub(crate) probe_measurement: String,
    /// The interval at which the node writes its metrics there; `None`: never.
    pub(crate) self_metrics: Option<Duration>,
}

/// The type of an output.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Line protocol on standard output.
    Stdout,
    /// `InfluxDB`, or a server with the same API.
    InfluxDb(Box<Settings>),
}

impl Output {
    /// Returns the cluster-wide settings of the output.
    pub(super) fn alike(&self) -> String {
        let Target::InfluxDb(settings) = &self.target else {
            return format!("{} stdout:", self.name);
        };
        let api = match &settings.api {
            Api::V1 { database, .. } => format!("api=v1 database={database}"),
            Api::V2 { org, bucket, .. } => format!("api=v2 org={org} bucket={bucket}"),
        };
        format!("{} {} {api}", self.name, settings.url.as_str().trim_end_matches('/'))
    }
}

pub(super) fn read(values: &mut Effective) -> Vec<Output> {
    let mut outputs: Vec<Output> = Vec::new();
    for place in 0..values.outputs() {
        values.output = place;
        ignore_unused(values);
        let keys = sections::Output::read(values);
        let is_new = outputs.iter().all(|other| other.name != keys.name);
        let is_of_counts =
            [UNIQUE_MEASUREMENT, CUMULATIVE_MEASUREMENT].contains(&&*keys.probe_measurement);
        let self_metrics = Some(keys.self_metrics).filter(|every| !every.is_zero());
        for (paths, holds, text) in [
            (
                &["output.name"][..],
                is_new,
                "is the name of another output, too; give each of them a name of its own",
            ),
            (&["output.name"], place < OUTPUTS_MAX, "is one output too many; write 16 at most"),
            (
                &["output.probe_measurement"],
                !is_of_counts,
                "is a measurement of counts; name one that nothing else is written to",
            ),
            (
                &["output.self_metrics"],
                self_metrics.is_none_or(|every| every >= SELF_METRICS_MIN),
                "is shorter than a second; write 1s or more, or 0s for none",
            ),
            (
                &["output.self_metrics", "output.url"],
                self_metrics.is_none() || keys.url.is_some(),
                "and a database go together, but output.url is stdout:; leave it out, or set output.url",
            ),
        ] {
            values.together(paths, holds, text);
        }
        outputs.push(Output {
            name: keys.name.clone(),
            write_counts_max: (keys.batch_lines / 2).max(1),
            probe_measurement: keys.probe_measurement.clone(),
            self_metrics,
            target: target(values, keys),
        });
    }
    values.output = 0;
    outputs
}

const OF_V1: [&str; 4] =
    ["output.database", "output.username", "output.password", "output.password_file"];
const OF_V2: [&str; 4] = ["output.org", "output.bucket", "output.token", "output.token_file"];

/// Ignores the keys that standard output does not need, and refuses the keys of the API that is not in use.
fn ignore_unused(values: &mut Effective) {
    if values.text("output.url") == "stdout:" {
        values.ignore(&[OF_V1, OF_V2].concat());
        values.ignore(&["output.ca_file"]);
        return;
    }
    for (keys, api, other) in [(OF_V1, "v1", "v2"), (OF_V2, "v2", "v1")] {
        if values.text("output.api") == other {
            let text = format!(
                "is for output.api = \"{api}\", which is not in force; leave it out, or set output.api to \"{api}\""
            );
            refuse_keys(values, "output.api", &keys, &text);
        }
    }
}

fn target(values: &mut Effective, keys: sections::Output) -> Target {
    let Some(server) = keys.url else {
        return Target::Stdout;
    };
    let mut required = |path: &str, value: Option<String>| {
        let text = format!("is not set, but output.api = \"{}\" needs it; set it", keys.api);
        values.together(&[path, "output.api"], value.is_some(), &text);
        value.unwrap_or_default()
    };
    let api = if keys.api == "v1" {
        let database = required("output.database", keys.database);
        Api::V1 { database, username: None, password: None }
    } else {
        let org = required("output.org", keys.org);
        let bucket = required("output.bucket", keys.bucket);
        Api::V2 { org, bucket, token: None }
    };
    let keys = HttpKeys {
        username: keys.username,
        password: [keys.password, keys.password_file],
        token: [keys.token, keys.token_file],
        ca: keys.ca_file,
        timeout: keys.timeout,
    };
    let settings = http(values, "output", server, api, keys);
    let is_on_this_host = settings.url.scheme() == "http" && exposed_host(&settings.url).is_none();
    values.together(
        &["output.token_file", "output.token", "output.url", "output.api"],
        !matches!(settings.api, Api::V2 { token: None, .. }) || is_on_this_host,
        "is not set, but output.api = \"v2\" needs a token unless the server is plain http on this host; set it, or \
         EDS_OUTPUT__TOKEN",
    );
    Target::InfluxDb(Box::new(settings))
}
