//! The clock of the arbiter in memory, which a test may set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Tells the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Microseconds since 1970.
    fn now_us(&self) -> u64;
}

/// The system's time when the process began, and monotonic from then on.
#[derive(Debug)]
pub struct SteadyClock {
    began: Instant,
    began_us: u64,
}

impl Default for SteadyClock {
    fn default() -> Self {
        let since_1970 =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), began_us: micros(since_1970) }
    }
}

impl Clock for SteadyClock {
    fn now_us(&self) -> u64 {
        self.began_us + micros(self.began.elapsed())
    }
}

/// Time that passes only when a test advances it.
#[derive(Debug, Default)]
pub struct SetClock(AtomicU64);

impl SetClock {
    /// At this instant, in microseconds since 1970.
    #[must_use]
    pub fn at(now_us: u64) -> Self {
        Self(AtomicU64::new(now_us))
    }

    /// Advances it.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(micros(span), Ordering::SeqCst);
    }

    /// Sets it, also back.
    pub fn set(&self, now_us: u64) {
        self.0.store(now_us, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Whole microseconds; what does not fit is as good as for ever.
pub(in super::super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}
