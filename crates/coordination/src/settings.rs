//! The settings of this crate, and their bounds.

use std::time::Duration;

use super::arbiter::Error;

/// The minimum time to live of a lock. Renewing a lock takes a few round trips, which must complete before the lock lapses.
const LOCK_TTL_MIN: Duration = Duration::from_millis(10);
/// The maximum time to live of a lock. A holder that dies may block all others for this long.
const LOCK_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const TTL_MIN: Duration = Duration::from_millis(1);
const TTL_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const COMPUTATIONS_MAX: usize = 100_000;

/// The error for a setting that is out of bounds or cannot be used. Its message says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSetting(pub(super) String);

impl From<Error> for InvalidSetting {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// The settings of [`ComputeOnce`](super::ComputeOnce).
#[derive(Debug, Clone, Copy)]
pub struct ComputeSettings {
    /// The time to live of the lease to compute a value, 5 s by default. If its holder dies, another caller takes over within
    /// this time.
    pub lock_ttl: Duration,
    /// The time to live of a value, 60 s by default, unless the computation [sets](super::Kept::kept_for) a different time.
    pub value_ttl: Duration,
    /// The time to live of an error, 1 s by default, unless the computation [sets](super::Kept::kept_for) a different time.
    pub error_ttl: Duration,
    /// The maximum size of a value in bytes, 1 MiB by default.
    pub value_bytes_max: usize,
    /// The time limit for a computation, 60 s by default. A computation that exceeds the limit is stopped and fails.
    pub computation_max: Duration,
    /// The maximum number of concurrent computations in this process, 64 by default. Further computations have to wait.
    pub computations_max: usize,
    /// The factor β for early refresh: 1 is optimal if computing the value always takes about the same time, and a greater
    /// factor refreshes the value earlier. 0, the default, disables early refresh.
    pub beta: f64,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self {
            lock_ttl: Duration::from_secs(5),
            value_ttl: Duration::from_secs(60),
            error_ttl: Duration::from_secs(1),
            value_bytes_max: 1 << 20,
            computation_max: Duration::from_secs(60),
            computations_max: 64,
            beta: 0.0,
        }
    }
}

impl ComputeSettings {
    pub(super) fn checked(self) -> Result<Self, InvalidSetting> {
        check_lock_ttl(self.lock_ttl)?;
        for ttl in [self.value_ttl, self.error_ttl, self.computation_max] {
            check_ttl(ttl)?;
        }
        let Self { lock_ttl, value_ttl, computations_max, beta, .. } = self;
        check((1..=COMPUTATIONS_MAX).contains(&computations_max), || {
            format!(
                "computations_max must be between 1 and {COMPUTATIONS_MAX}, not {computations_max}"
            )
        })?;
        check(beta.is_finite() && beta >= 0.0, || {
            format!("beta must be a finite number of at least 0, not {beta}")
        })?;
        check(lock_ttl < value_ttl, || {
            format!("lock_ttl ({lock_ttl:?}) must be less than value_ttl ({value_ttl:?})")
        })?;
        Ok(self)
    }
}

fn check(is_valid: bool, message: impl FnOnce() -> String) -> Result<(), InvalidSetting> {
    if is_valid { Ok(()) } else { Err(InvalidSetting(message())) }
}

pub(super) fn check_lock_ttl(ttl: Duration) -> Result<(), InvalidSetting> {
    check((LOCK_TTL_MIN..=LOCK_TTL_MAX).contains(&ttl), || {
        format!("a lock's time to live must be between 10ms and 24h, not {ttl:?}")
    })
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), InvalidSetting> {
    check(bounded_ttl(ttl) == ttl, || {
        format!("a duration must be between 1ms and 366 days, not {ttl:?}")
    })
}

pub(super) fn bounded_ttl(ttl: Duration) -> Duration {
    ttl.clamp(TTL_MIN, TTL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ttl_is_below_value_ttl() {
        let with = |lock_ms, value_ms| {
            let settings = ComputeSettings {
                lock_ttl: Duration::from_millis(lock_ms),
                value_ttl: Duration::from_millis(value_ms),
                ..ComputeSettings::default()
            };
            settings.checked().err().map(|error| error.to_string())
        };
        assert_eq!(with(1000, 1001), None);
        for (lock_ms, value_ms, message) in [
            (1000, 1000, "lock_ttl (1s) must be less than value_ttl (1s)"),
            (1000, 999, "lock_ttl (1s) must be less than value_ttl (999ms)"),
            (1, 5, "a lock's time to live must be between 10ms and 24h, not 1ms"),
            (10, 0, "a duration must be between 1ms and 366 days, not 0ns"),
        ] {
            assert_eq!(with(lock_ms, value_ms).as_deref(), Some(message));
        }
    }
}
