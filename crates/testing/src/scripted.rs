//! An HTTP server whose valid and invalid responses are scripted by the test.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http::decoded;

/// A request as received.
#[derive(Debug, Clone)]
pub struct Request {
    /// The request line and headers.
    pub head: String,
    pub body: String,
}

/// How the server responds to a request.
#[derive(Debug, Clone)]
pub enum Deed {
    /// Send a response with this status, these header lines and this body.
    Answer(u16, &'static str, &'static str),
    /// Send a response with this status and a body that is sent one byte at a time and never ends.
    Trickle(u16),
    /// Send no response.
    Silence,
    /// Close the connection.
    Hangup,
}

impl Deed {
    pub fn status(status: u16) -> Self {
        Self::Answer(status, "", "")
    }
}

#[derive(Debug)]
pub struct Scripted {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Scripted {
    pub async fn start(script: impl Fn(&Request) -> Deed + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let script = Arc::new(script);
        let accepting = tokio::spawn({
            let (requests, connections) = (Arc::clone(&requests), Arc::clone(&connections));
            async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::Relaxed);
                    let (requests, script) = (Arc::clone(&requests), Arc::clone(&script));
                    tokio::spawn(async move {
                        while let Some(request) = read_request(&mut stream).await {
                            requests.lock().unwrap().push(request.clone());
                            if !act(&mut stream, script(&request)).await {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Self { port, requests, connections, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads a request. Returns None if the client has closed the connection.
async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    while bytes.len() < head_end + length.unwrap_or(0) {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8_lossy(&decoded(&head, &bytes[head_end..]).unwrap()).into_owned();
    Some(Request { head, body })
}

/// Responds to a request, and returns whether the connection stays open.
async fn act(stream: &mut TcpStream, deed: Deed) -> bool {
    match deed {
        Deed::Answer(status, headers, body) => {
            // A response with status 204 has no body, and therefore no length.
            let length = if status == 204 {
                String::new()
            } else {
                format!("content-length: {}\r\n", body.len())
            };
            let answer = format!("HTTP/1.1 {status} Scripted\r\n{headers}{length}\r\n{body}");
            stream.write_all(answer.as_bytes()).await.is_ok()
        }
        Deed::Trickle(status) => {
            let head = format!("HTTP/1.1 {status} Scripted\r\ncontent-length: 1000000\r\n\r\n");
            let mut going_on = stream.write_all(head.as_bytes()).await.is_ok();
            while going_on {
                tokio::time::sleep(Duration::from_millis(20)).await;
                going_on = stream.write_all(b"x").await.is_ok();
            }
            false
        }
        Deed::Silence => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            false
        }
        Deed::Hangup => false,
    }
}
