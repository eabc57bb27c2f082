//! The settings of an InfluxDB output, and the checks before anything is connected.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;

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
    /// `http://` or `https://`, a host, perhaps a port and a path in front of the API's own.
    pub url: String,
    /// Which API to write through.
    pub api: Api,
    /// The longest that one request may take, from connecting to the end of the answer.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the system's. Only for `https://`.
    pub ca_file: Option<PathBuf>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url,
            api,
            timeout,
            ca_file,
        } = self;
        // A password may stand in the URL, although the checks will turn it away.
        let url = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host);
        f.debug_struct("Settings")
            .field("url", &url)
            .field("api", api)
            .field("timeout", timeout)
            .field("ca_file", ca_file)
            .finish()
    }
}

/// Settings that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A key has a value that cannot be meant.
    #[error("{key}: {reason}")]
    Invalid {
        /// The configuration key.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The file of certificates cannot be read.
    #[error("output.ca_file: cannot read {}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The HTTP client cannot be set up, for instance because the system has no certificates at all.
    #[error("output: cannot set up the HTTP client: {reason}")]
    Client {
        /// What it said.
        reason: String,
    },
}

pub(super) fn invalid(key: &'static str, reason: impl Into<String>) -> SettingsError {
    SettingsError::Invalid {
        key,
        reason: reason.into(),
    }
}

impl Settings {
    /// The URL, once everything else is checked, too.
    pub(super) fn check(&self) -> Result<Url, SettingsError> {
        let url = self.check_url()?;
        if self.ca_file.is_some() && url.scheme() == "http" {
            let reason = "has no meaning for an http:// output.url; did you mean https://?";
            return Err(invalid("output.ca_file", reason));
        }
        if self.timeout.is_zero() {
            return Err(invalid("output.timeout", "must be longer than nothing"));
        }
        self.api.check()?;
        Ok(url)
    }

    /// The messages do not repeat the URL: it might hold a password.
    fn check_url(&self) -> Result<Url, SettingsError> {
        let wrong = |reason: &str| invalid("output.url", reason);
        let url = Url::parse(&self.url).map_err(|error| wrong(&format!("not a URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "must not hold a user or password: use output.username and output.password_file, \
                 or output.token_file",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong(
                "must end before any ? or #: org, bucket and database have keys of their own",
            ));
        }
        Ok(url)
    }
}

impl Api {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::V1 { .. } => Dialect::V1,
            Self::V2 { .. } => Dialect::V2,
        }
    }

    fn check(&self) -> Result<(), SettingsError> {
        let given = |key, value: &str| {
            if value.is_empty() {
                Err(invalid(key, "must not be empty"))
            } else {
                Ok(())
            }
        };
        match self {
            Self::V2 { org, bucket, token } => {
                given("output.org", org)?;
                given("output.bucket", bucket)?;
                let Some(token) = token else { return Ok(()) };
                given("output.token_file", token.expose())?;
                // Otherwise every single write would fail, and without saying why.
                HeaderValue::from_str(token.expose())
                    .map(drop)
                    .map_err(|_| {
                        invalid(
                            "output.token_file",
                            "the token holds a character that HTTP cannot carry, perhaps a newline",
                        )
                    })
            }
            Self::V1 {
                database,
                username,
                password,
            } => {
                given("output.database", database)?;
                match username {
                    Some(username) => given("output.username", username)?,
                    None if password.is_some() => {
                        return Err(invalid(
                            "output.password_file",
                            "needs output.username beside it",
                        ));
                    }
                    None => {}
                }
                if username
                    .as_ref()
                    .is_some_and(|username| username.contains(':'))
                {
                    return Err(invalid(
                        "output.username",
                        "must not hold a colon: it would begin the password",
                    ));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
