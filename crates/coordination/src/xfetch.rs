//! When to compute a value again before it expires: the decision of XFetch. Pure: time and chance are arguments.
//!
//! A. Vattani, F. Chierichetti, K. Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", PVLDB 8(8), 2015.
//! Each read decides alone. With many reads the first refresh comes early, with few it
//! comes late: for `n` reads a second on average βΔ(ln(nβΔ) + 0.577) seconds before the expiry.

use std::time::Duration;

/// A number from the half-open interval (0, 1]: its logarithm is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// From a number of \[0, 1), as generators of random numbers give it; `None` for any other.
    #[must_use]
    pub fn new(uniform: f64) -> Option<Self> {
        // 0 must not occur, 1 may.
        (0.0..1.0).contains(&uniform).then_some(Self(1.0 - uniform))
    }

    /// Drawn at random.
    #[must_use]
    pub fn draw(random: &mut impl rand::Rng) -> Self {
        Self(1.0 - rand::RngExt::random::<f64>(random))
    }
}

/// How long before the expiry a read with this chance computes again: −Δ·β·ln(u), in microseconds. Exponentially
/// distributed with mean βΔ.
#[must_use]
pub fn gap_us(cost: Duration, beta: f64, Chance(u): Chance) -> f64 {
    // −0 for u = 1.
    -(cost.as_secs_f64() * 1e6 * beta * u.ln()) + 0.0
}

/// Whether to compute again: now − Δ·β·ln(u) ≥ expiry. Instants in microseconds of one clock.
#[must_use]
pub fn is_due(now_us: u64, expires_us: u64, cost: Duration, beta: f64, chance: Chance) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 µs, 285 years")]
    let left_us = expires_us.saturating_sub(now_us) as f64;
    gap_us(cost, beta, chance) >= left_us
}

#[cfg(test)]
#[path = "xfetch_tests.rs"]
mod tests;
