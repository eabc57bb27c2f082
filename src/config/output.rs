//! Builds the settings of the outputs from `[output]`, or from each `[[output]]`.

use std::time::Duration;

use super::kinds::{ApiName, text};
use super::sections;
use super::servers::{exposed_host, http, refuse_keys};
use super::values::Effective;
use crate::output::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT};
use crate::output::server::{Api, RemoteWriteVersion, Settings};
use crate::store::OutputName;

/// Maximum number of outputs. There is a limit because each output has its own tasks, connections and backlog.
const OUTPUTS_MAX: usize = 16;
/// Minimum interval at which a node writes its own metrics. More frequent points would not be visible in charts.
const SELF_METRICS_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) name: OutputName,
    pub(crate) target: Target,
    /// Maximum number of counts in one write. Each count is written as two points.
    pub(crate) write_counts_max: usize,
    pub(crate) probe_measurement: String,
    /// The interval at which the node writes its own metrics to the output; `None` means never.
    pub(crate) self_metrics: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) enum Target {
    Stdout,
    Server(Box<Settings>),
}

impl Output {
    pub(super) fn alike(&self) -> String {
        let settings = match &self.target {
            Target::Stdout => return format!("{} stdout:", self.name),
            Target::Server(settings) => settings,
        };
        let api = match &settings.api {
            Api::V1 { database, .. } => format!("api=v1 database={database}"),
            Api::V2 { org, bucket, .. } => format!("api=v2 org={org} bucket={bucket}"),
            Api::RemoteWrite { version, tenant, .. } => {
                let version = match version {
                    RemoteWriteVersion::V1 => "v1",
                    RemoteWriteVersion::V2 => "v2",
                };
                let tenant = tenant.as_deref().unwrap_or_default();
                format!("api=remote-write-{version} org={tenant}")
            }
            Api::Otlp { tenant, .. } => {
                format!("api=otlp org={}", tenant.as_deref().unwrap_or_default())
            }
        };
        format!("{} {} {api}", self.name, settings.url.as_str().trim_end_matches('/'))
    }
}

pub(super) fn read(values: &mut Effective) -> Vec<Output> {
    let mut outputs: Vec<Output> = Vec::new();
    for place in 0..values.outputs() {
        values.index = place;
        let keys = sections::Output::read(values);
        let is_new = outputs.iter().all(|other| other.name != keys.name);
        let is_of_counts =
            [UNIQUE_MEASUREMENT, CUMULATIVE_MEASUREMENT].contains(&&*keys.probe_measurement);
        let self_metrics = Some(keys.self_metrics).filter(|every| !every.is_zero());
        for (paths, holds, text) in [
            (
                &["output.name"][..],
                is_new,
                "is also the name of a different output; use unique names",
            ),
            (
                &["output.name"],
                keys.name != OutputName::rollup(),
                "is reserved for the rollups; use a different name",
            ),
            (
                &["output.name"],
                place < OUTPUTS_MAX,
                "exceeds the limit of 16 outputs; remove an output",
            ),
            (
                &["output.probe_measurement"],
                !is_of_counts,
                "is a measurement that contains counts; choose a measurement that is not used for anything else",
            ),
            (
                &["output.self_metrics"],
                self_metrics.is_none_or(|every| every >= SELF_METRICS_MIN),
                "is shorter than a second; use 1s or more, or 0s to disable it",
            ),
            (
                &["output.self_metrics", "output.url"],
                self_metrics.is_none() || keys.url.is_some(),
                "requires a database, but output.url is stdout:; remove this key, or change output.url",
            ),
            (
                &["output.self_metrics", "output.api"],
                self_metrics.is_none() || matches!(keys.api, ApiName::V1 | ApiName::V2),
                "requires output.api = \"v1\" or \"v2\"; remove this key, and use telemetry.otlp_url, or let Prometheus read /metrics",
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
    values.index = 0;
    outputs
}

fn target(values: &mut Effective, keys: sections::Output) -> Target {
    let Some(url) = keys.url else {
        return Target::Stdout;
    };
    let name = values.text("output.api").to_owned();
    let refused: &[(&str, &[&str])] = match keys.api {
        ApiName::V1 => &[("v2", &["org", "bucket", "token", "token_file"])],
        ApiName::V2 => &[("v1", &["database", "username", "password", "password_file"])],
        _ => &[("v2", &["bucket"]), ("v1", &["database"])],
    };
    for (other, unused) in refused {
        let text = format!(
            "requires output.api = \"{other}\", but it is \"{name}\"; remove this key, or set output.api to \"{other}\""
        );
        refuse_keys(values, "output.api", unused, &text);
    }
    let missing = format!("is not set, but output.api = \"{name}\" requires it; set it");
    let mut required = |path| {
        let value: Option<String> = values.read(path, text);
        values.together(&[path, "output.api"], value.is_some(), &missing);
        value.unwrap_or_default()
    };
    let api = match keys.api {
        ApiName::V1 => {
            Api::V1 { database: required("output.database"), username: None, password: None }
        }
        ApiName::V2 => {
            Api::V2 { org: required("output.org"), bucket: required("output.bucket"), token: None }
        }
        ApiName::RemoteWriteV1 => remote_write(values, RemoteWriteVersion::V1),
        ApiName::RemoteWriteV2 => remote_write(values, RemoteWriteVersion::V2),
        ApiName::Otlp => Api::Otlp { login: None, tenant: tenant(values) },
    };
    let (path, adds_path) = (url.path().trim_end_matches('/'), api.accepts_lines());
    for (holds, text) in [
        (
            !adds_path || !path.ends_with("/write"),
            "ends with the path of the write API; remove /write or /api/v2/write, because eds adds this path itself, or use \
             output.api = \"remote-write-v1\"",
        ),
        (
            adds_path || !path.is_empty(),
            "has no path; add the path of the server's write API, such as /api/v1/write for remote write to Prometheus or \
             /v1/metrics for OTLP",
        ),
    ] {
        values.together(&["output.url", "output.api"], holds, text);
    }
    let mut settings = Settings { url, api, timeout: keys.timeout, ca: None, gzip: keys.gzip };
    http(values, "output", &mut settings);
    let is_on_this_host = settings.url.scheme() == "http" && exposed_host(&settings.url).is_none();
    values.together(
        &["output.token_file", "output.token", "output.url", "output.api"],
        !matches!(settings.api, Api::V2 { token: None, .. }) || is_on_this_host,
        "is not set, but output.api = \"v2\" requires a token unless output.url is http:// with an address of this host; set \
         it, or set EDS_OUTPUT__TOKEN",
    );
    Target::Server(Box::new(settings))
}

fn remote_write(values: &mut Effective, version: RemoteWriteVersion) -> Api {
    Api::RemoteWrite { version, login: None, tenant: tenant(values) }
}

fn tenant(values: &mut Effective) -> Option<String> {
    let tenant: Option<String> = values.read("output.org", text);
    values.together(
        &["output.org"],
        tenant.as_ref().is_none_or(|tenant| tenant.bytes().all(|byte| byte.is_ascii_graphic())),
        "contains characters that are not allowed in an HTTP header; use the ID of the tenant",
    );
    tenant
}
