//! [`PassthroughLoop`]: detects passthrough datagrams that come back from the `udp://` address in `passthrough.url`. If a sample taken
//! every second repeats, it sends a probe: datagrams of line feeds with random lengths, which receivers ignore and relays
//! forward. If these come back in order, the outlet is closed. A loop that takes longer than a second is not detected.

use super::Outlet;

/// Number of times the sample must repeat before a probe is sent.
const REPEATED_MIN: u32 = 3;
/// Number of datagrams in a probe. With fewer, a stranger could close the outlet by guessing their lengths.
const PROBE_DATAGRAMS: usize = 3;
const PROBE_BYTES_MAX: usize = 1024;
/// After this many seconds without a returned probe, the outlet is reopened.
const CLOSED_SECONDS: u32 = 3;

/// Detects a loop. Each reader has its own, because a relay's datagrams come back to a single reader.
#[derive(Debug, Default)]
pub(super) struct PassthroughLoop {
    sample: Vec<u8>,
    repeated: u32,
    /// The lengths of the datagrams in the last probe.
    probe: Option<[usize; PROBE_DATAGRAMS]>,
    /// How many of them have come back, in order.
    returned: usize,
    closed_seconds: u32,
}

impl PassthroughLoop {
    /// Checks a datagram without events. Returns whether it is part of a probe sent by this relay, which must not be forwarded.
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

    /// Starts the next second: takes a new sample, and sends a probe if the previous sample repeated or the outlet is closed.
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
