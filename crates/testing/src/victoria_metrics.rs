//! A real `VictoriaMetrics`, which speaks the v2 write API.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::http;
use crate::ports::Server;

/// A running `VictoriaMetrics` with nothing in it.
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

    /// Returns all data: for each series its labels (`__name__` is measurement and field), values and timestamps in
    /// milliseconds. Waits for the expected number of series, because writes become visible a little later.
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
