//! The contents of Redis, read from the documented keys, for comparison with the model.

use testing::lua_redis::keyspace::{Hash, Keyspace, Set, Sorted};

use super::event::series_name;
use crate::simulation::prelude::*;

pub(crate) const PREFIX: &str = "eds";
/// The key of the cluster-wide settings and the fingerprint key.
pub(crate) const SETTINGS: &str = "eds:settings";

pub(crate) struct State<'a> {
    keyspace: &'a Keyspace,
    tags: &'a [String],
}

#[derive(Debug)]
pub(crate) struct Stamp<'a> {
    pub(crate) node: &'a str,
    pub(crate) late: u64,
}

/// Returns the hash tag of each partition of series, which is the first number whose slot is in the partition's range, and
/// then of the windows of each rollup.
pub(crate) fn tags(partitions: u16, rollups: usize) -> Vec<String> {
    let stretch =
        |tag: &String| u32::from(redis_link::slot(tag.as_bytes())) * u32::from(partitions) / 16384;
    let tag = |partition: u16| {
        let mut tags = (0..).map(|number| format!("{{{PREFIX}:{number}}}"));
        tags.find(|tag| stretch(tag) == u32::from(partition)).unwrap()
    };
    let windows = (0..rollups).map(|rollup| format!("{{{PREFIX}:rollup:r{rollup}}}"));
    (0..partitions).map(tag).chain(windows).collect()
}

pub(crate) fn minute(place: Place) -> Minute {
    Minute::from_epoch_minutes(place.1).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

impl<'a> State<'a> {
    pub(crate) const fn new(keyspace: &'a Keyspace, tags: &'a [String]) -> Self {
        Self { keyspace, tags }
    }

    pub(crate) fn key(&self, partition: usize, kind: &str) -> String {
        format!("{}:{kind}", self.tags[partition])
    }

    pub(crate) fn minute_key(&self, place: Place, kind: &str) -> String {
        format!("{}:{}:{kind}", self.tags[place.0], minute(place))
    }

    fn suffix(kind: &str, output: Option<usize>) -> String {
        output.map_or_else(|| kind.to_owned(), |output| format!("{kind}:{}", output_name(output)))
    }

    fn hash(&self, key: &str) -> Option<&'a Hash> {
        self.keyspace.get(key)
    }

    fn has(&self, set: &str, member: &str) -> bool {
        let set = self.keyspace.get::<Set>(set);
        set.is_some_and(|set| set.contains(member.as_bytes()))
    }

    fn score(&self, sorted: &str, member: &str) -> Option<f64> {
        let sorted = self.keyspace.get::<Sorted>(sorted)?;
        sorted.get(member.as_bytes()).copied()
    }

    pub(crate) fn minutes(&self, partition: usize) -> Vec<i64> {
        let base = self.key(partition, "");
        let keys = self.keyspace.0.keys().map(|key| text(key));
        let names = keys.filter_map(|key| {
            let (date, rest) = key.strip_prefix(&base)?.split_once(':')?;
            let (of_day, _) = rest.split_once(':')?;
            format!("{date}:{of_day}").parse::<Minute>().ok()
        });
        let mut minutes: Vec<_> = names.map(Minute::epoch_minutes).collect();
        minutes.dedup();
        minutes
    }

    pub(crate) fn is_reachable(&self, place: Place) -> bool {
        let name = minute(place).to_string();
        let lists = ["minutes", "claims"].map(|list| self.key(place.0, list));
        lists.iter().any(|list| self.score(list, &name).is_some())
    }

    pub(crate) fn token(&self, place: Place, output: Option<usize>) -> Option<&'a str> {
        let name = minute(place).to_string();
        let claims = self.key(place.0, &Self::suffix("claims", output));
        self.score(&claims, &name)?;
        let tokens = self.hash(&self.key(place.0, &Self::suffix("tokens", output)));
        // There is no token if a node has released a claim without ever holding it.
        let token = tokens.and_then(|tokens| tokens.get(name.as_bytes()));
        Some(token.map_or("", |token| text(token)))
    }

    pub(crate) fn lags(&self, partition: usize, now_ms: i64) -> bool {
        let lagging = self.hash(&self.key(partition, "lagging"));
        let is_valid = |deadline: &Vec<u8>| text(deadline).parse::<i64>().unwrap() > now_ms;
        lagging.is_some_and(|nodes| nodes.values().any(is_valid))
    }

    /// Returns the closing number of a minute.
    pub(crate) fn closing(&self, place: Place) -> Option<f64> {
        self.score(&self.key(place.0, "closed"), &place.1.to_string())
    }

    /// Returns whether an output is known to have a minute, or whether all nodes that knew of the minute have gone.
    pub(crate) fn is_had(&self, place: Place) -> bool {
        self.closing(place).is_none_or(|number| number % 2.0 > 0.5)
    }

    pub(crate) fn stamps(&self, partition: usize) -> Vec<Stamp<'a>> {
        let stamps = self.hash(&self.key(partition, "stamps"));
        let stamp = |(node, entry): (&'a Vec<u8>, &'a Vec<u8>)| {
            let parts: Vec<_> = text(entry).split('|').collect();
            Stamp { node: text(node), late: parts[3].parse().unwrap() }
        };
        stamps.into_iter().flatten().map(stamp).collect()
    }

    pub(crate) fn late(&self, partition: usize, node: &str) -> u64 {
        let stamps = self.stamps(partition).into_iter();
        stamps.filter(|stamp| stamp.node == node).map(|stamp| stamp.late).sum()
    }

    pub(crate) fn series_with_sets(&self, place: Place) -> Vec<&'a str> {
        let series = self.keyspace.get::<Set>(&self.minute_key(place, "event_types"));
        series.into_iter().flatten().map(|name| text(name)).collect()
    }

    pub(crate) fn sets(&self, place: Place, series: u8) -> [Option<&'a Set>; 2] {
        ["unique_user", "cumulative_user"].map(|kind| {
            let suffix = format!("{kind}:{}", series_name(series));
            self.keyspace.get(&self.minute_key(place, &suffix))
        })
    }

    /// Returns how many series have been sealed of the cut of a minute's logs, or `None` if there is no cut.
    pub(crate) fn cut_done(&self, place: Place) -> Option<usize> {
        let done = self.hash(&self.minute_key(place, "cut"))?.get(b"done".as_slice())?;
        text(done).parse().ok()
    }

    pub(crate) fn counts(&self, place: Place, series: u8) -> Option<(u64, u64)> {
        let counts = self.written_counts(place, series)?.trim_start_matches('!');
        // An empty value means that the series has been admitted but not sealed.
        let (unique, cumulative) = counts.split_once(':')?;
        Some((unique.parse().unwrap(), cumulative.parse().unwrap()))
    }

    /// Returns whether the counts of a group in a window are marked as incomplete.
    pub(crate) fn is_incomplete(&self, place: Place, group: u8) -> bool {
        self.written_counts(place, group).is_some_and(|counts| counts.starts_with('!'))
    }

    fn written_counts(&self, place: Place, series: u8) -> Option<&'a str> {
        let counts = self.hash(&self.minute_key(place, "counts"))?;
        counts.get(series_name(series).as_bytes()).map(|counts| text(counts))
    }

    pub(crate) fn admitted(&self, place: Place) -> Vec<&'a str> {
        let counts = self.hash(&self.minute_key(place, "counts"));
        counts.into_iter().flatten().map(|(name, _)| text(name)).collect()
    }

    pub(crate) fn is_unsent(&self, place: Place, output: usize, series: u8) -> bool {
        let unsent = self.minute_key(place, &Self::suffix("unsent", Some(output)));
        self.has(&unsent, series_name(series))
    }

    pub(crate) fn is_quarantined(&self, place: Place, output: usize, series: u8) -> bool {
        let quarantine = self.hash(&self.key(place.0, &Self::suffix("quarantine", Some(output))));
        let entry = format!("{}:{}", minute(place), series_name(series));
        quarantine.is_some_and(|all| all.contains_key(entry.as_bytes()))
    }

    pub(crate) fn undone(&self) -> Option<&'a str> {
        let mut keys = self.keyspace.0.keys().map(|key| text(key));
        keys.find(|key| {
            let suffix = key.rsplit_once('}').map_or("", |(_, suffix)| suffix);
            suffix == ":minutes" || suffix.starts_with(":claims")
        })
    }

    pub(crate) fn left_over(&self) -> Option<&'a str> {
        let mut entries = self.keyspace.0.iter();
        let stays = entries.find(|(key, entry)| {
            let suffix = text(key).split_once("}:").map_or("", |(_, suffix)| suffix);
            let parts: Vec<_> = suffix.split(':').collect();
            match parts.as_slice() {
                [_, _, "counts" | "coverage"] | [_, _, "had", ..] => entry.expires_ms.is_none(),
                ["arrivals" | "idle" | "tokens", ..] | [_, _, _, ..] => true,
                _ => false,
            }
        });
        stays.map(|(key, _)| text(key))
    }
}
