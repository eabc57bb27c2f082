//! What an InfluxDB output is told, and the checks before anything is connected.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::HeaderValue;

use super::answer::Dialect;
use crate::output::line_protocol::LINES_PER_COUNT;

/// A token or password. Neither its `Debug` nor any message of this module shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

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
    /// The most lines in one request; there are two to a count. At least 2.
    pub batch_lines: usize,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url,
            api,
            timeout,
            ca_file,
            batch_lines,
        } = self;
        // A password may stand in the URL, although the checks will turn it away.
        let url = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host);
        f.debug_struct("Settings")
            .field("url", &url)
            .field("api", api)
            .field("timeout", timeout)
            .field("ca_file", ca_file)
            .field("batch_lines", batch_lines)
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
        if self.batch_lines < LINES_PER_COUNT {
            return Err(invalid(
                "output.batch_lines",
                "must be at least 2, the lines of one count",
            ));
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
mod tests {
    use super::*;

    fn v2(token: Option<&str>) -> Api {
        let token = token.map(|token| Secret::from(token.to_owned()));
        Api::V2 {
            org: "o".to_owned(),
            bucket: "b".to_owned(),
            token,
        }
    }

    fn v1(database: &str, username: Option<&str>, password: Option<&str>) -> Api {
        Api::V1 {
            database: database.to_owned(),
            username: username.map(str::to_owned),
            password: password.map(|password| Secret::from(password.to_owned())),
        }
    }

    fn settings(url: &str, api: Api) -> Settings {
        let timeout = Duration::from_secs(1);
        Settings {
            url: url.to_owned(),
            api,
            timeout,
            ca_file: None,
            batch_lines: 5000,
        }
    }

    #[track_caller]
    fn check_refused(settings: &Settings, key: &str) {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}: ")), "{error}");
        for shown in [error, format!("{settings:?}")] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn what_can_work_is_let_pass() {
        for url in ["http://localhost:8086", "https://influx.example/path/"] {
            for api in [
                v2(None),
                v2(Some("t")),
                v1("d", None, None),
                v1("d", Some("u"), Some("")),
            ] {
                settings(url, api).check().unwrap();
            }
        }
    }

    #[test]
    fn what_cannot_work_is_named_by_its_key() {
        for url in [
            "",
            "localhost:8086",
            "ftp://h",
            "http://",
            "http://u:hunter2@h",
            "http://u:hunter2@h:port",
            "http://h/?db=x",
            "http://h/#x",
        ] {
            check_refused(&settings(url, v2(None)), "output.url");
        }
        let http = "http://h:1";
        check_refused(&settings(http, v2(Some("hunter2\n"))), "output.token_file");
        check_refused(&settings(http, v2(Some(""))), "output.token_file");
        check_refused(&settings(http, v1("", None, None)), "output.database");
        check_refused(&settings(http, v1("d", Some(""), None)), "output.username");
        check_refused(
            &settings(http, v1("d", Some("u:v"), None)),
            "output.username",
        );
        check_refused(
            &settings(http, v1("d", None, Some("hunter2"))),
            "output.password_file",
        );
        let with = |change: fn(&mut Settings)| {
            let mut settings = settings(http, v2(Some("hunter2")));
            change(&mut settings);
            settings
        };
        check_refused(&with(|s| s.batch_lines = 1), "output.batch_lines");
        check_refused(&with(|s| s.timeout = Duration::ZERO), "output.timeout");
        check_refused(
            &with(|s| s.ca_file = Some("/ca.pem".into())),
            "output.ca_file",
        );
    }
}
