//! XFetch: decides whether a read recomputes a value before it expires, as described in A. Vattani, F. Chierichetti, K.
//! Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", PVLDB 8(8), 2015. At `n` reads per second of a value that
//! takes Δ seconds to compute, the first refresh occurs on average βΔ(ln(nβΔ) + 0.577) seconds before expiry.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Returns a random number in (0, 1]. 0 is excluded so that the logarithm is finite.
pub(super) fn draw(random: &mut impl Rng) -> f64 {
    1.0 - random.random::<f64>()
}

/// Returns how many microseconds before expiry a read with this `u` refreshes the value: −Δ·β·ln(u), where Δ is the cost.
fn gap_us(cost: Duration, beta: f64, u: f64) -> f64 {
    // Adding 0 turns −0, the result for u = 1, into 0.
    -(cost.as_secs_f64() * 1e6 * beta * u.ln()) + 0.0
}

/// Returns whether a read that drew `u` refreshes the value: now − Δ·β·ln(u) ≥ expiry.
pub(super) fn is_due(now_us: u64, expires_us: u64, cost: Duration, beta: f64, u: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 µs, 285 years")]
    let left_us = expires_us.saturating_sub(now_us) as f64;
    gap_us(cost, beta, u) >= left_us
}

#[cfg(test)]
#[path = "xfetch_tests.rs"]
mod tests;
