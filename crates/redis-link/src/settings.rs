//! Connection settings for Redis.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisResult, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::Secret;

/// The idle time of a connection before the first TCP keepalive probe, and the time between two probes.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The size up to which commands that are sent at the same time are written together, in bytes.
const WRITE_BYTES: usize = 256 << 10;

/// Where Redis is and how to connect. `Debug` shows neither the password nor the certificates.
#[derive(Clone)]
pub struct Settings {
    /// The server, cluster or sentinels to connect to.
    pub address: Address,
    /// The certificates for TLS; `None` to connect without TLS. Unix sockets never use TLS.
    pub tls: Option<Tls>,
    /// The number of the database to select.
    pub database: u32,
    /// The Redis user to log in as.
    pub credentials: Credentials,
    /// How long to wait for connections and for replies.
    pub timeouts: Timeouts,
    /// Creates the streams for connections, in tests; `None` to connect over the network.
    pub dial: Option<Dial>,
}

/// A function that returns the stream for a new connection.
pub type Dial = Arc<dyn Fn() -> Box<dyn AsyncStream + Send + Unpin> + Send + Sync>;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &self.address)
            .field("database", &self.database)
            .field("username", &self.credentials.username)
            .finish_non_exhaustive()
    }
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The host name or IP address, and the port. With TLS, the server's certificate must be valid for this host.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address.ip().to_string(), address.port())
    }
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

/// The address of a Redis server or of a group of servers. Contains no secrets, so it may be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A single server.
    Server(Endpoint),
    /// A Redis Cluster, given as some of its nodes. The other nodes are discovered through these.
    Cluster(Vec<Endpoint>),
    /// A master monitored by Redis Sentinel, given as the sentinels and the master's name. No password is sent to sentinels.
    Sentinel(Vec<Endpoint>, String),
}

impl Address {
    pub(crate) const fn server(&self) -> Option<&Endpoint> {
        match self {
            Self::Server(endpoint) => Some(endpoint),
            Self::Cluster(_) | Self::Sentinel(..) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |nodes: &[Endpoint]| {
            nodes.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Server(endpoint) => write!(f, "Redis at {endpoint}"),
            Self::Cluster(nodes) => write!(f, "the Redis Cluster at {}", list(nodes)),
            Self::Sentinel(sentinels, name) => {
                let sentinels = list(sentinels);
                write!(f, "the Redis master {name} monitored by the sentinels at {sentinels}")
            }
        }
    }
}

/// The timeouts of a connection. Both are 2 s by default.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// The timeout for connecting, including name resolution and the TLS handshake.
    pub connect: Duration,
    /// The timeout for each reply.
    pub response: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), response: Duration::from_secs(2) }
    }
}

/// The name and password of a Redis user.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The user name; `None` for Redis's default user.
    pub username: Option<String>,
    /// The password; `None` if the user has no password. After it is replaced, new connections use the new one.
    pub password: Option<Secret>,
}

/// PEM certificates for TLS. The server's certificate is always verified.
#[derive(Clone, Default)]
pub struct Tls {
    /// The CA certificates used to verify the server; `None` for the system's CA certificates.
    pub ca: Option<Vec<u8>>,
    /// The client certificate and its private key; `None` to connect without a client certificate.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// The error for settings that cannot be used, such as an invalid certificate.
#[derive(Debug, thiserror::Error)]
#[error("invalid Redis address or TLS certificate: {0}")]
pub struct SettingsError(#[from] redis::RedisError);

impl Settings {
    /// Returns settings for database 0 at this address, with the default timeouts and without TLS or credentials.
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

    /// Replaces the password in all clones of these settings, if both settings have the same address and user. Existing
    /// connections stay logged in; new ones use the new password.
    pub fn replace_password(&self, read: &Self) {
        if self.address == read.address
            && self.credentials.username == read.credentials.username
            && let (Some(password), Some(read)) =
                (&self.credentials.password, &read.credentials.password)
        {
            password.replace(read);
        }
    }

    pub(crate) async fn connect(&self, client: &Client) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.response))
            .set_write_backpressure_boundary(WRITE_BYTES);
        let Some(dial) = &self.dial else {
            return client.get_multiplexed_async_connection_with_config(&config).await;
        };
        let info = client.get_connection_info().redis_settings();
        let connected = MultiplexedConnection::new_with_config(info, dial(), config);
        let (connection, driver) = connected.await?;
        tokio::spawn(driver);
        Ok(connection)
    }

    pub(crate) fn client(&self, endpoint: &Endpoint) -> Result<Client, SettingsError> {
        let mut server = RedisConnectionInfo::default().set_db(i64::from(self.database));
        if let Some(username) = &self.credentials.username {
            server = server.set_username(username);
        }
        if let Some(password) = &self.credentials.password {
            server = server.set_password(password.expose());
        }
        self.client_as(endpoint, server)
    }

    pub(crate) fn sentinel(&self, endpoint: &Endpoint) -> Result<Client, SettingsError> {
        self.client_as(endpoint, RedisConnectionInfo::default())
    }

    fn client_as(
        &self,
        endpoint: &Endpoint,
        server: RedisConnectionInfo,
    ) -> Result<Client, SettingsError> {
        // Setting the library name would require permission for CLIENT, a command that can also pause the server.
        let server = server.set_skip_set_lib_name();
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
        // The `redis` crate accepts a file that contains no certificates, and would then trust no server.
        let has_certificate = |pem: &Vec<u8>| {
            CertificateDer::pem_slice_iter(pem).next().is_some_and(|first| first.is_ok())
        };
        if !ca.as_ref().is_none_or(has_certificate) {
            let message = "the CA file contains no PEM certificates";
            return Err(SettingsError((ErrorKind::InvalidClientConfig, message).into()));
        }
        let client_tls =
            client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: ca })?)
    }
}
