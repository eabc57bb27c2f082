//! Waits for a condition by polling until a deadline, never by a fixed sleep.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// The deadline for work that a healthy machine does within a second or two.
pub const SOON: Duration = Duration::from_secs(30);

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Looks until `look` answers `Ok`, and panics with its last `Err` when that takes longer than `within`.
#[track_caller]
pub fn eventually<T, E: Display>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        assert!(Instant::now() < deadline, "not within {within:?}: {what}; at last: {seen}");
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// `Ok(())` when `holds`, otherwise `seen` for the message of [`eventually`].
pub fn when<S>(holds: bool, seen: S) -> Result<(), S> {
    if holds { Ok(()) } else { Err(seen) }
}

/// Looks until `holds` for what `look` returns, which is returned; panics with the last one otherwise.
#[track_caller]
pub fn wait_for<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    eventually(what, SOON, || {
        let seen = look();
        if holds(&seen) { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
}
