//! InfluxDB, and what speaks like it.
//!
//! | file | what it does |
//! | --- | --- |
//! | `settings.rs` | what must hold before anything is connected |
//! | `delivery.rs` | bodies, and the halving of rejected ones |
//! | `answer.rs` | what a status means |
//! | `words.rs` | a server's words, fit for a log |
//! | `v2.rs` | the v2 API over `http://`, through the `influxdb2` crate |
//! | `http.rs` | all other requests: v1, and whatever is `https://` or below a path |
//! | `tls.rs` | certificates and their errors |
//!
//! `docs/decisions/0002-https-to-influxdb.md` says why there are two ways. Both follow no redirects, which would
//! turn a POST into a GET or carry the token elsewhere, and use no proxy, not even from the environment:
//! the database is a neighbour, and a proxy that was meant for something else must not see the token.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

use self::answer::Answer;
use self::delivery::{Delivered, Post, deliver};
use self::http::Http;
pub use self::settings::{Api, Settings, SettingsError};
use self::v2::V2;
use super::line_protocol::{LINES_PER_COUNT, Points};
use super::{Output, Refused, SealedCounts, WriteError, Written};

mod answer;
mod delivery;
mod http;
mod settings;
mod tls;
mod v2;
mod words;

/// A neighbour that does not accept a connection in this time is away, however long an answer may take.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Idle connections are closed before a server's own limit (60 s and more) can meet a request half-way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
const USER_AGENT: &str = concat!("event-data-service/", env!("CARGO_PKG_VERSION"));

/// An output to one bucket or database.
#[derive(Debug)]
pub struct InfluxDb {
    way: Way,
    description: String,
    counts_per_body: usize,
    /// Counts refused since the server last accepted one; see [`delivery`].
    unproven: AtomicUsize,
}

/// How a body reaches the server.
#[derive(Debug)]
enum Way {
    Crate(V2),
    Own(Http),
}

impl Post for Way {
    async fn post(&self, body: String) -> Answer {
        match self {
            Self::Crate(v2) => v2.post(body).await,
            Self::Own(http) => http.post(body).await,
        }
    }
}

impl InfluxDb {
    /// Checks the settings. Connects to nothing yet, so a server that is away is no error here.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let url = settings.check()?;
        let way = match &settings.api {
            // The crate would put its own path in the place of the URL's.
            Api::V2 { org, bucket, token } if url.scheme() == "http" && url.path() == "/" => {
                Way::Crate(V2::new(
                    &url,
                    org,
                    bucket,
                    token.as_ref(),
                    settings.timeout,
                )?)
            }
            Api::V2 { .. } | Api::V1 { .. } => Way::Own(Http::new(&url, settings)?),
        };
        Ok(Self {
            way,
            description: describe(&url, &settings.api),
            counts_per_body: settings.batch_lines / LINES_PER_COUNT,
            unproven: AtomicUsize::new(0),
        })
    }

    fn remember(&self, delivered: &Delivered) {
        if delivered.accepted {
            self.unproven.store(0, Ordering::Relaxed);
        } else {
            self.unproven
                .fetch_add(delivered.refused.len(), Ordering::Relaxed);
        }
    }
}

fn describe(url: &Url, api: &Api) -> String {
    struct Place<'a>(&'a Api);
    impl fmt::Display for Place<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Api::V1 { database, .. } => write!(f, "database {database}"),
                Api::V2 { org, bucket, .. } => write!(f, "org {org}, bucket {bucket}"),
            }
        }
    }
    format!("InfluxDB at {url}, {}", Place(api))
}

#[async_trait]
impl Output for InfluxDb {
    async fn write(&self, counts: &[SealedCounts]) -> Result<Written, WriteError> {
        let mut refused = Vec::new();
        let mut writable = Vec::with_capacity(counts.len());
        for (index, counts) in counts.iter().enumerate() {
            match Points::of(counts) {
                Ok(points) => writable.push((index, points)),
                Err(error) => refused.push(Refused {
                    index,
                    words: error.to_string(),
                }),
            }
        }
        let unproven = self.unproven.load(Ordering::Relaxed);
        let delivered = deliver(&self.way, &writable, self.counts_per_body, unproven).await?;
        self.remember(&delivered);
        refused.extend(delivered.refused);
        refused.sort_by_key(|refused| refused.index);
        Ok(Written { refused })
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
