//! The settings of the mechanisms, checked once.

use std::time::Duration;

use super::name::InvalidName;

/// The shortest lock: renewing takes a few round trips.
const LOCK_TTL_MIN: Duration = Duration::from_millis(10);
/// The longest lock: a crashed holder blocks the others for this time.
const LOCK_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const TTL_MIN: Duration = Duration::from_millis(1);
/// The longest time to live.
const TTL_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The most computations at a time.
const COMPUTATIONS_MAX: usize = 100_000;

/// A setting that would break a promise.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidSetting {
    /// A lock's time is out of bounds.
    #[error("a lock is held for 10ms to 24h, not {0:?}")]
    LockTtl(Duration),
    /// A value would go while the right to compute it is still taken.
    #[error("the lock's time, {lock:?}, must be shorter than the value's, {value:?}")]
    LockOutlivesValue {
        /// The lock's time.
        lock: Duration,
        /// The value's time.
        value: Duration,
    },
    /// A time to live, or the time of a computation, is 0 or too long.
    #[error("a time is 1ms to 366 days, not {0:?}")]
    Ttl(Duration),
    /// No computation may run, or too many.
    #[error("1 to {COMPUTATIONS_MAX} computations may run at a time, not {0}")]
    Computations(usize),
    /// β is negative or not a number.
    #[error("beta is a number from 0 on, not {0}")]
    Beta(f64),
    /// A name is too long or empty.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

/// The settings of [`ComputeOnce`](super::ComputeOnce).
#[derive(Debug, Clone, Copy)]
pub struct ComputeSettings {
    /// The time to live of the right to compute. When its process dies another one computes after this time at the latest; a
    /// live process renews it, so a computation may take longer.
    pub lock_ttl: Duration,
    /// The time to live of a value, unless its computation [sets](super::Fresh::kept_for) another.
    pub value_ttl: Duration,
    /// The time to live of a computation's error, unless it [sets](super::Failure::kept_for) another. Then the next caller
    /// computes again.
    pub error_ttl: Duration,
    /// The largest value, in bytes.
    pub value_bytes_max: usize,
    /// The longest duration of a computation. A longer one is stopped, and fails.
    pub computation_max: Duration,
    /// The maximum number of computations of this process at a time. Further ones wait for their turn.
    pub computations_max: usize,
    /// β of early refresh: with 1 a value is computed again as early before it expires as is best when costs are steady;
    /// greater is earlier; with 0 not before.
    pub beta: f64,
}

impl Default for ComputeSettings {
    /// 5 s, 60 s, 1 s, 1 MiB, 60 s, 64, 0.
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
        check_ttl(self.value_ttl)?;
        check_ttl(self.error_ttl)?;
        check_ttl(self.computation_max)?;
        if !(1..=COMPUTATIONS_MAX).contains(&self.computations_max) {
            return Err(InvalidSetting::Computations(self.computations_max));
        }
        if !(self.beta.is_finite() && self.beta >= 0.0) {
            return Err(InvalidSetting::Beta(self.beta));
        }
        if self.lock_ttl >= self.value_ttl {
            let (lock, value) = (self.lock_ttl, self.value_ttl);
            return Err(InvalidSetting::LockOutlivesValue { lock, value });
        }
        Ok(self)
    }
}

pub(super) fn check_lock_ttl(ttl: Duration) -> Result<(), InvalidSetting> {
    if (LOCK_TTL_MIN..=LOCK_TTL_MAX).contains(&ttl) {
        return Ok(());
    }
    Err(InvalidSetting::LockTtl(ttl))
}

/// The nearest time to live that there may be.
pub(super) fn bounded_ttl(ttl: Duration) -> Duration {
    ttl.clamp(TTL_MIN, TTL_MAX)
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), InvalidSetting> {
    if (TTL_MIN..=TTL_MAX).contains(&ttl) {
        return Ok(());
    }
    Err(InvalidSetting::Ttl(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_never_outlives_the_value() {
        let with = |lock_ms, value_ms| {
            let settings = ComputeSettings {
                lock_ttl: Duration::from_millis(lock_ms),
                value_ttl: Duration::from_millis(value_ms),
                ..ComputeSettings::default()
            };
            settings.checked().err()
        };
        assert_eq!(with(1000, 1001), None);
        for value_ms in [1000, 999] {
            let error = with(1000, value_ms).unwrap();
            assert!(matches!(error, InvalidSetting::LockOutlivesValue { .. }), "{error}");
        }
        assert_eq!(with(1, 5), Some(InvalidSetting::LockTtl(Duration::from_millis(1))));
        assert_eq!(with(10, 0), Some(InvalidSetting::Ttl(Duration::ZERO)));
    }
}
