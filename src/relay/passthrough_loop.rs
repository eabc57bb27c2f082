//! [`PassthroughLoop`]: detects passthrough datagrams that come back from the `udp://` address of `rest.url`: if a sample of each
//! second repeats, it sends a probe, datagrams of line feeds of random lengths, which receivers ignore and relays forward. If
//! they come back in order, the outlet is closed. A circle that takes longer than a second is not detected.

use super::Outlet;

/// The number of repetitions of the sample that starts a probe.
const REPEATED_MIN: u32 = 3;
/// The datagrams of a probe. With fewer, a stranger could close the outlet by guessing their lengths.
const PROBE_DATAGRAMS: usize = 3;
const PROBE_BYTES_MAX: usize = 1024;
/// The seconds without a returned probe after which the outlet is opened again.
const CLOSED_SECONDS: u32 = 3;

/// Detects a circle. Each reader has one: the datagrams of one relay come back to one reader.
#[derive(Debug, Default)]
pub(super) struct PassthroughLoop {
    sample: Vec<u8>,
    repeated: u32,
    /// The lengths of the datagrams of the last probe.
    probe: Option<[usize; PROBE_DATAGRAMS]>,
    /// The number of them that came back, in their order.
    returned: usize,
    closed_seconds: u32,
}

impl PassthroughLoop {
    /// Checks a datagram without events. Returns whether it is part of a probe of this relay, which is not forwarded.
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

    /// Starts another second: takes another sample, and sends a probe if the last one was repeated or the outlet is closed.
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
