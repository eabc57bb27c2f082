//! Which share of a minute's events each node saw.
//!
//! A minute is answered once it is counted in every partition, while its counts are kept: until then there are no counts to
//! compare the nodes with. Events that come late are seen and not counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::counts::{OPEN_MINUTES_MAX, SIZES_AT_ONCE, Source};
use super::parameters::Range;
use crate::event::{Minute, Partition};
use crate::http::problem::Problem;
use crate::store::{Bucket, Coverage};

/// What each node saw of a minute.
#[derive(Debug, Serialize)]
pub(super) struct CoveredMinute {
    minute: String,
    /// All together, each counted once.
    events: u64,
    nodes: Vec<NodeShare>,
}

#[derive(Debug, Serialize)]
struct NodeShare {
    node: String,
    events: u64,
    /// Of all events.
    share: f64,
}

impl Source<'_> {
    /// The closed minutes of these. Each has all the nodes that saw an event of any.
    pub(super) async fn coverage(&self, range: Range) -> Result<Vec<CoveredMinute>, Problem> {
        let mut counted: BTreeMap<(usize, Minute), u64> = BTreeMap::new();
        self.sealed(range, |partition, minute, found| {
            let events = found.values().map(|(_, cumulative)| cumulative);
            counted.insert((partition.index(), minute), events.sum());
            Ok(())
        })
        .await?;
        let minutes: Vec<Minute> = range.minutes().collect();
        let mut covered: BTreeMap<Minute, (u64, Coverage)> = BTreeMap::new();
        let mut open = BTreeSet::new();
        for partition in self.partitions.iter() {
            open.extend(self.open_of(partition, &minutes).await?);
            for minutes in minutes.chunks(SIZES_AT_ONCE) {
                let asking = self.reading.coverage(partition, minutes);
                let seen = self.pace.ask(asking).await?;
                for (&minute, seen) in minutes.iter().zip(seen) {
                    let Some(events) = counted.get(&(partition.index(), minute)) else {
                        continue;
                    };
                    let (all, nodes) = covered.entry(minute).or_default();
                    *all += events;
                    for (node, events) in seen {
                        *nodes.entry(node).or_default() += events;
                    }
                }
            }
        }
        // A series that is admitted and not recorded yet has no events.
        covered.retain(|minute, (events, _)| *events > 0 && !open.contains(minute));
        let names: BTreeSet<_> = covered.values().flat_map(|(_, nodes)| nodes.keys()).collect();
        let minutes = covered.iter().map(|(minute, (events, nodes))| CoveredMinute {
            minute: super::minute(minute.epoch_minutes()),
            events: *events,
            nodes: names.iter().map(|&node| NodeShare::new(node, nodes, *events)).collect(),
        });
        Ok(minutes.collect())
    }

    /// Which of these minutes have sets in a partition, or may have.
    async fn open_of(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>, Problem> {
        let most = OPEN_MINUTES_MAX;
        let waiting = self.pace.ask(self.reading.open_minutes(partition, most)).await?;
        // There may be more, all of them older.
        let unknown = (waiting.len() >= most).then(|| waiting.last()).flatten();
        let mut open = Vec::new();
        for minute in minutes {
            if unknown.is_some_and(|oldest| minute < oldest) {
                open.push(*minute);
            } else if waiting.contains(minute) {
                // A minute that is counted waits for the output without sets.
                let page = self
                    .pace
                    .ask(self.reading.open_page(Bucket { partition, minute: *minute }, 0))
                    .await?;
                if !page.items.is_empty() || page.next.is_some() {
                    open.push(*minute);
                }
            }
        }
        Ok(open)
    }
}

impl NodeShare {
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
    fn new(node: &str, of: &Coverage, all: u64) -> Self {
        let events = of.get(node).copied().unwrap_or_default();
        Self { node: node.to_owned(), events, share: events as f64 / all.max(1) as f64 }
    }
}
