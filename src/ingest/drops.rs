//! [`Drops`]: the datagrams that the kernel dropped before anybody read them.
//!
//! The kernel counts a datagram with a wrong checksum among the drops of its socket, beside those for which the receive
//! buffer had no room. Only the counters of the host (or of the network namespace) tell the two apart.

use socket2::Socket;

/// What a receiver has seen of a socket's drops.
#[derive(Debug)]
pub(super) struct Drops {
    /// The kernel's counter at the last look; `None` where another reader of the socket looks.
    pub(super) seen: Option<u32>,
    /// The datagrams with wrong checksums of the whole host then.
    wrong_seen: Option<u64>,
}

impl Drops {
    /// Counts from `seen` on, or not at all.
    pub(super) fn new(seen: Option<u32>) -> Self {
        let wrong_seen = wrong_checksums();
        Self { seen, wrong_seen }
    }

    /// How many datagrams the kernel dropped since the last call, and logs where a larger buffer does not help. The kernel's
    /// counter has 32 bits and wraps; the difference is right if this is called once a second. 0 where the kernel
    /// does not say.
    pub(super) fn take(&mut self, socket: &Socket, counter: Option<u32>) -> u32 {
        let before = self.seen;
        self.seen = before.and(counter).or(before);
        let drops = before.zip(self.seen);
        let drops = drops.map_or(0, |(before, seen)| seen.wrapping_sub(before));
        // Read in any case: what the host received before is none of the next drops.
        let wrong_before = std::mem::replace(&mut self.wrong_seen, wrong_checksums());
        let wrong = wrong_before.zip(self.wrong_seen);
        let wrong = wrong.map_or(0, |(before, seen)| seen.saturating_sub(before));
        let address = socket.local_addr().ok().and_then(|at| at.as_socket());
        let address = address.map(tracing::field::display);
        if drops > 0 && wrong >= u64::from(drops) {
            tracing::error!(
                address,
                datagrams = drops,
                wrong_checksums_of_host = wrong,
                "the kernel dropped datagrams, and this host received as many with wrong checksums: they are damaged on \
                 the way or sent wrongly, and a larger receive buffer does not help; check the senders and the network \
                 hardware"
            );
        }
        drops
    }
}

/// The datagrams with a wrong checksum that this host received since it started. `None` where it does not say.
fn wrong_checksums() -> Option<u64> {
    let read = |name| std::fs::read_to_string(format!("/proc/self/net/{name}"));
    let ipv6 = read("snmp6").ok().and_then(|text| in_snmp6(&text));
    Some(in_snmp(&read("snmp").ok()?)? + ipv6.unwrap_or_default())
}

/// A line of names, and one of values.
fn in_snmp(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "InCsumErrors")?;
    value.parse().ok()
}

/// A line for each name.
fn in_snmp6(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("Udp6InCsumErrors"))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_the_kernel_are_read() {
        let snmp = "Tcp: InErrs\nTcp: 5\nUdp: InDatagrams RcvbufErrors InCsumErrors MemErrors\n\
                    Udp: 100 7 3 0\nUdpLite: InCsumErrors\nUdpLite: 9\n";
        assert_eq!(in_snmp(snmp), Some(3));
        let snmp6 = "Udp6RcvbufErrors                \t4\nUdp6InCsumErrors                \t2\n";
        assert_eq!(in_snmp6(snmp6), Some(2));
        assert_eq!((in_snmp(""), in_snmp6("")), (None, None));
        assert!(wrong_checksums().is_some(), "Linux has these counters");
    }
}
