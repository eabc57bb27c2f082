//! [`Answer`]: parses the lines of a response to a query.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::DateTime;
use serde::Deserialize;

use super::FoundPoint;
use crate::event::escape;

/// The number of columns before those of a row: annotation, result and table.
const COLUMNS_BEFORE: usize = 3;

/// The response of each query API, and what is known from its earlier lines.
#[derive(Debug)]
pub(super) enum Answer {
    /// InfluxDB 1: JSON objects, each with points of one series.
    InfluxQl { measurement: String, is_complete: bool },
    /// InfluxDB 2: CSV, in tables that begin with a header.
    Flux { header: Vec<String>, is_before_header: bool },
    /// `VictoriaMetrics`: JSON objects, each with all points of a series. The label with the database is not a tag.
    Exported { database: String },
}

#[derive(Deserialize)]
struct Results {
    #[serde(default)]
    results: Vec<Statement>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Statement {
    #[serde(default)]
    series: Vec<Table>,
    /// Whether further lines follow.
    #[serde(default)]
    partial: bool,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Table {
    name: String,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    values: Vec<(i64, f64)>,
}

#[derive(Deserialize)]
struct Exported {
    metric: BTreeMap<String, String>,
    values: Vec<f64>,
    timestamps: Vec<i64>,
}

impl Answer {
    pub(super) fn influxql(measurement: &str) -> Self {
        Self::InfluxQl { measurement: measurement.to_owned(), is_complete: false }
    }

    pub(super) const fn flux() -> Self {
        Self::Flux { header: Vec::new(), is_before_header: true }
    }

    pub(super) fn exported(database: &str) -> Self {
        Self::Exported { database: database.to_owned() }
    }

    /// Returns the points in the next line, or why there is something else.
    pub(super) fn points(&mut self, line: &[u8]) -> Result<Vec<FoundPoint>, String> {
        let line = std::str::from_utf8(line).map_err(|error| error.to_string())?;
        let line = line.trim_end_matches(['\r', '\n']);
        match self {
            Self::InfluxQl { .. } | Self::Exported { .. } if line.is_empty() => Ok(Vec::new()),
            Self::InfluxQl { measurement, is_complete } => {
                let Results { results, error } = json(line)?;
                let mut points = Vec::new();
                for Statement { series, partial, error } in results {
                    if let Some(error) = error {
                        return Err(error);
                    }
                    *is_complete = !partial;
                    for Table { name, tags, values } in series {
                        if name != *measurement {
                            return Err(format!("the response has {name} instead of points"));
                        }
                        let series = canonical(&tags);
                        points.extend(values.into_iter().map(|(nanos, value)| FoundPoint {
                            series: Arc::clone(&series),
                            nanos,
                            value,
                        }));
                    }
                }
                error.map_or(Ok(points), Err)
            }
            Self::Exported { database } => {
                let Exported { mut metric, values, timestamps } = json(line)?;
                metric.remove("__name__");
                if metric.get("db") == Some(database) {
                    metric.remove("db");
                }
                let series = canonical(&metric);
                let points = timestamps.into_iter().zip(values).map(|(millis, value)| {
                    let nanos = millis.saturating_mul(1_000_000);
                    FoundPoint { series: Arc::clone(&series), nanos, value }
                });
                Ok(points.collect())
            }
            Self::Flux { is_before_header, .. } if line.is_empty() => {
                *is_before_header = true;
                Ok(Vec::new())
            }
            Self::Flux { header, is_before_header } => {
                let row = columns(line)?;
                if std::mem::take(is_before_header) {
                    *header = row;
                    return Ok(Vec::new());
                }
                row_of(header, &row).map(|point| vec![point])
            }
        }
    }

    /// Returns an error if the response ended early.
    pub(super) fn end(&self) -> Result<(), String> {
        match self {
            Self::InfluxQl { is_complete: false, .. } => {
                Err("the response is incomplete".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn json<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| format!("not a list of points ({error}): {line}"))
}

/// Returns the point in a row of CSV.
fn row_of(header: &[String], row: &[String]) -> Result<FoundPoint, String> {
    let (mut tags, mut nanos, mut value) = (BTreeMap::new(), None, None);
    for (name, text) in header.iter().zip(row).skip(COLUMNS_BEFORE) {
        match &**name {
            "_time" => {
                nanos = DateTime::parse_from_rfc3339(text)
                    .ok()
                    .and_then(|time| time.timestamp_nanos_opt());
            }
            "_value" => value = text.parse().ok(),
            "_start" | "_stop" | "_field" | "_measurement" => {}
            _ => {
                tags.insert(name.clone(), text.clone());
            }
        }
    }
    match (nanos, value) {
        (Some(nanos), Some(value)) => Ok(FoundPoint { series: canonical(&tags), nanos, value }),
        // The server reports an error in the middle of a response as a table with its message.
        _ => Err(row.join(" ").trim().to_owned()),
    }
}

/// Splits a line of CSV.
fn columns(line: &str) -> Result<Vec<String>, String> {
    let mut columns = vec![String::new()];
    let (mut is_quoted, mut before) = (false, None);
    for character in line.chars() {
        match (character, columns.last_mut()) {
            (',', _) if !is_quoted => columns.push(String::new()),
            ('"', Some(column)) => {
                is_quoted = !is_quoted;
                // Inside quotes, a quote is doubled.
                if is_quoted && before == Some('"') {
                    column.push('"');
                }
            }
            (character, Some(column)) => column.push(character),
            (_, None) => {}
        }
        before = Some(character);
    }
    if is_quoted { Err(format!("a quote is not closed: {line}")) } else { Ok(columns) }
}

/// Returns the series with these tags. A tag that only other series have is returned with an empty value.
fn canonical(tags: &BTreeMap<String, String>) -> Arc<str> {
    let there = tags.iter().filter(|(_, value)| !value.is_empty());
    let mut tags: Vec<_> = there.map(|(key, value)| [escape(key), escape(value)]).collect();
    tags.sort_unstable();
    let tags: Vec<_> = tags.iter().map(|tag| tag.join(&b'=')).collect();
    String::from_utf8_lossy(&tags.join(&b',')).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut answer: Answer, text: &str) -> Result<Vec<(String, i64, f64)>, String> {
        let mut points = Vec::new();
        for line in text.split_inclusive('\n') {
            points.extend(answer.points(line.as_bytes())?);
        }
        answer.end()?;
        Ok(points
            .into_iter()
            .map(|point| (point.series.to_string(), point.nanos, point.value))
            .collect())
    }

    #[test]
    fn points_of_influxdb_1_are_read_from_all_chunks() {
        let text = r#"{"results":[{"statement_id":0,"series":[{"name":"m","tags":{"a":"","b":"x y"},"columns":["time","value"],"values":[[60,5]]}],"partial":true}]}
{"results":[{"statement_id":0,"series":[{"name":"m","columns":["time","value"],"values":[[120,1.5],[180,0]]}]}]}
"#;
        let points = [(r"b=x\ y", 60, 5.0), ("", 120, 1.5), ("", 180, 0.0)];
        let expected = points.map(|(series, nanos, value)| (series.to_owned(), nanos, value));
        assert_eq!(read(Answer::influxql("m"), text).unwrap(), expected);
        assert_eq!(
            read(Answer::influxql("m"), "{\"results\":[{\"statement_id\":0}]}\n").unwrap(),
            []
        );
    }

    #[test]
    fn what_is_not_a_complete_answer_is_an_error() {
        let first = r#"{"results":[{"series":[{"name":"m","values":[[60,5]]}],"partial":true}]}"#;
        for (text, error) in [
            ("", "incomplete"),
            (first, "incomplete"),
            (r#"{"results":[{"error":"database not found: x"}]}"#, "not found: x"),
            (r#"{"error":"timeout"}"#, "timeout"),
            (r#"{"results":[{"series":[{"name":"n","values":[]}]}]}"#, "n instead of points"),
            (r#"{"results":[{"series":[{"name":"databases","values":[["x"]]}]}]}"#, "not a list"),
            ("<html>", "not a list"),
        ] {
            let found = read(Answer::influxql("m"), text).unwrap_err();
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn rows_of_flux_are_read_from_all_tables() {
        let text = ",result,table,_start,_stop,_time,_value,_field,_measurement,b,a\r\n\
                    ,_result,0,x,y,1970-01-01T00:01:00Z,5,value,m,\"x \"\"y\"\", z\",1\r\n\
                    \r\n\
                    ,result,table,_time,_value,table\r\n\
                    ,_result,1,1970-01-01T00:02:00Z,6,\r\n\r\n";
        let points = [(r#"a=1,b=x\ "y"\,\ z"#, 60_000_000_000, 5.0), ("", 120_000_000_000, 6.0)];
        let expected = points.map(|(series, nanos, value)| (series.to_owned(), nanos, value));
        assert_eq!(read(Answer::flux(), text).unwrap(), expected);
        assert_eq!(read(Answer::flux(), "\r\n").unwrap(), []);
        let error = read(Answer::flux(), ",error,reference\r\n,out of memory,897\r\n").unwrap_err();
        assert_eq!(error, "out of memory 897");
    }

    #[test]
    fn exported_points_have_no_database() {
        let text = r#"{"metric":{"__name__":"m_value","db":"eds","c":"1"},"values":[3,4],"timestamps":[60000,120000]}"#;
        let points = [("c=1", 60_000_000_000, 3.0), ("c=1", 120_000_000_000, 4.0)];
        let expected = points.map(|(series, nanos, value)| (series.to_owned(), nanos, value));
        assert_eq!(read(Answer::exported("eds"), text).unwrap(), expected);
    }
}
