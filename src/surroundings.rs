//! What a node cannot foresee: the time by its own clock, and chance.
//!
//! Both are handed in, so that a simulation can set the one and repeat the other.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The clock and the dice of one node.
pub struct Surroundings {
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
    chance: Mutex<StdRng>,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

impl Default for Surroundings {
    /// Those of this machine.
    fn default() -> Self {
        let now = || chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        Self::new(now, rand::random())
    }
}

impl Surroundings {
    /// A clock that tells nanoseconds since the epoch, and the seed of chance.
    #[must_use]
    pub fn new(clock: impl Fn() -> i64 + Send + Sync + 'static, seed: u64) -> Self {
        Self {
            clock: Box::new(clock),
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
        }
    }

    /// Nanoseconds since the epoch, by this node's clock: for stamps and ages, never for closing a minute.
    #[must_use]
    pub fn now_nanos(&self) -> i64 {
        (self.clock)()
    }

    /// A factor from 0.5 to 1 for a pause, so that nodes do not try in step.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        chance.random_range(0.5..1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_chance() {
        let jitters = |seed| {
            let surroundings = Surroundings::new(|| 0, seed);
            [(); 8].map(|()| surroundings.jitter())
        };
        assert_eq!(jitters(1).map(f64::to_bits), jitters(1).map(f64::to_bits));
        assert!(jitters(2).iter().all(|jitter| (0.5..1.0).contains(jitter)));
    }
}
