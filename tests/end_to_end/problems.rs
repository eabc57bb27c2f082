//! A malformed or unknown request gets a problem document that describes the mistake.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::prelude::*;
use crate::queries::{PROBLEM, check_schema};

/// Sends these bytes to a node and returns the lower-case head and the body of the response.
fn exchange(node: &Node, request: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(node.http()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a complete response");
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn invalid_queries_get_the_documented_problem() {
    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let described = file["components"]["responses"].as_object().unwrap();
    let node = Node::start("one", &[]);
    let directory = TempDir::new().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, "grafana 0123456789abcdef\n").unwrap();
    let mut guarded = Node::new("guarded", &[("http.tokens_file", tokens.to_str().unwrap())]);
    guarded.run();
    let get = |path: &str| format!("GET {path} HTTP/1.0\r\n\r\n");
    let long = |bytes: usize| "x".repeat(bytes);
    let mut provoked = BTreeSet::new();
    for (request, status, word) in [
        (get("/page"), 404, "/healthz"),
        (get("/metrics/"), 404, "/metrics"),
        (get("/api/v1/live"), 401, "http.tokens_file"),
        (get("/api/v1/minute"), 404, "minutes"),
        (get("/api/v1/top/1?n=3"), 404, "top"),
        ("POST /healthz HTTP/1.0\r\n\r\n".to_owned(), 405, "GET"),
        ("DELETE /metrics HTTP/1.0\r\n\r\n".to_owned(), 405, "HEAD"),
        ("PUT /api/v1/top?n=3 HTTP/1.0\r\n\r\n".to_owned(), 405, "GET"),
        (get(&format!("/{}", long(8192))), 414, "8193 bytes"),
        (get(&format!("/api/v1/live?{}", long(9000))), 414, "8192"),
        (get(&format!("/{}", long(20_000))), 431, "16384"),
        (format!("GET /readyz HTTP/1.0\r\n{}\r\n", "a: b\r\n".repeat(101)), 431, "headers"),
        (format!("GET /readyz HTTP/1.1\r\nx: {}\r\n\r\n", long(20_000)), 431, "headers"),
        ("what is this\r\n\r\n".to_owned(), 400, "RFC 9112"),
        ("GET /healthz HTTP/1.1\r\nHost\r\n\r\n".to_owned(), 400, "HTTP/1.1"),
        ("GET /healthz HTTP/3.1\r\n\r\n".to_owned(), 400, "HTTP/1.1"),
        ("GET \\ HTTP/1.1\r\n\r\n".to_owned(), 400, "HTTP/1.1"),
        ("GET /healthz HTTP/1.1\r\n\r\n".to_owned(), 400, "no Host header"),
        ("GET /healthz HTTP/1.1\r\nHost: rebound.example\r\n\r\n".to_owned(), 421, "http.hosts"),
        ("GET /healthz HTTP/1.1\r\nx: y\r\n".to_owned(), 408, "in time"),
        (
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
            505,
            "HTTP/2 is not supported",
        ),
    ] {
        let shown = &request[..request.len().min(60)];
        let (head, body) =
            exchange(if status == 401 { &guarded } else { &node }, request.as_bytes());
        let code = head.split(' ').nth(1);
        assert_eq!(code, Some(&*status.to_string()), "{shown:?}: {head}");
        let kind = format!("content-type: {PROBLEM}");
        assert!(head.contains(&kind), "{shown:?}: {head}");
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{shown:?}: {head}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let described = &described[&status.to_string()];
        let schema = &described["content"][PROBLEM]["schema"];
        check_schema(&file, schema, &body, shown);
        assert_eq!(body["status"], status);
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(word), "{shown:?}: {detail}");
        let allowed = head.contains("\r\nallow: get,head");
        assert_eq!(allowed, described["headers"].get("Allow").is_some());
        provoked.insert(status.to_string());
    }
    // With TLS only; see `http_access.rs`.
    provoked.insert("403".to_owned());
    assert_eq!(provoked, described.keys().cloned().collect());
    for (path, question) in file["paths"].as_object().unwrap() {
        for status in ["401", "403", "405", "414", "421", "431"] {
            let reference = &question["get"]["responses"][status]["$ref"];
            assert_eq!(*reference, format!("#/components/responses/{status}"), "{path}");
        }
    }
    // With two pipelined requests, the response to the first is the same as without the second.
    let two = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nwhat is this\r\n\r\n";
    let (head, body) = exchange(&node, two);
    let is_ok = head.starts_with("http/1.1 200 ") && body.starts_with("ok\n");
    assert!(is_ok, "{head}\n{body}");
    assert_eq!(node.get("/healthz").unwrap().status, 200);
}

/// A web page whose host name is rebound to this host cannot read responses of a node or relay.
#[test]
fn request_with_another_host_is_refused() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut node = Node::new("one", &[]);
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], &[]);
    for (program, paths) in [
        (&mut node, &["/", "/healthz", "/metrics", "/api/v1/status"][..]),
        (&mut relay, &["/healthz", "/metrics"]),
    ] {
        program.set_list("http.hosts", &["eds.example.org"]);
        program.run();
        for path in paths {
            for (host, status) in [
                ("rebound.example", 421),
                ("rebound.example:8095", 421),
                ("localhost:8095", 200),
                ("10.1.2.3:8095", 200),
                ("[::1]:8095", 200),
                ("eds.example.org:8095", 200),
                (name.trim(), 200),
            ] {
                let request =
                    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                let (head, body) = exchange(program, request.as_bytes());
                let code = head.split(' ').nth(1);
                assert_eq!(code, Some(&*status.to_string()), "{path} of {host}: {body}");
                assert!(status == 200 || body.contains("http.hosts"), "{body}");
            }
        }
    }
}

/// A client may shut down its sending side after its request, as `nc -N` does.
#[test]
fn half_closed_request_is_answered() {
    let site = Site::start();
    let node = site.start_node("one", &[]);
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], &[]);
    relay.run();
    for (program, path) in [
        (&node, "/healthz"),
        (&node, "/readyz"),
        (&node, "/api/v1/live"),
        (&relay, "/healthz"),
        (&relay, "/readyz"),
    ] {
        let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let post = "POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc";
        for (request, answers) in
            [(&*get, 1), (&get.repeat(3), 3), (post, 1), (&get[..get.len() - 2], 1)]
        {
            let mut stream = TcpStream::connect(program.http()).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let count = answer.matches("HTTP/1.1 ").count();
            assert_eq!(count, answers, "{request:?}: {answer}");
        }
    }
}
