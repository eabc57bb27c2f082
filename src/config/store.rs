//! `[store]`: where the minutes are gathered, and how to speak to it.
//!
//! Keys that the URL in force has no use for are left unread, here and in `output.rs`, so that `--store memory:` or
//! `--output stdout:` tries a full configuration out without its servers and their secrets.

use std::num::NonZeroU16;
use std::time::Duration;

use redis_link::{Address, Timeouts};

use super::keys::{Key, store};
use super::kind::{File, SecretText, Text};
use super::reader::Reader;
use crate::event::{Minute, Partitions};
use crate::secret::Secret;
use crate::store::redis::{self, Settings};

/// The store, by what it needs.
#[derive(Debug, Clone)]
pub enum Store {
    /// In this process.
    Memory {
        /// Most memory for open minutes and counts that an output lacks, in bytes.
        bytes_max: u64,
        /// The most counts that are kept after they are sent.
        counts_max: u64,
    },
    /// In Redis.
    Redis(Box<Settings>),
}

/// Reads it, for this node and retention, and how the series are spread.
pub(super) fn read(
    reader: &mut Reader<'_>,
    node: &str,
    retention: Duration,
) -> (Store, Partitions) {
    let url = reader.read(&store::url);
    let prefix = reader.read(&store::prefix);
    let (count, before) = partitions(reader);
    let counts_max = reader.read(&store::counts_max);
    let bytes_max = reader.read(&store::memory_max);
    let layout = reader.read(&store::layout);
    let Some(link) = url else {
        // It begins empty, so it has no minutes of another number.
        let partitions = redis::partitions(&prefix, count, None);
        return (Store::Memory { bytes_max, counts_max }, partitions);
    };
    let partitions = redis::partitions(&prefix, count, before);
    let settings = Settings {
        redis: connection(reader, link),
        prefix,
        partitions: partitions.clone(),
        layout,
        retention,
        counts_max,
        node: node.to_owned(),
    };
    (Store::Redis(Box::new(settings)), partitions)
}

/// The Redis of the nodes, to which a relay reports itself.
#[derive(Debug, Clone)]
pub struct RelayStore {
    /// Where it is and how to reach it.
    pub redis: redis_link::Settings,
    /// What the names of all keys begin with.
    pub prefix: String,
}

/// Reads it, for a relay; `None`: it reports nowhere.
pub(super) fn read_for_relay(reader: &mut Reader<'_>) -> Option<RelayStore> {
    let url = reader.read(&store::url);
    let prefix = reader.read(&store::prefix);
    url.map(|link| RelayStore { redis: connection(reader, link), prefix })
}

/// Their number, and while it changes the number before and the minute from which the new one holds.
fn partitions(reader: &mut Reader<'_>) -> (NonZeroU16, Option<(u16, Minute)>) {
    let count = reader.read(&store::partitions);
    let before = reader.read(&store::partitions_before);
    let from = reader.read(&store::partitions_from);
    reader.together(
        &[store::partitions_before.path, store::partitions_from.path],
        before.is_some() == from.is_some(),
        "and store.partitions_from go together; set both while the number of partitions changes, and neither afterwards",
    );
    reader.together(
        &[store::partitions_before.path, store::partitions.path],
        before != Some(count),
        "is store.partitions, so nothing changes; write the number of partitions that there was before",
    );
    let count = NonZeroU16::new(count).unwrap_or(NonZeroU16::MIN);
    (count, before.zip(from))
}

/// What the URL says, and what the other keys add to it.
fn connection(reader: &mut Reader<'_>, url: redis_link::Settings) -> redis_link::Settings {
    let keys = UserKeys {
        url: store::url.path,
        username: &store::username,
        password: &store::password,
        password_file: &store::password_file,
    };
    let password = url.credentials.password.as_deref().map(Secret::new);
    let (username, password) = user(reader, &keys, url.credentials.username, password);
    reader.together(
        &[store::password_file.path, store::username.path, store::password.path],
        username.is_none() || password.is_some(),
        "is not set, but there is a user name; set it, or EDS_STORE__PASSWORD",
    );
    let files = [&store::ca_file, &store::cert_file, &store::key_file];
    let [ca, certificate, key] = files.map(|file| reader.pem(file));
    reader.together(
        &[store::cert_file.path, store::key_file.path],
        certificate.is_some() == key.is_some(),
        "and store.key_file go together; set both or neither",
    );
    for (file, pem) in files.iter().zip([&ca, &certificate, &key]) {
        let holds = pem.is_none() || url.tls.is_some();
        let text =
            "is set, but store.url is not encrypted; write rediss:// there or leave this out";
        reader.together(&[file.path, store::url.path], holds, text);
    }
    redis_link::Settings {
        tls: url.tls.map(|_| redis_link::Tls { ca, client: certificate.zip(key) }),
        credentials: redis_link::Credentials {
            username,
            password: password.map(|password| password.expose().to_owned()),
        },
        timeouts: Timeouts {
            connect: reader.read(&store::connect_timeout),
            response: reader.read(&store::response_timeout),
        },
        ..url
    }
}

impl Store {
    /// The hosts of Redis that are spoken to without TLS.
    pub(super) fn hosts_in_the_clear(&self) -> Vec<&str> {
        let Self::Redis(settings) = self else {
            return Vec::new();
        };
        match &settings.redis.address {
            _ if settings.redis.tls.is_some() => Vec::new(),
            Address::Tcp { host, .. } => vec![host],
            Address::Cluster { nodes } | Address::Sentinel { sentinels: nodes, .. } => {
                nodes.iter().map(|(host, _)| host.as_str()).collect()
            }
            Address::Unix(_) => Vec::new(),
        }
    }
}

/// Where a user and the password may stand.
pub(super) struct UserKeys {
    pub(super) url: &'static str,
    pub(super) username: &'static Key<Text>,
    pub(super) password: &'static Key<SecretText>,
    pub(super) password_file: &'static Key<File>,
}

/// The user and password, which may stand in the URL or in keys of their own, but not in both.
pub(super) fn user(
    reader: &mut Reader<'_>,
    keys: &UserKeys,
    name_in_url: Option<String>,
    password_in_url: Option<Secret>,
) -> (Option<String>, Option<Secret>) {
    let (url, file) = (keys.url, keys.password_file.path);
    if password_in_url.is_some() && reader.is_of_a_flag(url) {
        let text = format!(
            "holds a password, which everyone on this host can see in a flag; leave it out and set {file} or {}",
            keys.password.variable()
        );
        reader.wrong(url, &text);
    }
    let username = reader.optional(keys.username);
    let password = reader.secret(keys.password, keys.password_file);
    reader.together(
        &[keys.username.path, url],
        username.is_none() || name_in_url.is_none() || username == name_in_url,
        &format!("differs from the user in {url}; keep one of them"),
    );
    let path = keys.password.path;
    reader.together(
        &[url, path, file],
        password.is_none() || password_in_url.is_none(),
        &format!("holds a password, and so does {path} or {file}; keep one of them"),
    );
    (username.or(name_in_url), password.or(password_in_url))
}
