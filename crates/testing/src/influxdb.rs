//! Runs real InfluxDB servers, of version 1.x or 2.x.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use serde_json::Value;

use crate::http;
use crate::ports::Server;

pub const ADMIN: &str = "admin";
pub const ADMIN_PASSWORD: &str = "correct horse";

/// A running InfluxDB 1.x server, which starts without data.
#[derive(Debug)]
pub struct InfluxServer {
    server: Server,
    auth: bool,
}

impl InfluxServer {
    /// Starts a server without authentication.
    pub fn start() -> Self {
        Self::start_with(false, 0, 0, 0)
    }

    /// Starts a server with authentication and the user [`ADMIN`].
    pub async fn start_with_auth() -> Self {
        let server = Self::start_with(true, 0, 0, 0);
        let create =
            format!("CREATE USER {ADMIN} WITH PASSWORD '{ADMIN_PASSWORD}' WITH ALL PRIVILEGES");
        server.query("", &create).await;
        server
    }

    /// Starts a server that rejects bodies of more than this many bytes.
    pub fn start_with_body_limit(bytes_max: usize) -> Self {
        Self::start_with(false, bytes_max, 0, 0)
    }

    /// Starts a server that rejects points if a tag would have more than this many values.
    pub fn start_with_tag_limit(values_max: usize) -> Self {
        Self::start_with(false, 0, values_max, 0)
    }

    /// Starts a server that rejects points if a database would have more than this many series.
    pub fn start_with_series_limit(series_max: usize) -> Self {
        Self::start_with(false, 0, 0, series_max)
    }

    /// Starts a server with these limits, where 0 means no limit.
    fn start_with(
        auth: bool,
        body_bytes_max: usize,
        values_per_tag_max: usize,
        series_max: usize,
    ) -> Self {
        let server = Server::start("influxd", |port, directory| {
            let config = directory.join("influxdb.toml");
            let directory = directory.display();
            let toml = format!(
                "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n\
                 [meta]\ndir = \"{directory}/meta\"\n\
                 [data]\ndir = \"{directory}/data\"\nwal-dir = \"{directory}/wal\"\nmax-values-per-tag = {values_per_tag_max}\nmax-series-per-database = {series_max}\n\
                 [monitor]\nstore-enabled = false\n\
                 [http]\nbind-address = \"127.0.0.1:{port}\"\nauth-enabled = {auth}\nmax-body-size = {body_bytes_max}\nlog-enabled = false\n"
            );
            fs::write(&config, toml).unwrap();
            let mut command = Command::new("influxd");
            command.arg("run").arg("-config").arg(config);
            command
        });
        Self { server, auth }
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    /// Runs an `InfluxQL` query, as the admin if the server requires authentication. Returns the series, with times in
    /// nanoseconds.
    pub async fn query(&self, database: &str, influxql: &str) -> Vec<Value> {
        let query = [("db", database), ("epoch", "ns"), ("q", influxql)];
        let mut request = http::client().post(format!("{}/query", self.url())).query(&query);
        if self.auth {
            request = request.basic_auth(ADMIN, Some(ADMIN_PASSWORD));
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{influxql}: {status} {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        let result = &answer["results"][0];
        assert!(result.get("error").is_none(), "{influxql}: {text}");
        result["series"].as_array().cloned().unwrap_or_default()
    }

    /// Writes lines, like any other client. Panics unless all of them are accepted.
    pub async fn write(&self, database: &str, lines: impl Into<String>) {
        let query = [("db", database), ("precision", "ns")];
        let request = http::client().post(format!("{}/write", self.url())).query(&query);
        let response = request.body(lines.into()).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 204);
    }
}

/// The API token for [`InfluxServer2`].
pub const TOKEN: &str = "token-of-a-test";

/// A running InfluxDB 2 server with an empty bucket `eds` in the organization `eds`. The environment variable
/// `EDS_TEST_INFLUXDB2` contains the path of the program.
#[derive(Debug)]
pub struct InfluxServer2(Server);

impl InfluxServer2 {
    pub fn start() -> Self {
        let program = std::env::var("EDS_TEST_INFLUXDB2");
        let program = program.expect("EDS_TEST_INFLUXDB2 is the path to influxd 2");
        let server = Server::start("InfluxDB 2", |port, directory| {
            let mut command = Command::new(&program);
            let place = |name: &str| directory.join(name);
            command.arg("--reporting-disabled");
            command.args(["--http-bind-address", &format!("127.0.0.1:{port}")]);
            command.arg("--bolt-path").arg(place("bolt"));
            command.arg("--engine-path").arg(place("engine"));
            command.arg("--sqlite-path").arg(place("sqlite"));
            command
        });
        let server = Self(server);
        let user = serde_json::json!({
            "username": "admin", "password": ADMIN_PASSWORD, "org": "eds", "bucket": "eds", "token": TOKEN
        });
        let setup = http::post(server.address(), "/api/v2/setup").body(user.to_string());
        let done = http::answer(setup).unwrap();
        assert_eq!(done.status, 201, "{}", done.body);
        server
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.0.port))
    }

    /// Runs a Flux query, and returns the response as CSV.
    pub fn query(&self, flux: &str) -> String {
        let request = http::post(self.address(), "/api/v2/query").query(&[("org", "eds")]);
        let request = request.header("Authorization", format!("Token {TOKEN}"));
        let request = request.header("Content-Type", "application/vnd.flux");
        let answer = http::answer(request.body(flux.to_owned())).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }
}
