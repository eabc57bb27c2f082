//! Runs a real Prometheus server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use crate::eventually::{SOON, eventually, when};
use crate::ports::Server;

/// A running Prometheus server, which starts without data.
#[derive(Debug)]
pub struct Prometheus {
    server: Server,
}

impl Prometheus {
    /// Starts a server with this configuration in YAML and these further arguments.
    pub fn start(config: &str, arguments: &[&str]) -> Self {
        let server = Server::start("prometheus", |port, directory| {
            let file = directory.join("prometheus.yml");
            std::fs::write(&file, config).unwrap();
            let mut command = Command::new("prometheus");
            command
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
                .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                .args(arguments);
            command
        });
        let server = Self { server };
        // Until it is ready, the server answers 503.
        eventually("Prometheus is ready", SOON, || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
            stream.write_all(b"GET /-/ready HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            when(answer.starts_with("HTTP/1.0 200"), answer)
        });
        server
    }

    /// Starts a server that accepts remote write, and points of the last 20 years in any order.
    pub fn receiver() -> Self {
        let config = "storage: { tsdb: { out_of_order_time_window: 20y } }";
        Self::start(config, &["--web.enable-remote-write-receiver"])
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// Returns the URL for remote write.
    pub fn write_url(&self) -> String {
        format!("http://127.0.0.1:{}/api/v1/write", self.server.port)
    }
}
