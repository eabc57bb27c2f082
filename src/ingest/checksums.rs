//! What this host says of UDP checksums.
//!
//! The kernel counts a datagram whose checksum is wrong among the drops of its socket, beside those for which the receive
//! buffer had no room. Only the counters of the host (or of the network namespace) tell the two apart.

/// Datagrams with a wrong checksum that this host received since it started. `None` where it does not tell.
pub(super) fn wrong_checksums() -> Option<u64> {
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
        assert!(wrong_checksums().is_some(), "Linux tells");
    }
}
