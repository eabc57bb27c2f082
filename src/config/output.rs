//! `[output]` or each `[[output]]`: where the counts go, and as whom they are written.

use std::time::Duration;

use super::keys::{Key, output};
use super::reader::Reader;
use super::store::{UserKeys, user};
use super::url::{OutputUrlParts, host_in_the_clear, is_loopback};
use crate::output::influxdb::{Api, Settings, certificates};
use crate::output::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT};
use crate::secret::Secret;
use crate::store::OutputName;

/// The most outputs. Each has tasks and connections of its own, and every count waits once for each.
const OUTPUTS_MAX: usize = 16;
/// More often no chart shows it.
const SELF_METRICS_MIN: Duration = Duration::from_secs(1);

/// One of the outputs.
#[derive(Debug, Clone)]
pub struct Output {
    /// What it is called.
    pub name: OutputName,
    /// Where it is.
    pub target: Target,
    /// The most counts of a write; each is two points.
    pub write_counts_max: usize,
    /// The measurement of the point that tells whether the server takes any.
    pub probe_measurement: String,
    /// How often the node's own metrics are written there; `None`: never.
    pub self_metrics: Option<Duration>,
}

/// An output, by what it needs.
#[derive(Debug, Clone)]
pub enum Target {
    /// Line protocol on standard output.
    Stdout,
    /// `InfluxDB`, or what speaks like it.
    InfluxDb(Box<Settings>),
}

pub(super) fn read(reader: &mut Reader<'_>) -> Vec<Output> {
    let mut outputs: Vec<Output> = Vec::new();
    for place in 0..reader.outputs() {
        reader.turn_to_output(place);
        let name = reader.read(&output::name);
        let is_there = outputs.iter().any(|other| other.name == name);
        reader.together(
            &[output::name.path],
            !is_there,
            "is the name of another output, too; give each of them a name of its own",
        );
        reader.together(
            &[output::name.path],
            place < OUTPUTS_MAX,
            "is one output too many; write 16 at most",
        );
        let target = target(reader);
        outputs.push(Output {
            name,
            write_counts_max: (reader.read(&output::batch_lines) / 2).max(1),
            probe_measurement: probe_measurement(reader),
            self_metrics: self_metrics(reader, &target),
            target,
        });
    }
    reader.turn_to_output(0);
    outputs
}

fn target(reader: &mut Reader<'_>) -> Target {
    let url = reader.read(&output::url);
    let timeout = reader.read(&output::timeout);
    let Some(url) = url else {
        return Target::Stdout;
    };
    let base = url.base.clone();
    let api = match reader.read(&output::api) {
        1 => api_v1(reader, url),
        _ => api_v2(reader, &url),
    };
    let ca = reader.pem(&output::ca_file);
    if let Some(Err(reason)) = ca.as_deref().map(certificates) {
        let file = reader.text(output::ca_file.path);
        let text = format!("{file} cannot be used: {reason}; name a file of PEM certificates");
        reader.wrong(output::ca_file.path, &text);
    }
    reader.together(
        &[output::ca_file.path, output::url.path],
        base.scheme() == "https" || ca.is_none(),
        "is set, but output.url is not encrypted; write https:// there or leave this out",
    );
    Target::InfluxDb(Box::new(Settings { url: base, api, timeout, ca }))
}

fn probe_measurement(reader: &mut Reader<'_>) -> String {
    let name = reader.read(&output::probe_measurement);
    reader.together(
        &[output::probe_measurement.path],
        ![UNIQUE_MEASUREMENT, CUMULATIVE_MEASUREMENT].contains(&name.as_str()),
        "is a measurement of counts; name one that nothing else is written to",
    );
    name
}

fn self_metrics(reader: &mut Reader<'_>, target: &Target) -> Option<Duration> {
    let every = reader.read(&output::self_metrics);
    if every.is_zero() {
        return None;
    }
    reader.together(
        &[output::self_metrics.path],
        every >= SELF_METRICS_MIN,
        "is shorter than a second; write 1s or more, or 0s for none",
    );
    reader.together(
        &[output::self_metrics.path, output::url.path],
        matches!(target, Target::InfluxDb(_)),
        "and a database go together, but output.url is stdout:; leave it out, or set output.url",
    );
    Some(every)
}

/// The API in force knows no such keys: either they are wrong or output.api is.
fn refuse_keys_of(reader: &mut Reader<'_>, api: &str, keys: &[&'static Key]) {
    for key in keys {
        if !reader.text(key.path).is_empty() {
            let text = format!(
                "is for output.api = \"{api}\", which is not in force; leave it out, or set output.api to \"{api}\""
            );
            reader.wrong(key.path, &text);
        }
    }
}

fn api_v2(reader: &mut Reader<'_>, url: &OutputUrlParts) -> Api {
    reader.together(
        &[output::url.path],
        url.username.is_none() && url.password.is_none(),
        "holds a user or password, but api = \"v2\" takes a token; leave them out and set output.token_file",
    );
    refuse_keys_of(
        reader,
        "v1",
        &[&output::database, &output::username, &output::password, &output::password_file],
    );
    let reason = "output.api = \"v2\" needs it";
    let org = reader.required(&output::org, reason);
    let bucket = reader.required(&output::bucket, reason);
    let mut token = None;
    if reader.sends {
        token = reader.secret(&output::token, &output::token_file);
        let is_optional = host_in_the_clear(&url.base).is_some_and(is_loopback);
        reader.together(
            &[output::token_file.path, output::token.path, output::url.path],
            token.is_some() || is_optional,
            "is not set, but output.api = \"v2\" needs a token unless the server is plain http on this host; set it, or \
             EDS_OUTPUT__TOKEN",
        );
        let of_variable = !reader.text(output::token.path).is_empty();
        let key = if of_variable { output::token.path } else { output::token_file.path };
        reader.together(
            &[key],
            token.as_ref().is_none_or(|token| token.expose().is_ascii()),
            "holds a token with a character that HTTP cannot carry; write only the token into it",
        );
    }
    Api::V2 { org, bucket, token }
}

fn api_v1(reader: &mut Reader<'_>, url: OutputUrlParts) -> Api {
    refuse_keys_of(
        reader,
        "v2",
        &[&output::org, &output::bucket, &output::token, &output::token_file],
    );
    let database = reader.required(&output::database, "output.api = \"v1\" needs it");
    let (mut username, mut password) = (None, None);
    if reader.sends {
        let keys = UserKeys {
            url: output::url.path,
            username: &output::username,
            password: &output::password,
            password_file: &output::password_file,
        };
        let in_url = url.password.as_deref().map(Secret::new);
        (username, password) = user(reader, &keys, url.username, in_url);
        reader.together(
            &[
                output::username.path,
                output::url.path,
                output::password.path,
                output::password_file.path,
            ],
            username.is_some() == password.is_some(),
            "and the password go together; set output.username and output.password_file, or neither",
        );
        let of_url = reader.text(output::username.path).is_empty();
        let key = if of_url { output::url.path } else { output::username.path };
        reader.together(
            &[key],
            username.as_ref().is_none_or(|name| !name.contains(':')),
            "has a user with a colon, which would begin the password; leave it out",
        );
    }
    Api::V1 { database, username, password }
}
