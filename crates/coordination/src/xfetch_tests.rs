//! Compares XFetch with the paper's formulas for the gap and for the time of the first refresh, allowing for sampling error.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

/// The Euler–Mascheroni constant γ, the mean of the standard Gumbel distribution.
const GAMMA: f64 = 0.577_215_664_9;

fn random() -> SmallRng {
    let seed = rand::random();
    eprintln!("seed={seed}");
    SmallRng::seed_from_u64(seed)
}

#[test]
fn the_smallest_draw_gives_a_finite_gap() {
    // The generator returns at most 1 − ε/2, so the smallest draw is ε/2.
    let longest = gap_us(Duration::from_secs(1), 1.0, f64::EPSILON / 2.0);
    assert!(longest.is_finite() && longest > 36e6, "{longest}");
    let shortest = gap_us(Duration::from_secs(1), 1.0, 1.0);
    assert!(shortest == 0.0 && shortest.is_sign_positive());
    let mut random = random();
    assert!((0..100_000).map(|_| draw(&mut random)).all(|u| u > 0.0 && u <= 1.0));
}

#[test]
fn refresh_is_due_from_expiry_minus_the_gap() {
    let cost = Duration::from_millis(1);
    let u = (-2.0_f64).exp();
    let due = |now| is_due(now, 10_000, cost, 1.0, u);
    // With this `u` and β = 1, the gap is 2Δ, which is 2000 µs.
    assert!(!due(7_990));
    assert!(due(8_010) && due(10_000) && due(20_000));
    // Without a cost or with β = 0, a refresh is due only at expiry.
    assert!(!is_due(9_999, 10_000, Duration::ZERO, 1.0, u));
    assert!(!is_due(9_999, 10_000, cost, 0.0, u));
    assert!(is_due(10_000, 10_000, cost, 0.0, u));
}

/// The mean, the variance, and the shares of gaps longer than 1, 2 and 3 means must each be within 4 standard errors of the
/// expected value.
#[test]
fn the_gap_is_exponential_with_mean_beta_delta() {
    let mut random = random();
    let count = 200_000_u32;
    for (cost_ms, beta) in [(50, 1.0), (200, 0.5), (3, 4.0)] {
        let cost = Duration::from_millis(cost_ms);
        let mean = cost.as_secs_f64() * 1e6 * beta;
        let gaps: Vec<f64> =
            (0..count).map(|_| gap_us(cost, beta, draw(&mut random)) / mean).collect();
        let average = gaps.iter().sum::<f64>() / f64::from(count);
        assert!((average - 1.0).abs() < 4.0 / f64::from(count).sqrt(), "{average}");
        let squares = gaps.iter().map(|gap| (gap - 1.0).powi(2)).sum::<f64>();
        let variance = squares / f64::from(count);
        // The variance of the sample variance is (μ4 − σ⁴)/n = 8/n.
        assert!((variance - 1.0).abs() < 4.0 * (8.0 / f64::from(count)).sqrt(), "{variance}");
        for times in [1.0, 2.0, 3.0_f64] {
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let share = gaps.iter().filter(|gap| **gap > times).count() as f64 / f64::from(count);
            let expected = (-times).exp();
            let error = (expected * (1.0 - expected) / f64::from(count)).sqrt();
            assert!((share - expected).abs() < 4.0 * error, "{share} beyond {times}");
        }
    }
}

/// Simulates reads that arrive as a Poisson process until one of them decides to refresh. Returns how many seconds before
/// expiry that is.
fn first_refresh_s(random: &mut SmallRng, reads_per_s: f64, cost_s: f64, beta: f64) -> f64 {
    // Start so long before expiry that a refresh is practically impossible.
    let from_s = cost_s * beta * ((reads_per_s * cost_s * beta).ln() + 14.0);
    let mut before_s = from_s;
    loop {
        before_s += draw(random).ln() / reads_per_s;
        let now_us = ((from_s - before_s) * 1e6).round();
        let expires_us = (from_s * 1e6).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        let (now_us, expires_us) = (now_us as u64, expires_us as u64);
        let cost = Duration::from_secs_f64(cost_s);
        if is_due(now_us, expires_us, cost, beta, draw(random)) {
            return before_s;
        }
    }
}

#[test]
fn the_first_refresh_is_as_early_as_the_paper_says() {
    let mut random = random();
    for (reads_per_s, cost_s, beta) in [(2000.0, 0.05, 1.0), (500.0, 0.2, 1.0), (1000.0, 0.1, 2.0)]
    {
        let count = 3000_u32;
        let sum: f64 =
            (0..count).map(|_| first_refresh_s(&mut random, reads_per_s, cost_s, beta)).sum();
        let mean = sum / f64::from(count);
        let scale: f64 = beta * cost_s;
        let expected = scale * ((reads_per_s * scale).ln() + GAMMA);
        // The standard deviation of a Gumbel distribution is its scale times π/√6.
        let error = scale * std::f64::consts::PI / 6.0_f64.sqrt() / f64::from(count).sqrt();
        eprintln!("first refresh {mean:.4} s before expiry; the paper predicts {expected:.4} s");
        assert!((mean - expected).abs() < 4.0 * error, "{mean} {expected}");
    }
}

/// Ten thousand consecutive reads of a value that takes 50 ms to compute and lives for 1 s.
#[test]
fn ten_thousand_readers_see_no_miss() {
    let mut random = random();
    let (cost, ttl_us, read_every_us) = (Duration::from_millis(50), 1_000_000, 500);
    let cost_us = 50_000;
    let (mut expires_us, mut ready_us, mut refreshes, mut misses) = (ttl_us, None, 0, 0);
    for read in 1..=10_000 {
        let now_us = read * read_every_us;
        if ready_us.is_some_and(|ready| ready <= now_us) {
            expires_us = ready_us.take().unwrap_or_default() + ttl_us;
        }
        misses += u32::from(now_us >= expires_us);
        let u = draw(&mut random);
        if ready_us.is_none() && is_due(now_us, expires_us, cost, 1.0, u) {
            ready_us = Some(now_us + cost_us);
            refreshes += 1;
        }
    }
    eprintln!("10 000 reads, {refreshes} refreshes, {misses} misses");
    assert_eq!(misses, 0);
    assert!((4..=8).contains(&refreshes), "{refreshes}");
}
