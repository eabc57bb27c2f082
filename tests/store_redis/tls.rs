//! TLS: the server is always verified, the client if the server requires it.

use event_data_service::diagnosis::Diagnosis;
use event_data_service::store::redis::Settings;
use event_data_service::store::{Store, StoreError};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis_link::{Address, Endpoint, Tls};
use testing::prelude::*;

use super::site::{at, do_everything, store};

const HOST: &str = "127.0.0.1";

pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        // A distinct name: otherwise the certificate would be considered self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Returns a certificate for this host and its key in PEM.
    fn certify(&self, host: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

pub(super) struct TlsServer {
    _server: RedisServer,
    _directory: TempDir,
    pub(super) port: u16,
}

impl TlsServer {
    pub(super) fn start(authority: &Authority, host: &str, auth_clients: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let file = |name: &str, text: &str| -> String {
            let path: PathBuf = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (certificate, key) = authority.certify(host);
        let port = free_port();
        let server = RedisServer::start(&[
            "--tls-port",
            &port.to_string(),
            "--tls-ca-cert-file",
            &file("ca.pem", &authority.pem),
            "--tls-cert-file",
            &file("server.pem", &certificate),
            "--tls-key-file",
            &file("server.key", &key),
            "--tls-auth-clients",
            auth_clients,
        ]);
        Self { _server: server, _directory: directory, port }
    }

    fn settings(&self, tls: Tls) -> Settings {
        encrypted(self.port, tls)
    }
}

fn encrypted(port: u16, tls: Tls) -> Settings {
    let mut settings = at(Address::Server(Endpoint::Tcp(HOST.to_owned(), port)));
    settings.redis.tls = Some(tls);
    settings
}

fn trusting(authority: &Authority) -> Tls {
    Tls { ca: Some(authority.pem.clone().into_bytes()), client: None }
}

#[track_caller]
fn assert_not_trusted(result: Result<(), StoreError>, words: &[&str]) {
    let Err(StoreError::Refused(Diagnosis { why: text, .. })) = result else {
        panic!("{result:?}");
    };
    assert!(words.iter().any(|word| text.contains(word)), "{text}");
}

#[tokio::test]
async fn by_tls_to_a_server_of_the_trusted_authority() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, HOST, "no");
    do_everything(&store(&server.settings(trusting(&authority)))).await.unwrap();
}

#[tokio::test]
async fn servers_that_cannot_prove_who_they_are_are_refused() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, HOST, "no");
    let stranger = trusting(&Authority::new());
    let unknown = ["UnknownIssuer", "BadSignature"];
    assert_not_trusted(store(&server.settings(stranger)).check().await, &unknown);
    let system = Tls::default();
    assert_not_trusted(store(&server.settings(system)).check().await, &unknown);

    let elsewhere = TlsServer::start(&authority, "redis.example", "no");
    let check = store(&elsewhere.settings(trusting(&authority))).check().await;
    assert_not_trusted(check, &["NotValidForName", "not valid for name"]);
}

#[tokio::test]
async fn a_client_certificate_is_given_when_the_server_wants_one() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, HOST, "yes");
    let with = |(certificate, key): (String, String)| Tls {
        client: Some((certificate.into_bytes(), key.into_bytes())),
        ..trusting(&authority)
    };
    let known = with(authority.certify("node"));
    do_everything(&store(&server.settings(known))).await.unwrap();

    let unknown = with(Authority::new().certify("node"));
    store(&server.settings(unknown)).check().await.unwrap_err();
    store(&server.settings(trusting(&authority))).check().await.unwrap_err();
}

#[test]
fn certificates_that_are_none_are_refused_at_once() {
    let nonsense = Tls { ca: Some(b"nonsense".to_vec()), client: None };
    let refused = event_data_service::store::redis::RedisStore::new(&encrypted(1, nonsense));
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("or its certificates cannot be used"), "{words}");
}
