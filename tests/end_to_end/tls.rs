//! TLS to Redis and InfluxDB: which peers are trusted, and what is logged otherwise.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use testing::tls::TlsForwarder;

use crate::prelude::*;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        // Needs its own name: a certificate with the same subject and issuer would look self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), directory }
    }

    fn file(&self, name: &str) -> String {
        let path: PathBuf = self.directory.path().join(name);
        path.display().to_string()
    }

    pub(crate) fn ca(&self) -> String {
        self.file("ca.pem")
    }

    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        fs::write(&files.0, certificate.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}

/// Starts a Redis server with TLS, and with a plain port for the test. Returns the server and its TLS URL.
fn redis_with_tls(authority: &Authority, name: &str, clients: &str) -> (RedisServer, String) {
    let (certificate, key) = authority.issue(name);
    let port = free_port().to_string();
    let server = RedisServer::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &authority.ca(),
        "--tls-auth-clients",
        clients,
    ]);
    (server, format!("rediss://127.0.0.1:{port}"))
}

/// Asserts that the node logs what to fix, whether it sees the TLS alert of the server or only a closed connection.
#[track_caller]
fn assert_logged(keys: &[(&str, &str)]) {
    let mut node = Node::new("warned", keys);
    node.launch();
    eventually("the log says what to fix", SOON, || {
        let log = node.log();
        let logged = log.contains("check store.cert_file and store.key_file");
        when(logged, log)
    });
}

#[test]
fn all_connections_use_tls_with_certificates_on_both_sides_of_redis() {
    let authority = Authority::new();
    let (redis, url) = redis_with_tls(&authority, "127.0.0.1", "yes");
    let site = Site::with_redis(redis);
    let (certificate, key) = authority.issue("eds");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let influxdb = site.writes.address().port();
    let front = runtime.block_on(TlsForwarder::start(influxdb, &["127.0.0.1"]));
    let front_ca = front.ca_file().display().to_string();
    let node = site.start_node(
        "one",
        &[
            ("store.url", &url),
            ("store.ca_file", &authority.ca()),
            ("store.cert_file", &certificate),
            ("store.key_file", &key),
            ("output.url", &front.url()),
            ("output.ca_file", &front_ca),
        ],
    );
    let mut sender = Sender::paced_by(&node);
    let load = load(0..1, 3000, 20, 100);
    for datagram in load.datagrams() {
        sender.send(&datagram);
    }
    site.wait_exact(&sender.expected.points(), SOON);
    assert!(!node.log().contains("not encrypted"), "{}", node.log());
}

#[test]
fn redis_with_another_authority_or_name_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_redis, url) = redis_with_tls(&authority, "127.0.0.1", "no");
    let (_named, url_of_named) = redis_with_tls(&authority, "redis.example", "no");
    let (ca, ca_of_stranger) = (authority.ca(), stranger.ca());
    for keys in [
        &[("store.url", url.as_str()), ("store.ca_file", &ca_of_stranger)][..],
        &[("store.url", &url)],
        &[("store.url", &url_of_named), ("store.ca_file", &ca)],
    ] {
        Node::new("refused", keys).assert_refused(&["certificate", "store.ca_file"]);
    }
}

#[test]
fn redis_that_requires_a_certificate_gets_it_or_a_remedy_is_printed() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_redis, url) = redis_with_tls(&authority, "127.0.0.1", "yes");
    let ca = authority.ca();
    let keys = [("store.url", url.as_str()), ("store.ca_file", &ca)];
    assert_logged(&keys);
    let (certificate, key) = stranger.issue("eds");
    let own = [("store.cert_file", certificate.as_str()), ("store.key_file", &key)];
    assert_logged(&[&keys[..], &own].concat());
}

#[test]
fn influxdb_with_another_authority_gets_no_point() {
    let site = Site::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let influxdb = site.writes.address().port();
    let front = runtime.block_on(TlsForwarder::start(influxdb, &["127.0.0.1"]));
    let stranger = Authority::new();
    let mut node =
        site.node("one", &[("output.url", &front.url()), ("output.ca_file", &stranger.ca())]);
    node.run();
    let mut sender = Sender::paced_by(&node);
    let line = format!("event_type=a,product=b value=ann {SEED_MINUTE_NS}");
    sender.send(line.as_bytes());
    eventually("the log says what to fix", SOON, || {
        let log = node.log();
        let logged =
            log.lines().any(|line| line.contains("ERROR") && line.contains("output.ca_file"));
        when(logged, log)
    });
    assert!(site.writes.writes().is_empty());
    assert!(node.terminate().success());
    node.set("output.ca_file", &front.ca_file().display().to_string());
    node.run();
    site.wait_exact(&sender.expected.points(), SOON);
}
