//! Waits for a condition by polling until a deadline, never by a fixed sleep.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// The deadline for work that a healthy machine does within a second or two.
pub const SOON: Duration = Duration::from_secs(30);

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Calls `look` until it returns `Ok`, and returns its value. Panics with the last `Err` if this takes longer than `within`.
#[track_caller]
pub fn eventually<T, E: Display>(
    condition: &str,
    within: Duration,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(Instant::now() < deadline, "not within {within:?}: {condition}; last seen: {seen}");
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// Returns `Ok(())` if the condition `holds`, and otherwise `Err(seen)`, which [`eventually`] shows in its message.
pub fn when<S>(holds: bool, seen: S) -> Result<(), S> {
    if holds { Ok(()) } else { Err(seen) }
}

/// Calls `look` until `holds` returns true for its result, and returns that result. Panics with the last result if this
/// takes longer than [`SOON`].
#[track_caller]
pub fn wait_for<T: Debug>(
    condition: &str,
    mut look: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    eventually(condition, SOON, || {
        let seen = look();
        if holds(&seen) { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
}
