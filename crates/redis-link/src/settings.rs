//! Where Redis is and how to reach it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisResult, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncRead, AsyncWrite};

/// After how long an idle connection is probed, and how far apart the probes are.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where Redis is and how to reach it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where Redis listens.
    pub address: Address,
    /// Whom to trust, and who this process is; `None`: in the clear, as a Unix socket always is.
    pub tls: Option<Tls>,
    /// The number of the database.
    pub database: u32,
    /// Who this process is to Redis.
    pub credentials: Credentials,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// What connections are made of in place of the network: for tests that are the server. `None`: nothing.
    pub dial: Option<Dial>,
}

/// Makes the stream of each connection.
#[derive(Clone)]
pub struct Dial(pub Arc<dyn Fn() -> Box<dyn Stream> + Send + Sync>);

/// What a connection reads and writes.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dial")
    }
}

impl Dial {
    pub(crate) async fn connect(
        &self,
        client: &Client,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let info = client.get_connection_info().redis_settings();
        let connected = MultiplexedConnection::new_with_config(info, (self.0)(), config);
        let (connection, driver) = connected.await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// Where Redis listens. It displays as what a message is about, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// One server.
    Tcp {
        /// Name or IP address, as the server's certificate has it.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
    /// A Redis Cluster.
    Cluster {
        /// Some of its nodes, by which all are found.
        nodes: Vec<(String, u16)>,
    },
    /// A server with replicas, watched by Redis Sentinel.
    Sentinel {
        /// The sentinels. They are asked without a password.
        sentinels: Vec<(String, u16)>,
        /// The name that they know the master by.
        name: String,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |nodes: &[(String, u16)]| {
            let names = nodes.iter().map(|(host, port)| format!("{host}:{port}"));
            names.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Tcp { host, port } => {
                write!(f, "Redis at {}", Endpoint::Tcp(host.clone(), *port))
            }
            Self::Unix(path) => write!(f, "Redis at {}", path.display()),
            Self::Cluster { nodes } => write!(f, "the Redis Cluster of {}", list(nodes)),
            Self::Sentinel { sentinels, name } => {
                let sentinels = list(sentinels);
                write!(f, "the Redis that the sentinels {sentinels} call {name}")
            }
        }
    }
}

/// Where one server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Name or IP address, and port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How long to wait for Redis.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection, name resolution and TLS included.
    pub connect: Duration,
    /// For each answer.
    pub response: Duration,
}

impl Default for Timeouts {
    /// 2 s each.
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), response: Duration::from_secs(2) }
    }
}

/// A Redis ACL user.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `None`: the default user.
    pub username: Option<String>,
    /// `None`: no password.
    pub password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("password", &self.password.is_some())
            .finish()
    }
}

/// Certificates for TLS, in PEM. Servers are always verified.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// This node's certificate and key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}

/// Settings that lead to no Redis.
#[derive(Debug, thiserror::Error)]
#[error("the address of Redis or its certificates cannot be used: {0}")]
pub struct SettingsError(#[from] redis::RedisError);

impl Settings {
    /// The first database at this address in the clear, as the default user, with the default time-outs.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            tls: None,
            database: 0,
            credentials: Credentials::default(),
            timeouts: Timeouts::default(),
            dial: None,
        }
    }

    /// A client for a server that keeps data. Does not connect.
    pub(crate) fn client(&self, endpoint: &Endpoint) -> Result<Client, SettingsError> {
        let mut server = RedisConnectionInfo::default()
            // It would need leave for CLIENT, which can also pause the server and end connections.
            .set_skip_set_lib_name()
            .set_db(i64::from(self.database));
        if let Some(username) = &self.credentials.username {
            server = server.set_username(username);
        }
        if let Some(password) = &self.credentials.password {
            server = server.set_password(password);
        }
        self.client_as(endpoint, server)
    }

    /// A client for a sentinel. Does not connect.
    pub(crate) fn sentinel(&self, endpoint: &Endpoint) -> Result<Client, SettingsError> {
        self.client_as(endpoint, RedisConnectionInfo::default().set_skip_set_lib_name())
    }

    fn client_as(
        &self,
        endpoint: &Endpoint,
        server: RedisConnectionInfo,
    ) -> Result<Client, SettingsError> {
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
            .set_user_timeout(self.timeouts.response);
        let address = match endpoint.clone() {
            Endpoint::Unix(path) => ConnectionAddr::Unix(path),
            Endpoint::Tcp(host, port) if self.tls.is_some() => {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            }
            Endpoint::Tcp(host, port) => ConnectionAddr::Tcp(host, port),
        };
        let info = address.into_connection_info()?.set_redis_settings(server).set_tcp_settings(tcp);
        let Some(Tls { ca, client }) = self.tls.clone() else {
            return Ok(Client::open(info)?);
        };
        if let Some(ca) = &ca {
            check_ca(ca)?;
        }
        let client_tls =
            client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: ca })?)
    }
}

/// A file without a certificate would be taken, and then no server trusted.
fn check_ca(pem: &[u8]) -> redis::RedisResult<()> {
    if CertificateDer::pem_slice_iter(pem).next().is_some_and(|first| first.is_ok()) {
        return Ok(());
    }
    let message = "the authority's file holds no certificate in PEM";
    Err((ErrorKind::InvalidClientConfig, message).into())
}
