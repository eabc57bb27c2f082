//! The settings of an InfluxDB output. The configuration has checked them.

use std::fmt;
use std::time::Duration;

use reqwest::Url;

use super::answer::Dialect;
use crate::secret::Secret;

/// Which API to write through, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Api {
    /// `/api/v2/write`: InfluxDB 2 and 3, VictoriaMetrics.
    V2 {
        /// The organisation, by name or id.
        org: String,
        /// The bucket, by name or id.
        bucket: String,
        /// The API token; some servers that speak this API need none.
        token: Option<Secret>,
    },
    /// `/write`: InfluxDB 1.x.
    V1 {
        /// The database.
        database: String,
        /// The user, on servers that ask for one.
        username: Option<String>,
        /// The user's password.
        password: Option<Secret>,
    },
}

/// How to reach an InfluxDB.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `http://` or `https://`, a host, perhaps a port and a path in front of the API's own; nothing else.
    pub url: Url,
    /// Which API to write through.
    pub api: Api,
    /// The longest that one request may take, from connecting to the end of the answer.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_str())
            .field("api", &self.api)
            .field("timeout", &self.timeout)
            .field("ca", &self.ca.is_some())
            .finish()
    }
}

/// Certificates that cannot be used, or an HTTP client that cannot be set up, for instance because the system has no
/// certificates at all.
#[derive(Debug, thiserror::Error)]
#[error("output: {0}")]
pub struct SettingsError(pub(super) String);

impl Api {
    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::V1 { .. } => Dialect::V1,
            Self::V2 { .. } => Dialect::V2,
        }
    }
}
