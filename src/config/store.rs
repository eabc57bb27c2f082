//! `[store]`: where the minutes are gathered, and how to speak to it.

use std::num::NonZeroU16;
use std::time::Duration;

use redis_link::{Address, Credentials, Timeouts, Tls};

use super::credentials::login;
use super::sections;
use super::values::Effective;
use crate::event::Partitions;
use crate::secret::Secret;
use crate::store::redis::{self, Settings};

/// The settings of the store.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    /// In this process.
    Memory {
        /// The maximum memory for open minutes and unsent counts, in bytes.
        bytes_max: u64,
        /// The maximum number of sent counts that are kept.
        counts_max: u64,
    },
    Redis(Box<Settings>),
}

/// Ignores the keys of Redis where the store is in memory, so that `--store memory:` tries a full configuration out without
/// its servers and their secrets.
pub(super) fn ignore_unused(values: &mut Effective) {
    if values.text("store.url") == "memory:" {
        values.ignore(&[
            "store.username",
            "store.password",
            "store.password_file",
            "store.ca_file",
            "store.cert_file",
            "store.key_file",
        ]);
    }
}

/// Returns the store of this node, and its partitions.
pub(super) fn build(
    values: &mut Effective,
    keys: sections::Store,
    node: &str,
    retention: Duration,
) -> (Store, Partitions) {
    let before = Some(keys.partitions_before).filter(|before| *before > 0);
    values.together(
        &["store.partitions_before", "store.partitions_from"],
        before.is_some() == keys.partitions_from.is_some(),
        "and store.partitions_from go together; set both while the number of partitions changes, and neither afterwards",
    );
    values.together(
        &["store.partitions_before", "store.partitions"],
        before != Some(keys.partitions),
        "is store.partitions, so nothing changes; write the number of partitions that there was before",
    );
    let count = NonZeroU16::new(keys.partitions).unwrap_or(NonZeroU16::MIN);
    // A store in memory starts empty, so it has no minutes with another number of partitions.
    let before = before.zip(keys.partitions_from).filter(|_| keys.url.is_some());
    let partitions = redis::partitions(&keys.prefix, count, before);
    let (prefix, layout, counts_max) = (keys.prefix.clone(), keys.layout, keys.counts_max);
    let bytes_max = keys.memory_max;
    let store = match connection(values, keys) {
        None => Store::Memory { bytes_max, counts_max },
        Some(redis) => Store::Redis(Box::new(Settings {
            redis,
            prefix,
            partitions: partitions.clone(),
            layout,
            retention,
            counts_max,
            node: node.to_owned(),
        })),
    };
    (store, partitions)
}

/// Returns the settings of the connection to Redis, from the URL and the other keys; `None`: the store is in memory.
pub(super) fn connection(
    values: &mut Effective,
    keys: sections::Store,
) -> Option<redis_link::Settings> {
    let url = keys.url?;
    let in_url = (url.credentials.username, url.credentials.password.as_deref().map(Secret::new));
    let given = (keys.username, [keys.password, keys.password_file]);
    let (username, password) = login(values, "store", in_url, given, false);
    let (ca, certificate, key) = (keys.ca_file, keys.cert_file, keys.key_file);
    values.together(
        &["store.cert_file", "store.key_file"],
        certificate.is_some() == key.is_some(),
        "and store.key_file go together; set both or neither",
    );
    for (path, pem) in
        [("store.ca_file", &ca), ("store.cert_file", &certificate), ("store.key_file", &key)]
    {
        let holds = pem.is_none() || url.tls.is_some();
        let text =
            "is set, but store.url is not encrypted; write rediss:// there or leave this out";
        values.together(&[path, "store.url"], holds, text);
    }
    Some(redis_link::Settings {
        tls: url.tls.map(|_| Tls { ca, client: certificate.zip(key) }),
        credentials: Credentials {
            username,
            password: password.map(|password| password.expose().to_owned()),
        },
        timeouts: Timeouts { connect: keys.connect_timeout, response: keys.response_timeout },
        ..url
    })
}

impl Store {
    /// Returns the hosts of Redis that are reached without TLS.
    pub(super) fn hosts_in_the_clear(&self) -> Vec<&str> {
        match self {
            Self::Redis(settings) if settings.redis.tls.is_none() => {
                match &settings.redis.address {
                    Address::Tcp { host, .. } => vec![host],
                    Address::Cluster { nodes } | Address::Sentinel { sentinels: nodes, .. } => {
                        nodes.iter().map(|(host, _)| host.as_str()).collect()
                    }
                    Address::Unix(_) => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }
}
