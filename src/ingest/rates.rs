//! [`SourceRates`]: a token bucket per source address, in a fixed-size table shared by all listeners. A hash with a secret
//! key assigns each address to a set of buckets. A bucket is given to another source only when it is full again; spoofed
//! addresses therefore cannot evict active sources. If all buckets of a set are in use, further sources share one bucket.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Mutex;

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use crate::node::lock;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// The maximum burst of a source, expressed as the time in which its rate permits that many lines.
const BURST_NANOS: u64 = NANOS_PER_SECOND;
/// The number of sets in the table; a power of two.
const SETS: u64 = 8192;
const WAYS: usize = 8;

/// The token buckets of all sources. They take 1.6 MiB of memory.
#[derive(Debug)]
pub struct SourceRates {
    line_nanos: u64,
    began: Instant,
    hasher: DefaultHashBuilder,
    sets: Mutex<Box<[Set]>>,
}

#[derive(Debug, Clone, Default)]
struct Set {
    sources: [u128; WAYS],
    /// When each source's bucket will be full again, in nanoseconds since `began`.
    full: [u64; WAYS],
    /// When the bucket shared by all other sources of this set will be full again.
    shared: u64,
}

impl SourceRates {
    /// Allows each source `lines_per_second` lines per second, but at least one.
    #[must_use]
    pub fn new(lines_per_second: u32, now: Instant) -> Self {
        Self {
            line_nanos: NANOS_PER_SECOND / u64::from(lines_per_second.max(1)),
            began: now,
            hasher: DefaultHashBuilder::default(),
            sets: Mutex::new((0..SETS).map(|_| Set::default()).collect()),
        }
    }

    /// Takes up to `lines` tokens from a source's bucket. Returns their number, i.e. how many of the lines to accept.
    pub fn take(&self, source: IpAddr, lines: usize, now: Instant) -> usize {
        let now = now.saturating_duration_since(self.began).as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX / 2);
        let source = key(source);
        let place = usize::try_from(self.hasher.hash_one(source) % SETS).unwrap_or_default();
        let mut sets = lock(&self.sets);
        sets[place].take(source, lines, now, self.line_nanos)
    }
}

impl Set {
    fn take(&mut self, source: u128, lines: usize, now: u64, line_nanos: u64) -> usize {
        let mut places = self.sources.iter().zip(&self.full);
        let place = places
            .position(|(other, full)| *other == source && *full > now)
            .or_else(|| self.full.iter().position(|full| *full <= now));
        let full = match place {
            Some(place) => {
                self.sources[place] = source;
                &mut self.full[place]
            }
            None => &mut self.shared,
        };
        let from = (*full).max(now);
        let room = (now + BURST_NANOS).saturating_sub(from) / line_nanos.max(1);
        let taken = room.min(lines as u64);
        *full = from + taken * line_nanos;
        usize::try_from(taken).unwrap_or(lines)
    }
}

/// Returns the key of a source: its IPv4 address, even if mapped to IPv6, or the 64 network bits of its IPv6 address.
fn key(source: IpAddr) -> u128 {
    const IPV4: u128 = 1 << 64;
    match source.to_canonical() {
        IpAddr::V4(address) => IPV4 | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() >> 64,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use super::*;

    fn v4(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn source_gets_its_rate_with_a_burst_of_one_second() {
        let rates = SourceRates::new(100, Instant::now());
        let now = rates.began + Duration::from_secs(5);
        assert_eq!(rates.take(v4(1), 60, now), 60);
        assert_eq!(rates.take(v4(1), 60, now), 40);
        assert_eq!(rates.take(v4(1), 60, now), 0);
        assert_eq!(rates.take(v4(2), 60, now), 60, "a different source");
        assert_eq!(rates.take(v4(1), 60, now + Duration::from_millis(250)), 25);
        assert_eq!(rates.take(v4(1), 500, now + Duration::from_secs(60)), 100);
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_an_ipv4_address_is_one_in_either_form() {
        let rates = SourceRates::new(1, Instant::now());
        let now = rates.began;
        let v6 = |text: &str| IpAddr::V6(text.parse::<Ipv6Addr>().unwrap());
        assert_eq!(rates.take(v6("2001:db8:0:1::1"), 9, now), 1);
        assert_eq!(rates.take(v6("2001:db8:0:1:ffff::2"), 9, now), 0);
        assert_eq!(rates.take(v6("2001:db8:0:2::1"), 9, now), 1);
        assert_eq!(rates.take(v6("::ffff:10.0.0.1"), 9, now), 1);
        assert_eq!(rates.take(v6("::ffff:10.0.0.2"), 9, now), 1);
        assert_eq!(rates.take("10.0.0.2".parse().unwrap(), 9, now), 0);
        // This is not the mapped form of an IPv4 address.
        assert_eq!(rates.take(v6("::1"), 9, now), 1);
    }

    /// Many spoofed addresses send one line each. A source that keeps sending keeps its bucket, and gets exactly its rate. A
    /// new source finds room as soon as the other buckets are full again.
    #[test]
    fn made_up_addresses_evict_no_active_source() {
        let rates = SourceRates::new(10, Instant::now());
        let honest = v4(u32::MAX);
        let mut passed = 0;
        for step in 0..300_u32 {
            let now = rates.began + Duration::from_millis(10) * step;
            passed += rates.take(honest, 1, now);
            // Twenty times the size of the table in three seconds.
            for number in 0..4500 {
                rates.take(v4(step * 4500 + number), 1, now);
            }
        }
        // Ten immediately, then ten per second for three seconds.
        assert!((39..=40).contains(&passed), "{passed}");
        let now = rates.began + Duration::from_secs(3) + Duration::from_millis(100);
        assert_eq!(rates.take(v4(u32::MAX - 1), 99, now), 10);
    }

    #[test]
    fn excess_sources_share_a_bucket() {
        let mut set = Set::default();
        let line = NANOS_PER_SECOND / 10;
        for source in 1..=8 {
            assert_eq!(set.take(source, 10, 0, line), 10);
        }
        assert_eq!(set.take(9, 6, 0, line), 6);
        assert_eq!(set.take(10, 6, 0, line), 4);
        assert_eq!(set.take(1, 6, 0, line), 0);
        // A second later all buckets are full again, so any of them can be replaced.
        assert_eq!(set.take(11, 99, NANOS_PER_SECOND, line), 10);
        assert_eq!(set.take(8, 99, NANOS_PER_SECOND, line), 10);
    }
}
