//! Computes the share of a minute's counted events that each node saw. A minute is included once every partition has counted
//! it, for as long as its counts are kept. Late events count as seen, but are not in the counts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::counts::{OPEN_MINUTES_MAX, SIZES_AT_ONCE, Source};
use super::parameters::Range;
use crate::event::{Minute, Partition};
use crate::http::problem::Problem;
use crate::store::{Bucket, Coverage};

impl Source<'_> {
    /// Returns the coverage of closed minutes in the range. Each minute lists all nodes that saw an event in any of them.
    pub(super) async fn coverage(&self, range: Range) -> Result<Vec<Value>, Problem> {
        let mut counted: BTreeMap<(usize, Minute), u64> = BTreeMap::new();
        self.sealed(range, |partition, minute, found| {
            let events = found.values().map(|(_, cumulative, _)| cumulative);
            counted.insert((partition.index(), minute), events.sum());
            Ok(())
        })
        .await?;
        let minutes: Vec<Minute> = range.windows(self.counted.every).collect();
        let mut covered: BTreeMap<Minute, (u64, Coverage)> = BTreeMap::new();
        let mut open = BTreeSet::new();
        for &partition in &self.counted.partitions {
            open.extend(self.open_of(partition, &minutes).await?);
            for minutes in minutes.chunks(SIZES_AT_ONCE) {
                let seen = self.pace.ask(self.reading.coverage(partition, minutes)).await?;
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
        // A minute has no events if its series have been admitted but their events have not been recorded yet.
        covered.retain(|minute, (events, _)| *events > 0 && !open.contains(minute));
        let names: BTreeSet<_> = covered.values().flat_map(|(_, nodes)| nodes.keys()).collect();
        let minutes = covered.iter().map(|(minute, (all, seen))| {
            let share = |node: &&String| {
                let events = seen.get(*node).copied().unwrap_or_default();
                #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
                let share = events as f64 / (*all).max(1) as f64;
                json!({ "node": node, "events": events, "share": share })
            };
            let nodes: Vec<_> = names.iter().map(share).collect();
            json!({ "minute": super::minute(minute.epoch_minutes()), "events": all, "nodes": nodes })
        });
        Ok(minutes.collect())
    }

    /// Returns which of these minutes are, or may be, open in a partition. An open minute has sets of uncounted events.
    async fn open_of(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>, Problem> {
        let most = OPEN_MINUTES_MAX;
        let waiting = self.pace.ask(self.reading.open_minutes(partition, most)).await?;
        // If the limit was reached, there may be more open minutes, all of them older than the last one returned.
        let unknown = (waiting.len() >= most).then(|| waiting.last()).flatten();
        let mut open = Vec::new();
        for minute in minutes {
            if unknown.is_some_and(|oldest| minute < oldest) {
                open.push(*minute);
            } else if waiting.contains(minute) {
                // A minute that has been sealed but not sent to an output is also listed, but has no sets.
                let bucket = Bucket { partition, minute: *minute };
                let page = self.pace.ask(self.reading.open_page(bucket, 0)).await?;
                if !page.items.is_empty() || page.next.is_some() {
                    open.push(*minute);
                }
            }
        }
        Ok(open)
    }
}
