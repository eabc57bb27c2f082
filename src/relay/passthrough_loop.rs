//! [`PassthroughLoop`]: detects a loop in which passthrough datagrams sent to the `udp://` address in `passthrough.url` come
//! back to this relay. Every second, one datagram is kept as a sample. If the sample is received again several times, the
//! relay sends a probe: datagrams of line feeds with random lengths, which servers ignore and relays forward. If the probe
//! comes back in order, the outlet is closed. A loop in which datagrams take longer than a second to return is not detected.

use super::Outlet;

/// Number of times the sample must be received again before a probe is sent.
const REPEATED_MIN: u32 = 3;
/// Number of datagrams in a probe. With fewer, an attacker could close the outlet by guessing their lengths.
const PROBE_DATAGRAMS: usize = 3;
const PROBE_BYTES_MAX: usize = 1024;
/// The outlet is reopened after this many seconds without a returned probe.
const CLOSED_SECONDS: u32 = 3;

/// Detects a passthrough loop. Each receiving thread has a detector, because all datagrams come back to the same thread.
#[derive(Debug, Default)]
pub(super) struct PassthroughLoop {
    sample: Vec<u8>,
    repeated: u32,
    /// The lengths of the datagrams in the last probe.
    probe: Option<[usize; PROBE_DATAGRAMS]>,
    /// Number of datagrams in the probe that have come back so far, in order.
    returned: usize,
    closed_seconds: u32,
}

impl PassthroughLoop {
    /// Compares a received datagram without events with the sample and the probe, and closes the outlet once the whole probe
    /// has come back. Returns whether the datagram is part of the probe, in which case it must not be forwarded.
    pub(super) fn is_probe(&mut self, datagram: &[u8], outlet: &Outlet) -> bool {
        if datagram.iter().any(|byte| *byte != b'\n') {
            if self.sample.is_empty() {
                self.sample.extend_from_slice(datagram);
            } else if self.sample == datagram {
                self.repeated += 1;
            }
            return false;
        }
        let Some(lengths) = self.probe else {
            return false;
        };
        if lengths[self.returned] != datagram.len() {
            self.returned = 0;
        }
        let is_own = lengths[self.returned] == datagram.len();
        self.returned += usize::from(is_own);
        if self.returned == PROBE_DATAGRAMS {
            self.probe = None;
            self.closed_seconds = CLOSED_SECONDS;
            outlet.set_loop(true);
        }
        is_own
    }

    /// Starts the next second: clears the sample so that the next datagram becomes the new one, reopens the outlet if no
    /// probe has come back recently, and sends a probe if the previous sample repeated or the outlet is closed.
    pub(super) fn begin_second(&mut self, outlet: &Outlet) {
        if self.closed_seconds > 0 {
            self.closed_seconds -= 1;
            if self.closed_seconds == 0 {
                outlet.set_loop(false);
            }
        }
        let is_due = self.repeated >= REPEATED_MIN || self.closed_seconds > 0;
        self.sample.clear();
        (self.repeated, self.returned) = (0, 0);
        self.probe = is_due.then(|| {
            let lengths = [(); PROBE_DATAGRAMS].map(|()| rand::random_range(1..=PROBE_BYTES_MAX));
            for length in lengths {
                outlet.send_probe(&[b'\n'; PROBE_BYTES_MAX][..length]);
            }
            lengths
        });
    }
}
