//! What is wrong with a Redis: whether it is fit to keep the sets, which is looked at on every new connection, since it may
//! lead to another server than the last; and what a fault means to the store.

use redis::RedisError;
use redis_link::{Fault, Hint, Names, info_field};

use crate::store::{StoreError, Unusable};

/// The oldest Redis with script flags, which let minutes be drained when memory is short.
const VERSION_MIN: u32 = 7;

/// Servers of Redis' protocol whose scripts cannot do it, whatever version of Redis they name: a field of INFO by which each is
/// known, its name, and why.
const UNFIT: [(&str, &str, &str); 2] = [
    (
        "mvcc_depth",
        "KeyDB",
        "its scripts are those of Redis 6, which drain no minute when memory is short",
    ),
    (
        "dragonfly_version",
        "Dragonfly",
        "its scripts reach no keys but those that are named before, and compaction finds its keys in sets",
    ),
];

/// How much of its memory a server may use for questions to be asked, in percent. The rest is for events.
const QUESTIONS_PERCENT_MAX: u64 = 90;

/// How the configuration calls what leads to Redis.
const NAMES: Names = Names {
    address: "store.url",
    credentials: "store.username and store.password_file",
    ca: "store.ca_file",
    certificate: "store.cert_file and store.key_file",
    rights: "config/redis-acl.conf",
};

/// What is done about a Redis without room. Draining takes none.
const FULL_HINT: &str = "events wait in the nodes until there is room: raise maxmemory (`CONFIG SET maxmemory BYTES`, \
                                    and redis.conf; docs/limits.md says how much is needed), or have \
                                    fewer users or series";

/// How many bytes a server uses of its `maxmemory`, and that, from the answer to INFO; `None` where it has none.
fn memory(info: &str) -> Option<(u64, u64)> {
    let number = |name: &str| info_field(info, name)?.parse::<u64>().ok();
    let most = number("maxmemory").filter(|most| *most > 0)?;
    Some((used(info), most))
}

/// How many bytes a server uses, as they are held against its `maxmemory`, from the answer to INFO.
pub(super) fn used(info: &str) -> u64 {
    let number = |name: &str| info_field(info, name)?.parse::<u64>().ok();
    let beside = number("mem_not_counted_for_evict").unwrap_or(0);
    number("used_memory").unwrap_or(0).saturating_sub(beside)
}

/// Whether a server refuses events, from the answer to INFO.
pub(super) fn check_room(info: &str) -> Result<(), Fault> {
    match memory(info) {
        Some((used, most)) if used > most => Err(Fault::Full(format!(
            "it uses {used} bytes, and its maxmemory is {most}"
        ))),
        _ => Ok(()),
    }
}

/// Whether more of a server's memory is used than questions may find, from the answer to INFO.
pub(super) fn shortage(info: &str) -> Option<String> {
    let (used, most) = memory(info)?;
    let percent = used.saturating_mul(100) / most;
    (percent >= QUESTIONS_PERCENT_MAX).then(|| {
        format!(
            "a Redis server uses {percent} % of its maxmemory, and from {QUESTIONS_PERCENT_MAX} % on there are no \
             answers but those that it has, so that recording goes on; raise maxmemory, or ask later"
        )
    })
}

/// Looks whether a server can keep the sets, from the answer to INFO.
pub(super) fn check(info: &str) -> Result<(), Fault> {
    let field = |name: &str| info_field(info, name);
    let refused = |reason: String, hint: String| Fault::Refused {
        reason,
        hint: Hint::Own(hint),
    };
    let version = field("redis_version").unwrap_or("unknown");
    let other = || format!("run Redis {VERSION_MIN}.0 or later, or Valkey");
    if let Some((_, name, why)) = UNFIT.iter().find(|(of, ..)| field(of).is_some()) {
        let reason = format!("the server is {name}, as Redis {version}: {why}");
        return Err(refused(reason, other()));
    }
    // Valkey names 7.2.4 here, and its own version elsewhere.
    let major = version.split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < VERSION_MIN) {
        let reason = format!("the server is Redis {version}");
        return Err(refused(reason, other()));
    }
    if field("role").is_some_and(|role| role == "slave") {
        return Err(Fault::unavailable("the server is a replica"));
    }
    if field("loading").is_some_and(|loading| loading != "0") {
        return Err(Fault::unavailable("the server is loading its data"));
    }
    match field("maxmemory_policy") {
        None | Some("noeviction") => Ok(()),
        Some(policy) => Err(refused(
            format!("Redis may evict sets that are not counted yet (maxmemory-policy {policy})"),
            "run `CONFIG SET maxmemory-policy noeviction`, and write it into redis.conf".to_owned(),
        )),
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable { reason, hint } => Self::Unavailable(match hint {
                Some(hint) => format!("{reason}; {}", hint.by(&NAMES)),
                None => reason,
            }),
            Fault::Full(reason) => Self::Full(format!("{reason}; {FULL_HINT}")),
            Fault::Refused { reason, hint } => Self::Refused {
                reason,
                hint: hint.by(&NAMES),
            },
        }
    }
}

impl From<Fault> for Unusable {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable { reason, hint } => Self {
                reason,
                remedy: hint.map(|hint| hint.by(&NAMES)),
            },
            Fault::Full(reason) => Self {
                reason,
                remedy: Some(FULL_HINT.to_owned()),
            },
            Fault::Refused { reason, hint } => Self {
                reason,
                remedy: Some(hint.by(&NAMES)),
            },
        }
    }
}

/// What an error means that came beside the connections' own.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    Fault::of(error).into()
}

impl StoreError {
    /// The same, and of whom it is said.
    pub(super) fn at(self, whom: &impl std::fmt::Display) -> Self {
        match self {
            Self::Unavailable(message) => Self::Unavailable(format!("{whom}: {message}")),
            Self::Full(message) => Self::Full(format!("{whom}: {message}")),
            Self::Refused { reason, hint } => Self::Refused {
                reason: format!("{whom}: {reason}"),
                hint,
            },
            Self::Forgot | Self::ClaimLost => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(info: &str, words: &str) {
        let error = check(info).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn old_servers_others_and_evicting_ones_are_refused() {
        let fit =
            "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\nrole:master\r\nloading:0\r\n";
        check(fit).unwrap();
        refused(&fit.replace("7.0.15", "6.2.1"), "Redis 6.2.1");
        refused(
            &fit.replace("noeviction", "allkeys-lru"),
            "CONFIG SET maxmemory-policy noeviction",
        );
        refused(&fit.replace("master", "slave"), "replica");
        refused(&fit.replace("loading:0", "loading:1"), "loading");
        refused("", "Redis unknown");
        for (field, name) in [
            ("mvcc_depth:0", "KeyDB"),
            ("dragonfly_version:df-v1.34", "Dragonfly"),
        ] {
            refused(&format!("{fit}{field}\r\n"), name);
        }
        check(&format!(
            "{fit}server_name:valkey\r\nvalkey_version:9.1.2\r\n"
        ))
        .unwrap();
    }

    #[test]
    fn a_server_without_room_is_full_and_one_without_a_limit_never() {
        let info = |used: u64, most: u64| {
            format!("used_memory:{used}\r\nmem_not_counted_for_evict:10\r\nmaxmemory:{most}\r\n")
        };
        check_room(&info(110, 100)).unwrap();
        check_room(&info(500, 0)).unwrap();
        let fault = check_room(&info(111, 100)).unwrap_err();
        let error = StoreError::from(fault).to_string();
        assert!(error.contains("raise maxmemory"), "{error}");
    }
}
