//! Which share of a minute's events each node saw.
//!
//! A minute is answered once it is counted in every partition, while its counts are kept: until then what the nodes saw has nothing
//! to be held against. Events that come late are seen and not counted.

use std::collections::{BTreeMap, BTreeSet};

use super::counts::{OPEN_MINUTES_MAX, SIZES_AT_ONCE, Source};
use super::parameters::Range;
use crate::event::{Minute, Partition};
use crate::http::problem::Problem;
use crate::store::Coverage;

/// How many different events a minute has, and what the nodes saw of it.
pub(super) type Covered = BTreeMap<Minute, (u64, Coverage)>;

impl Source<'_> {
    /// The closed minutes of these.
    pub(super) async fn coverage(&self, range: Range) -> Result<Covered, Problem> {
        let mut counted: BTreeMap<(usize, Minute), u64> = BTreeMap::new();
        self.sealed(range, |partition, minute, found| {
            let events = found.values().map(|(_, cumulative)| cumulative);
            counted.insert((partition.index(), minute), events.sum());
            Ok(())
        })
        .await?;
        let minutes: Vec<Minute> = range.minutes().collect();
        let (mut covered, mut open) = (Covered::new(), BTreeSet::new());
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
        // A series that is admitted and not recorded yet has nothing.
        covered.retain(|minute, (events, _)| *events > 0 && !open.contains(minute));
        Ok(covered)
    }

    /// Which of these minutes have sets in a partition, or may have.
    async fn open_of(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>, Problem> {
        let most = OPEN_MINUTES_MAX;
        let asking = self.reading.open_minutes(partition, most);
        let waiting = self.pace.ask(asking).await?;
        // There may be more, all of them older.
        let unknown = (waiting.len() >= most).then(|| waiting.last()).flatten();
        let mut open = Vec::new();
        for minute in minutes {
            if unknown.is_some_and(|oldest| minute < oldest) {
                open.push(*minute);
            } else if waiting.contains(minute) {
                // A minute that is counted waits for the output without sets.
                let asking = self.reading.open_page(partition, *minute, 0);
                let page = self.pace.ask(asking).await?;
                if !page.items.is_empty() || page.next.is_some() {
                    open.push(*minute);
                }
            }
        }
        Ok(open)
    }
}
