//! A TLS proxy in front of a server without TLS, with a certificate that is created for the test.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Accepts TLS connections on 127.0.0.1, and forwards their decrypted bytes to another port.
#[derive(Debug)]
pub struct TlsForwarder {
    port: u16,
    ca_file: PathBuf,
    _directory: TempDir,
    accepting: JoinHandle<()>,
}

impl TlsForwarder {
    /// Starts a proxy to this port, with a certificate for these names.
    pub async fn start(to_port: u16, names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ca_file = directory.path().join("ca.pem");
        std::fs::write(&ca_file, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate ends the handshake, which some tests expect.
                    let Ok(mut client) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut server =
                        TcpStream::connect((Ipv4Addr::LOCALHOST, to_port)).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, ca_file, _directory: directory, accepting }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn ca_file(&self) -> &Path {
        &self.ca_file
    }
}

impl Drop for TlsForwarder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
