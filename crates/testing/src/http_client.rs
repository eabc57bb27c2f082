//! The smallest HTTP client that a test needs: HTTP/1.0, so that an answer ends where the connection ends and is
//! never chunked or compressed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer of an HTTP server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The lines of the head, in lower case.
    pub head: String,
    pub body: String,
}

/// `GET path`.
pub fn get(server: SocketAddr, path: &str) -> io::Result<Answer> {
    request(server, "GET", path, b"")
}

/// `POST path` with this body.
pub fn post(server: SocketAddr, path: &str, body: &[u8]) -> io::Result<Answer> {
    request(server, "POST", path, body)
}

fn request(server: SocketAddr, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {server}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    exchange(server, &[head.as_bytes(), body].concat())
}

/// What a server answers to these bytes, once it has closed the connection.
pub fn exchange(server: SocketAddr, request: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| {
        io::Error::other(format!(
            "not an answer: {:?}",
            String::from_utf8_lossy(&answer)
        ))
    })
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let head_end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = String::from_utf8_lossy(&answer[head_end + 4..]).into_owned();
    let head = head.to_ascii_lowercase();
    Some(Answer { status, head, body })
}

/// The text as one value of a query string.
pub fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;

    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
