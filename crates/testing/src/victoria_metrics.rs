//! Runs a real `VictoriaMetrics` server, which supports the write API of InfluxDB 2.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::http;
use crate::ports::Server;

/// A running `VictoriaMetrics` server, which starts without data.
#[derive(Debug)]
pub struct VictoriaMetrics {
    server: Server,
}

impl VictoriaMetrics {
    pub fn start() -> Self {
        let server = Server::start("victoria-metrics", |port, directory| {
            let mut command = Command::new("victoria-metrics");
            command
                .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
                .arg(format!("-storageDataPath={}", directory.join("data").display()))
                .arg("-retentionPeriod=100y");
            command
        });
        Self { server }
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    /// Returns the labels, values and timestamps (in milliseconds) of all series. The label `__name__` consists of the
    /// measurement and the field. Waits for the expected number of series, because writes do not become visible immediately.
    pub async fn export(&self, series: usize) -> Vec<Value> {
        let mut text = String::new();
        for _ in 0..100 {
            self.get("/internal/force_flush").await;
            text = self.get("/api/v1/export?match[]={__name__!=\"\"}").await;
            if text.lines().count() >= series {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn get(&self, path: &str) -> String {
        let response = http::client().get(format!("{}{path}", self.url())).send().await.unwrap();
        response.text().await.unwrap()
    }
}
