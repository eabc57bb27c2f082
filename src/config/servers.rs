//! Builds `[store]` and `[output]`: the sections whose keys depend on a URL.
//!
//! Keys that the URL in force has no use for are left unread, so that `--store memory:` or `--output stdout:`
//! tries a full configuration out without its servers and their secrets.

use super::endpoints::{
    Api, Identity, InfluxDb, Layout, Output, OutputUrl, Redis, RedisAddress, Store, StoreUrl, Tls,
};
use super::kind;
use super::reader::Reader;
use super::source::{Origin, Raw};
use super::url::{self, OutputParts, Place, RedisParts, StoreParts, User};
use crate::secret::Secret;

pub(super) fn store(reader: &mut Reader<'_>) -> Store {
    let parts = reader.read("store.url", |_, raw: &Raw| url::store(raw.one()?).map(Some));
    let partitions = reader.read("store.partitions", kind::integer);
    let before = reader.read("store.partitions_before", kind::integer);
    let from = reader.read("store.partitions_from", kind::minute);
    reader.together(
        &["store.partitions_before", "store.partitions_from"],
        (before == 0) == from.is_none(),
        "and store.partitions_from go together; set both while the number of partitions changes, and neither afterwards",
    );
    reader.together(
        &["store.partitions_before", "store.partitions"],
        before != partitions,
        "is store.partitions, so nothing changes; write the number of partitions that there was before",
    );
    let number = |number| u16::try_from(number).unwrap_or(u16::MAX);
    let memory_max = reader.read("store.memory_max", kind::size);
    let url = match parts {
        Some(StoreParts::Redis(parts)) => StoreUrl::Redis(Box::new(redis(reader, parts))),
        Some(StoreParts::Memory) | None => StoreUrl::Memory { memory_max },
    };
    Store {
        url,
        prefix: reader.text("store.prefix"),
        partitions: number(partitions),
        partitions_before: from.map(|from| (number(before), from)),
        layout: reader.choice("store.layout", &[("sets", Layout::Sets)], Layout::Sets),
        replay_window: reader.read("store.replay_window", kind::duration),
        counts_max: reader.read("store.counts_max", kind::integer),
    }
}

fn redis(reader: &mut Reader<'_>, parts: RedisParts) -> Redis {
    let keys = UserKeys {
        url: "store.url",
        username: "store.username",
        password: "store.password",
        password_file: "store.password_file",
    };
    let (username, password) = user(reader, &keys, parts.user);
    if username.is_some()
        && password.is_none()
        && reader.sound(&["store.username", "store.password", "store.password_file"])
    {
        reader.wrong(
            "store.password_file",
            "is not set, but there is a user name; set it, or EDS_STORE__PASSWORD",
        );
    }
    let [ca_path, cert_path, key_path] = ["store.ca_file", "store.cert_file", "store.key_file"];
    let (ca, certificate, key) = (
        reader.pem(ca_path),
        reader.pem(cert_path),
        reader.pem(key_path),
    );
    let paired = certificate.is_some() == key.is_some();
    reader.together(
        &[cert_path, key_path],
        paired,
        "and store.key_file go together; set both or neither",
    );
    let encrypted = match &parts.place {
        Place::Tcp { tls, .. } | Place::Cluster { tls, .. } | Place::Sentinel { tls, .. } => *tls,
        Place::Unix(_) => false,
    };
    if !encrypted {
        for (path, pem) in [(ca_path, &ca), (cert_path, &certificate), (key_path, &key)] {
            let text =
                "is set, but store.url is not encrypted; write rediss:// there or leave this out";
            reader.together(&[path, "store.url"], pem.is_none(), text);
        }
    }
    let tls = encrypted.then(|| {
        let identity = certificate
            .zip(key)
            .map(|(certificate, key)| Identity { certificate, key });
        Tls { ca, identity }
    });
    let address = match (parts.place, tls) {
        (Place::Tcp { host, port, .. }, Some(tls)) => RedisAddress::Tls { host, port, tls },
        (Place::Tcp { host, port, .. }, None) => RedisAddress::Tcp { host, port },
        (Place::Unix(path), _) => RedisAddress::Unix(path),
        (Place::Cluster { nodes, .. }, tls) => RedisAddress::Cluster { nodes, tls },
        (
            Place::Sentinel {
                sentinels, name, ..
            },
            tls,
        ) => RedisAddress::Sentinel {
            sentinels,
            name,
            tls,
        },
    };
    Redis {
        address,
        database: parts.database,
        username,
        password,
        connect_timeout: reader.read("store.connect_timeout", kind::duration),
        response_timeout: reader.read("store.response_timeout", kind::duration),
    }
}

pub(super) fn output(reader: &mut Reader<'_>) -> Output {
    let parts = reader.read("output.url", |_, raw: &Raw| {
        url::output(raw.one()?).map(Some)
    });
    let version = reader.choice("output.api", &[("v1", 1), ("v2", 2)], 2);
    let url = match parts {
        Some(OutputParts::Http {
            base,
            tls,
            loopback,
            user,
        }) => {
            let api = if version == 1 {
                api_v1(reader, user)
            } else {
                api_v2(reader, &user, !tls && loopback)
            };
            let ca = reader.pem("output.ca_file");
            let text =
                "is set, but output.url is not encrypted; write https:// there or leave this out";
            reader.together(&["output.ca_file", "output.url"], tls || ca.is_none(), text);
            OutputUrl::InfluxDb(Box::new(InfluxDb {
                base_url: base,
                api,
                ca,
            }))
        }
        Some(OutputParts::Stdout) | None => OutputUrl::Stdout,
    };
    Output {
        url,
        timeout: reader.read("output.timeout", kind::duration),
        batch_lines: reader.count("output.batch_lines"),
    }
}

/// The API in force knows no such keys: either they are wrong or output.api is.
fn refuse_keys_of(reader: &mut Reader<'_>, other: &str, keys: &[String]) {
    for path in keys {
        if !reader.is_given(path) {
            continue;
        }
        let text = format!(
            "is for output.api = \"{other}\", which is not in force; leave it out, or set output.api to \"{other}\""
        );
        reader.wrong(path, &text);
    }
}

fn api_v2(reader: &mut Reader<'_>, user: &User, token_optional: bool) -> Api {
    if *user != User::default() {
        reader.wrong("output.url", "holds a user or password, but api = \"v2\" takes a token; leave them out and set output.token_file");
    }
    let keys = ["database", "username", "password", "password_file"];
    refuse_keys_of(reader, "v1", &keys.map(|key| format!("output.{key}")));
    let reason = "output.api = \"v2\" needs it";
    let org = reader.required("output.org", reason);
    let bucket = reader.required("output.bucket", reason);
    if !reader.sends {
        let token = None;
        return Api::V2 { org, bucket, token };
    }
    let token = reader.secret("output.token", "output.token_file");
    if token.is_none()
        && !token_optional
        && reader.sound(&["output.url", "output.token", "output.token_file"])
    {
        let text = "is not set, but output.api = \"v2\" needs a token unless the server is plain http on this host; set it, or EDS_OUTPUT__TOKEN";
        reader.wrong("output.token_file", text);
    }
    Api::V2 { org, bucket, token }
}

fn api_v1(reader: &mut Reader<'_>, in_url: User) -> Api {
    let keys = UserKeys {
        url: "output.url",
        username: "output.username",
        password: "output.password",
        password_file: "output.password_file",
    };
    let others = ["org", "bucket", "token", "token_file"];
    refuse_keys_of(reader, "v2", &others.map(|key| format!("output.{key}")));
    let database = reader.required("output.database", "output.api = \"v1\" needs it");
    if !reader.sends {
        let (username, password) = (None, None);
        return Api::V1 {
            database,
            username,
            password,
        };
    }
    let (username, password) = user(reader, &keys, in_url);
    if username.is_some() != password.is_some()
        && reader.sound(&[
            "output.url",
            "output.username",
            "output.password",
            "output.password_file",
        ])
    {
        reader.wrong("output.username", "and the password go together; set output.username and output.password_file, or neither");
    }
    Api::V1 {
        database,
        username,
        password,
    }
}

/// Where a user and the password may stand.
struct UserKeys {
    url: &'static str,
    username: &'static str,
    password: &'static str,
    password_file: &'static str,
}

/// The user and password, which may stand in the URL or in keys of their own, but not in both.
fn user(
    reader: &mut Reader<'_>,
    keys: &UserKeys,
    in_url: User,
) -> (Option<String>, Option<Secret>) {
    if in_url.password.is_some() && matches!(reader.origin(keys.url), Some(Origin::Flag(_))) {
        let variable = keys.password.replace('.', "__").to_ascii_uppercase();
        let text = format!(
            "holds a password, which everyone on this host can see in a flag; leave it out and set {} or EDS_{variable}",
            keys.password_file
        );
        reader.wrong(keys.url, &text);
    }
    let username = reader.optional(keys.username);
    let password = reader.secret(keys.password, keys.password_file);
    let agree = username.is_none() || in_url.name.is_none() || username == in_url.name;
    reader.together(
        &[keys.username, keys.url],
        agree,
        &format!("differs from the user in {}; keep one of them", keys.url),
    );
    let once = password.is_none() || in_url.password.is_none();
    reader.together(
        &[keys.url, keys.password, keys.password_file],
        once,
        &format!(
            "holds a password, and so does {} or {}; keep one of them",
            keys.password, keys.password_file
        ),
    );
    (username.or(in_url.name), password.or(in_url.password))
}
