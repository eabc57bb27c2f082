//! Who may use the HTTP server: tokens and TLS.

use std::io::{Read as _, Write as _};

use reqwest::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use reqwest::{Certificate, Identity};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};
use testing::http::{Answer, answer, blocking, get};

use crate::prelude::*;
use crate::queries::{PROBLEM, check_schema};
use crate::tls::Authority;

const TOKEN: &str = "0123456789abcdef";

#[test]
fn http_requires_a_token_if_there_is_a_file_of_them() {
    let mut node = Node::new("one", &[]);
    let file = node.config_path().with_file_name("tokens");
    fs::write(&file, format!("grafana {TOKEN}\n")).unwrap();
    node.set("http.tokens_file", file.to_str().unwrap());
    node.run();
    let with = |path: &str, value: &str| {
        answer(get(node.http(), path).header(AUTHORIZATION, value)).unwrap()
    };
    for path in ["/", "/metrics", "/api/v1/status", "/nowhere"] {
        let refused = node.get(path).unwrap();
        assert_eq!(refused.status, 401, "{path}");
        assert_eq!(refused.headers[WWW_AUTHENTICATE], "Basic realm=\"eds\"");
        assert!(refused.body.contains("http.tokens_file"), "{}", refused.body);
        assert_eq!(with(path, "Bearer 0123456789abcdee").status, 401, "{path}");
        let accepted = with(path, &format!("Bearer {TOKEN}")).status;
        assert_eq!(accepted, if path == "/nowhere" { 404 } else { 200 }, "{path}");
    }
    let basic = get(node.http(), "/").basic_auth("any", Some(TOKEN));
    assert_eq!(answer(basic).unwrap().status, 200);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(node.get(path).unwrap().status, 200, "{path}");
    }
    fs::write(&file, "grafana fedcba9876543210\n").unwrap();
    node.signal("HUP");
    eventually("the new token is accepted", SOON, || {
        let answer = with("/metrics", "Bearer fedcba9876543210");
        when(answer.status == 200, answer.body)
    });
    assert_eq!(with("/metrics", &format!("Bearer {TOKEN}")).status, 401);

    // Without tokens, the new address would be valid, but the server still has the old one.
    node.set("http.tokens_file", "");
    node.set("http.listen", "127.0.0.1:1");
    node.write_config();
    node.signal("HUP");
    node.wait_log("keys=\"http.listen\"");
    assert_eq!(node.get("/metrics").unwrap().status, 401);
}

#[test]
fn http_is_encrypted_if_there_is_a_certificate() {
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], &[]);
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let pem = certificate.cert.pem();
    for (key, name, text) in [
        ("http.cert_file", "cert.pem", &pem),
        ("http.key_file", "key.pem", &certificate.signing_key.serialize_pem()),
    ] {
        let file = relay.config_path().with_file_name(name);
        fs::write(&file, text).unwrap();
        relay.set(key, file.to_str().unwrap());
    }
    relay.launch();
    let root = Certificate::from_pem(pem.as_bytes()).unwrap();
    let client = blocking().tls_certs_only([root]).build().unwrap();
    let at = format!("https://{}", relay.http());
    eventually("the relay answers with TLS", SOON, || {
        let answer = client.get(format!("{at}/metrics")).send();
        let answer = answer.map_err(|error| error.to_string())?;
        when(answer.status() == 200, answer.status().to_string())
    });
    relay.get("/metrics").unwrap_err();
    for (address, code) in [(&at, 0), (&relay.http().to_string(), 1)] {
        let healthy = eds().args(["healthy", address]).output().unwrap();
        assert_eq!(healthy.status.code(), Some(code), "{healthy:?}");
    }
}

fn tls_client(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let (certificate, key) = authority.issue("client");
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let client =
        builder.with_root_certificates(roots).with_client_auth_cert(vec![certificate], key);
    Arc::new(client.unwrap())
}

/// Requests the metrics on a new connection, and returns whether its session was resumed.
fn handshake(client: &Arc<ClientConfig>, address: SocketAddr) -> Option<HandshakeKind> {
    let mut tls = ClientConnection::new(Arc::clone(client), address.ip().into()).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    tls.handshake_kind()
}

#[test]
fn http_requires_a_client_certificate_if_there_is_a_client_ca() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut node = Node::new("one", &[("log.level", "debug")]);
    let (certificate, key) = authority.issue("127.0.0.1");
    let directory = node.config_path().parent().unwrap().to_owned();
    let ca = directory.join("clients.pem");
    fs::copy(authority.ca(), &ca).unwrap();
    for (name, file) in
        [("cert_file", &*certificate), ("key_file", &key), ("client_ca_file", ca.to_str().unwrap())]
    {
        node.set(&format!("http.{name}"), file);
    }
    node.launch();
    let at = format!("https://{}", node.http());
    let root = Certificate::from_pem(&fs::read(authority.ca()).unwrap()).unwrap();
    // A new client for each request, so that no connection or session is used again.
    let ask = |client: Option<&Authority>, path: &str, token: &str| -> reqwest::Result<Answer> {
        let mut builder = blocking().tls_certs_only([root.clone()]);
        if let Some(authority) = client {
            let (certificate, key) = authority.issue("client");
            let pem = [certificate, key].map(|file| fs::read(file).unwrap()).concat();
            builder = builder.identity(Identity::from_pem(&pem).unwrap());
        }
        answer(builder.build()?.get(format!("{at}{path}")).bearer_auth(token))
    };
    let status = |client, path| ask(client, path, "").map(|answer| answer.status);
    eventually("the node answers", SOON, || status(Some(&authority), "/readyz"));

    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let described = &file["components"]["responses"]["403"]["content"][PROBLEM]["schema"];
    for path in ["/", "/metrics", "/api/v1/status"] {
        assert_eq!(status(Some(&authority), path).unwrap(), 200, "{path}");
        let refused = ask(None, path, "").unwrap();
        assert_eq!(
            (refused.status, &refused.headers["connection"]),
            (403, &"close".parse().unwrap())
        );
        assert!(refused.body.contains("http.client_ca_file"), "{}", refused.body);
        check_schema(&file, described, &serde_json::from_str(&refused.body).unwrap(), path);
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(status(None, path).unwrap(), 200, "{path}");
        status(Some(&stranger), path).unwrap_err();
    }
    node.wait_log("a TLS handshake failed error=invalid peer certificate");
    // A resumed session would not verify the certificate again.
    let client = tls_client(&authority);
    for _ in 0..2 {
        assert_eq!(handshake(&client, node.http()), Some(HandshakeKind::Full));
    }
    assert_eq!(eds().args(["healthy", &at]).output().unwrap().status.code(), Some(0));

    // With tokens, both are required.
    let tokens = directory.join("tokens");
    fs::write(&tokens, format!("grafana {TOKEN}\n")).unwrap();
    node.set("http.tokens_file", tokens.to_str().unwrap());
    node.write_config();
    node.signal("HUP");
    eventually("a token is required", SOON, || {
        let status = status(Some(&authority), "/metrics").unwrap();
        when(status == 401, status)
    });
    assert_eq!(ask(None, "/metrics", TOKEN).unwrap().status, 403);
    assert_eq!(ask(Some(&authority), "/metrics", TOKEN).unwrap().status, 200);

    // Nothing is reloaded from an invalid file, so the token stays valid too.
    fs::write(&ca, "").unwrap();
    fs::write(&tokens, "grafana fedcba9876543210\n").unwrap();
    node.signal("HUP");
    node.wait_log("nothing is reloaded");
    assert_eq!(ask(Some(&authority), "/metrics", TOKEN).unwrap().status, 200);
    fs::copy(stranger.ca(), &ca).unwrap();
    node.signal("HUP");
    eventually("the other CA is accepted", SOON, || {
        let answer = ask(Some(&stranger), "/metrics", "fedcba9876543210");
        let status = answer.map_err(|error| error.to_string())?.status;
        when(status == 200, status.to_string())
    });
    ask(Some(&authority), "/healthz", "").unwrap_err();
}
