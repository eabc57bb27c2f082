//! [`PointReader`]: reads the points of a measurement from a database, in responses that are parsed line by line. An answer
//! that is not understood completely is an error, because a point that is not seen looks like a missing one.

mod answer;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, RequestBuilder, Response, Url};
use serde_json::Value;

use self::answer::Answer;
use crate::event::Minute;
use crate::output::WriteError;
use crate::output::server::{Api, Settings, SettingsError, credentials, failure, http_client};
use crate::text::{beginning, on_one_line};

/// The minimum time to wait for the next part of a response. A query takes longer than a write.
const WAIT_MIN: Duration = Duration::from_secs(60);
/// The maximum time for a whole response; the limit on each wait is what ends a request that hangs.
const RESPONSE_MAX: Duration = Duration::from_secs(86_400);
/// The maximum length of a line of a response, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The maximum number of bytes that are read, and of characters that are shown, of a response that reports an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
const ERROR_CHARS_MAX: usize = 300;
/// The maximum number of points in a line of InfluxDB 1.
const LINE_POINTS: &str = "10000";

/// A point in a database.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundPoint {
    /// The canonical tag set.
    pub(crate) series: Arc<str>,
    /// Nanoseconds since the epoch.
    pub(crate) nanos: i64,
    /// The field `value`.
    pub(crate) value: f64,
}

/// Why points could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the points of {place}: {why}; {remedy}")]
pub(crate) struct ReadError {
    place: String,
    why: String,
    remedy: String,
}

/// Reads points with the query API of InfluxDB 1 or 2, or `VictoriaMetrics`.
#[derive(Debug)]
pub(crate) struct PointReader {
    client: Client,
    headers: HeaderMap,
    settings: Settings,
    is_victoria_metrics: bool,
}

/// The points of a measurement in a time range.
#[derive(Debug)]
pub(crate) struct Points<'a> {
    reader: &'a PointReader,
    response: Response,
    answer: Answer,
    /// What has been received of the next line.
    rest: Vec<u8>,
    /// Complete lines.
    lines: VecDeque<Vec<u8>>,
    is_at_end: bool,
}

impl PointReader {
    /// Connects to the server to find out which query API it has.
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, ReadError> {
        let unusable = |error: SettingsError| ReadError {
            place: settings.describe(),
            why: error.to_string(),
            remedy: "check the configuration of the output".to_owned(),
        };
        let is_plain = settings.url.scheme() == "http";
        let client = http_client(settings.timeout, settings.ca.as_deref(), is_plain);
        let client = client.map_err(unusable)?;
        let headers = credentials(&client, settings).map_err(unusable)?;
        let settings = settings.clone();
        let mut reader = Self { client, headers, settings, is_victoria_metrics: false };
        // InfluxDB has no such path. VictoriaMetrics has parts of the API of Prometheus, and also answers queries of the
        // v1 API, but not with points.
        let request = reader.client.get(reader.url("/api/v1/status/buildinfo"));
        let (status, text) = reader.text(reader.send(request).await?).await?;
        let found = serde_json::from_str::<Value>(&text).unwrap_or_default();
        reader.is_victoria_metrics = status == 200 && found["status"] == "success";
        Ok(reader)
    }

    /// Returns the points of a measurement, whose name must not need escaping, that begin in one of these minutes.
    pub(crate) async fn read(
        &self,
        measurement: &str,
        minutes: Range<Minute>,
    ) -> Result<Points<'_>, ReadError> {
        let Range { start, end } = minutes;
        let seconds = [start, end].map(|minute| minute.epoch_minutes() * 60);
        let (request, answer) = match &self.settings.api {
            api if self.is_victoria_metrics => {
                let database = match api {
                    Api::V1 { database, .. } => database,
                    _ => "",
                };
                let name = format!("{measurement}_value");
                let series = format!("{{__name__=\"{name}\",db={}}}", quoted(database));
                // The end, in seconds, is part of the range.
                let [start, end] = [seconds[0].to_string(), format!("{}.999", seconds[1] - 1)];
                let query = [("match[]", series), ("start", start), ("end", end)];
                let request = self.client.get(self.url("/api/v1/export")).query(&query);
                (request, Answer::exported(database))
            }
            Api::V1 { database, .. } => {
                let [start, end] = [start, end].map(Minute::start_nanos);
                let select = format!(
                    "SELECT \"value\" FROM \"{measurement}\" WHERE time >= {start} AND time < {end} GROUP BY *"
                );
                let query = [
                    ("db", &**database),
                    ("epoch", "ns"),
                    ("chunked", "true"),
                    ("chunk_size", LINE_POINTS),
                    ("q", &select),
                ];
                let request = self.client.post(self.url("/query")).query(&query);
                (request, Answer::influxql(measurement))
            }
            Api::V2 { org, bucket, .. } => {
                let [start, end] = seconds;
                let flux = format!(
                    "from(bucket: {}) |> range(start: {start}, stop: {end}) |> filter(fn: (r) => r._measurement == \
                     \"{measurement}\" and r._field == \"value\")",
                    quoted(bucket).replace("${", "\\${")
                );
                let request = self.client.post(self.url("/api/v2/query"));
                let request = request.query(&[("org", org)]).header(ACCEPT, "application/csv");
                let request = request.header(CONTENT_TYPE, "application/vnd.flux").body(flux);
                (request, Answer::flux())
            }
            Api::RemoteWrite { .. } | Api::Otlp { .. } => {
                let remedy = "use an output with output.api = \"v1\" or \"v2\"";
                return Err(self.error("the API cannot return points", remedy));
            }
        };
        let response = self.send(request).await?;
        if response.status() != 200 {
            let (status, text) = self.text(response).await?;
            return Err(self.refused(status, &text));
        }
        let (rest, lines) = (Vec::new(), VecDeque::new());
        Ok(Points { reader: self, response, answer, rest, lines, is_at_end: false })
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.settings.url.clone();
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        url
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ReadError> {
        let request = request.headers(self.headers.clone()).timeout(RESPONSE_MAX);
        self.within(request.send()).await
    }

    /// Returns the status and the beginning of the body of a response.
    async fn text(&self, mut response: Response) -> Result<(u16, String), ReadError> {
        let mut bytes = Vec::new();
        while bytes.len() < ERROR_BYTES_MAX
            && let Some(chunk) = self.within(response.chunk()).await?
        {
            bytes.extend_from_slice(&chunk);
        }
        Ok((response.status().as_u16(), String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn within<T>(
        &self,
        step: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, ReadError> {
        let wait = self.settings.timeout.max(WAIT_MIN);
        let Ok(done) = tokio::time::timeout(wait, step).await else {
            let why = format!("no response within {} s", wait.as_secs());
            return Err(self.error(why, "check the load of the server, or raise output.timeout"));
        };
        done.map_err(|error| match failure(&error.without_url()) {
            WriteError::Misconfigured(found) => self.error(found.why, found.remedy),
            error => {
                let remedy = "start the server, or check the URL and the network";
                self.error(error.found().why.clone(), remedy)
            }
        })
    }

    fn refused(&self, status: u16, text: &str) -> ReadError {
        let json = serde_json::from_str::<Value>(text).unwrap_or_default();
        let message = json.get("message").or_else(|| json.get("error")).and_then(Value::as_str);
        let message = beginning(&on_one_line(message.unwrap_or(text)), ERROR_CHARS_MAX);
        self.error(format!("status {status}: {message}"), self.remedy(status))
    }

    const fn remedy(&self, status: u16) -> &'static str {
        match (&self.settings.api, status) {
            (Api::V1 { .. }, 401) => "check output.username and output.password_file",
            (Api::V1 { .. }, 403) => {
                "grant the user in output.username read permission on the database"
            }
            (Api::V2 { .. }, 401) => "check output.token_file",
            (Api::V2 { .. }, 403) => {
                "grant the token in output.token_file read permission on the bucket"
            }
            (Api::V2 { .. }, 404) => {
                "check the URL, output.api, output.org and output.bucket; the server must be InfluxDB 2 or VictoriaMetrics"
            }
            _ => {
                "check the URL and output.api; the server must be InfluxDB 1 or 2, or VictoriaMetrics"
            }
        }
    }

    fn error(&self, why: impl Into<String>, remedy: impl Into<String>) -> ReadError {
        let (place, why, remedy) = (self.settings.describe(), why.into(), remedy.into());
        ReadError { place, why, remedy }
    }
}

impl Points<'_> {
    /// Returns the next points, in no particular order, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<FoundPoint>>, ReadError> {
        let reader = self.reader;
        let misunderstood = |why: String| {
            let remedy = match &reader.settings.api {
                Api::V1 { .. } => "check the URL, output.api and output.database",
                _ => "check the URL, output.api and output.bucket",
            };
            reader.error(beginning(&why, ERROR_CHARS_MAX), remedy)
        };
        loop {
            if let Some(line) = self.lines.pop_front() {
                let points = self.answer.points(&line).map_err(misunderstood)?;
                if !points.is_empty() {
                    return Ok(Some(points));
                }
                continue;
            }
            if self.is_at_end {
                self.answer.end().map_err(misunderstood)?;
                return Ok(None);
            }
            let chunk = reader.within(self.response.chunk()).await?;
            self.is_at_end = chunk.is_none();
            for byte_line in
                chunk.as_deref().unwrap_or(b"\n").split_inclusive(|byte| *byte == b'\n')
            {
                self.rest.extend_from_slice(byte_line);
                if byte_line.ends_with(b"\n") {
                    self.lines.push_back(std::mem::take(&mut self.rest));
                }
            }
            if self.rest.len() > LINE_BYTES_MAX {
                return Err(misunderstood(
                    "a line of the response has more than 64 MiB".to_owned(),
                ));
            }
        }
    }
}

/// Returns a text in quotes, for Flux and for the selectors of `VictoriaMetrics`.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
