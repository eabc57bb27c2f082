//! Who may use the HTTP server: tokens and TLS.

use reqwest::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use testing::http::{answer, blocking, get};

use crate::prelude::*;

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
    let root = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
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
