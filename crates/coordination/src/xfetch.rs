//! XFetch: decides whether a read recomputes a value before it expires. A. Vattani, F. Chierichetti, K. Lowenstein, "Optimal
//! Probabilistic Cache Stampede Prevention", PVLDB 8(8), 2015. Each read decides independently. At `n` reads per second, the
//! first refresh occurs on average βΔ(ln(nβΔ) + 0.577) seconds before expiry.

use std::time::Duration;

use rand::{Rng, RngExt};

/// Draws a number from (0, 1], so that its logarithm is finite.
pub(super) fn draw(random: &mut impl Rng) -> f64 {
    1.0 - random.random::<f64>()
}

/// Returns −Δ·β·ln(u), how many microseconds before expiry to refresh: exponentially distributed with mean βΔ.
fn gap_us(cost: Duration, beta: f64, u: f64) -> f64 {
    // Avoids −0 for u = 1.
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
