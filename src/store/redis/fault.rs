//! Checks on each new connection whether the server is usable, and converts faults into diagnoses and store errors.

use redis_link::{Fault, FaultKind, info_field};

use crate::diagnosis::{Cause, Diagnosis};
use crate::store::StoreError;

/// The oldest major version of Redis with script flags, which allow minutes to be drained when memory is short.
const VERSION_MIN: u32 = 7;

/// Servers that use the Redis protocol but lack what the scripts need: a field of the INFO reply, the name and the reason.
const UNFIT: [(&str, &str, &str); 2] = [
    (
        "mvcc_depth",
        "KeyDB",
        "it runs Redis 6 scripts, which cannot drain minutes when memory is short",
    ),
    (
        "dragonfly_version",
        "Dragonfly",
        "its scripts may access only declared keys, but compact.lua reads key names from sets",
    ),
];

/// The percentage of a server's memory above which queries are rejected, so that there is room for events.
const QUESTIONS_PERCENT_MAX: u64 = 90;

/// Returns, from an INFO reply, the bytes in use that Redis compares with `maxmemory`, and `maxmemory` (0: no limit).
pub(super) fn memory(info: &str) -> (u64, u64) {
    let number = |name: &str| -> u64 {
        info_field(info, name).and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let used = number("used_memory").saturating_sub(number("mem_not_counted_for_evict"));
    (used, number("maxmemory"))
}

pub(super) fn check_room(info: &str) -> Result<(), Fault> {
    let (used, most) = memory(info);
    if most == 0 || used <= most {
        return Ok(());
    }
    Err(Fault::new(FaultKind::Full, format!("it uses {used} bytes, but maxmemory is {most}")))
}

pub(super) fn shortage(info: &str) -> Option<String> {
    let (used, most) = memory(info);
    let percent = used.saturating_mul(100).checked_div(most)?;
    (percent >= QUESTIONS_PERCENT_MAX).then(|| {
        format!(
            "a Redis server uses {percent}% of its maxmemory; at {QUESTIONS_PERCENT_MAX}% or more, only cached results are \
             returned, to leave memory for events; raise maxmemory, or try again later"
        )
    })
}

/// Returns a fault if the INFO reply shows that the server is not usable for events.
pub(super) fn check(info: &str) -> Result<(), Fault> {
    let field = |name: &str| info_field(info, name);
    let version = field("redis_version").unwrap_or("unknown");
    if let Some((_, name, why)) = UNFIT.iter().find(|(name, ..)| field(name).is_some()) {
        let reason = format!("the server is {name}, compatible with Redis {version}: {why}");
        return Err(Fault::new(FaultKind::Unfit, reason));
    }
    // Valkey reports 7.2.4 here, and its own version elsewhere.
    let major = version.split('.').next();
    let major = major.and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < VERSION_MIN) {
        let reason = format!("the server is Redis {version}");
        return Err(Fault::new(FaultKind::Unfit, reason));
    }
    redis_link::check(info)
}

impl From<Fault> for Diagnosis {
    fn from(fault: Fault) -> Self {
        let cause = match fault.kind {
            FaultKind::Away => Cause::RedisDown,
            FaultKind::Full => Cause::RedisFull,
            FaultKind::Replica => Cause::RedisReplica,
            FaultKind::TooFewReplicas => Cause::RedisTooFewReplicas,
            FaultKind::DiskFails => Cause::RedisDiskFails,
            FaultKind::ClusterDown => Cause::RedisClusterDown,
            FaultKind::Loading => Cause::RedisLoading,
            FaultKind::Credentials => Cause::RedisCredentials,
            FaultKind::Rights => Cause::RedisRights,
            FaultKind::ServerCertificate => Cause::RedisServerCertificate,
            FaultKind::ClientCertificate => Cause::RedisClientCertificate,
            FaultKind::ClientCertificateMissing => Cause::RedisClientCertificateMissing,
            FaultKind::IsTls => Cause::RedisIsTls,
            FaultKind::NoTls => Cause::RedisNoTls,
            FaultKind::NotTls => Cause::RedisNotTls,
            FaultKind::NotRedis => Cause::NotRedis,
            FaultKind::Unreachable => Cause::RedisUnreachable,
            FaultKind::NoCluster => Cause::RedisNoCluster,
            FaultKind::IsCluster => Cause::RedisIsCluster,
            FaultKind::NoSentinel => Cause::RedisNoSentinel,
            FaultKind::IsSentinel => Cause::RedisIsSentinel,
            FaultKind::MasterName => Cause::RedisMasterName,
            FaultKind::Database => Cause::RedisDatabase,
            FaultKind::Evicts => Cause::RedisEvicts,
            FaultKind::Unfit => Cause::RedisUnfit,
        };
        Self::new(cause, fault.reason).at(fault.server)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            FaultKind::Full => Self::Full(fault.into()),
            _ if fault.is_refusal() => Self::Refused(fault.into()),
            _ => Self::Unavailable(fault.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(info: &str, words: &str) {
        let error = StoreError::from(check(info).unwrap_err()).to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn unsuitable_servers_are_refused() {
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
        for (field, name) in
            [("mvcc_depth:0", "KeyDB"), ("dragonfly_version:df-v1.34", "Dragonfly")]
        {
            refused(&format!("{fit}{field}\r\n"), name);
        }
        check(&format!("{fit}server_name:valkey\r\nvalkey_version:9.1.2\r\n")).unwrap();
    }

    #[test]
    fn server_at_its_limit_is_full() {
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
