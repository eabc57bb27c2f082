//! The progress bar on standard error, when that is a terminal.

use std::fmt::Write;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

const KNOWN_END: &str = "{wide_bar} {human_pos}/{human_len} events  {rate}  ETA {eta}";
const UNKNOWN_END: &str = "{spinner} {human_pos} events  {rate}  {elapsed}";

/// The bar; it is wiped away when it is dropped, so that the closing line takes its place.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A bar up to this many events, or without an end.
    pub(super) fn new(events: Option<u64>, quiet: bool) -> Self {
        if quiet || !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(events, ProgressDrawTarget::stderr());
        let template = if events.is_some() { KNOWN_END } else { UNKNOWN_END };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("rate", write_rate));
        }
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Writes a line above the bar.
    pub(super) fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    /// Notes that this many more events were sent.
    pub(super) fn sent(&self, events: usize) {
        self.0.inc(events as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn write_rate(state: &ProgressState, out: &mut dyn Write) {
    // A cast of a float to an integer saturates, and the fraction is not wanted.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as said above")]
    let rate = state.per_sec().round() as u64;
    // Only a display.
    let _ = write!(out, "{}/s", HumanCount(rate));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_understood() {
        for template in [KNOWN_END, UNKNOWN_END] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
