//! Gathers counts from all partitions, within bounds.

use std::collections::{BTreeMap, BTreeSet};

use super::parameters::{Filter, Range, matches};
use super::turns::Pace;
use crate::event::{Minute, Partition, Partitions};
use crate::http::problem::Problem;
use crate::store::{Bucket, CountReader};

/// The most counts, or series, in one answer.
pub(super) const ANSWER_MAX: usize = 10_000;
/// The maximum number of counts read for an answer, including counts that do not match.
pub(super) const READ_MAX: u64 = 1_000_000;
/// The most open minutes in an answer: the newest.
pub(super) const OPEN_MINUTES_MAX: usize = 60;
/// The number of minutes whose sizes are read in a call.
pub(super) const SIZES_AT_ONCE: usize = 120;
/// The number of series whose sets are read in a call.
const LOOKED_AT: usize = 500;

/// Minute and series → unique, cumulative.
pub(super) type Counts = BTreeMap<(Minute, String), (u64, u64)>;

/// The counts, and from where.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) reading: &'a dyn CountReader,
    pub(super) partitions: Partitions,
    pub(super) filter: &'a Filter,
    pub(super) pace: Pace,
}

impl Source<'_> {
    /// Hands every sealed count of these minutes that matches to `take`, by partition; one may come twice, in a row of pages.
    pub(super) async fn sealed(
        &self,
        range: Range,
        mut take: impl FnMut(Partition, Minute, BTreeMap<String, (u64, u64)>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let minutes: Vec<Minute> = range.minutes().collect();
        let mut read = 0;
        for partition in self.partitions.iter() {
            for minutes in minutes.chunks(SIZES_AT_ONCE) {
                let sizes = self.pace.ask(self.reading.sealed_sizes(partition, minutes)).await?;
                read += sizes.iter().sum::<u64>();
                if read > READ_MAX {
                    return Err(too_much(READ_MAX, "counts to look through"));
                }
                let filled = minutes.iter().zip(sizes).filter(|(_, size)| *size > 0);
                for (&minute, _) in filled {
                    let mut found = BTreeMap::new();
                    let mut cursor = Some(0);
                    while let Some(at) = cursor {
                        let page = self
                            .pace
                            .ask(self.reading.sealed_page(Bucket { partition, minute }, at))
                            .await?;
                        let counts = page.items.into_iter();
                        let wanted = counts.filter(|it| matches(self.filter, &it.series));
                        found.extend(wanted.map(|it| (it.series, (it.unique, it.cumulative))));
                        cursor = page.next;
                    }
                    take(partition, minute, found)?;
                }
            }
        }
        Ok(())
    }

    /// The sealed counts of these minutes.
    pub(super) async fn minutes(&self, range: Range) -> Result<Counts, Problem> {
        let mut counts = Counts::new();
        let take = |_, minute, found: BTreeMap<String, (u64, u64)>| {
            counts.extend(found.into_iter().map(|(series, of)| ((minute, series), of)));
            bounded(counts.len())
        };
        self.sealed(range, take).await?;
        Ok(counts)
    }

    /// The sealed counts of these minutes by series: the greatest of the unique ones, for a user may be in several, and the sum
    /// of the cumulative ones.
    pub(super) async fn by_series(&self, range: Range) -> Result<Vec<(String, [u64; 2])>, Problem> {
        let mut all: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        let take = |_, _, found: BTreeMap<String, (u64, u64)>| {
            for (series, (unique, cumulative)) in found {
                let [max, events] = all.entry(series).or_default();
                *max = unique.max(*max);
                *events += cumulative;
            }
            Ok(())
        };
        self.sealed(range, take).await?;
        Ok(all.into_iter().collect())
    }

    /// The newest open minutes with their partitions, and how many are left out.
    async fn open(&self) -> Result<(BTreeMap<Minute, Vec<Partition>>, bool), Problem> {
        let mut open: BTreeMap<Minute, Vec<_>> = BTreeMap::new();
        for partition in self.partitions.iter() {
            // One more than is answered, to know that there are more.
            let most = OPEN_MINUTES_MAX + 1;
            for minute in self.pace.ask(self.reading.open_minutes(partition, most)).await? {
                open.entry(minute).or_default().push(partition);
            }
        }
        let left_out = open.len() > OPEN_MINUTES_MAX;
        while open.len() > OPEN_MINUTES_MAX {
            open.pop_first();
        }
        Ok((open, left_out))
    }

    async fn open_series(
        &self,
        partition: Partition,
        minute: Minute,
        read: &mut u64,
    ) -> Result<BTreeSet<String>, Problem> {
        let mut found = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page =
                self.pace.ask(self.reading.open_page(Bucket { partition, minute }, at)).await?;
            *read += page.items.len() as u64;
            if *read > READ_MAX {
                return Err(too_much(READ_MAX, "series to look through"));
            }
            let series = page.items.into_iter();
            found.extend(series.filter(|it| matches(self.filter, it)));
            cursor = page.next;
        }
        Ok(found)
    }

    /// Returns the counts of the sets so far, and whether minutes were left out.
    pub(super) async fn live(&self) -> Result<(Counts, bool), Problem> {
        let (open, left_out) = self.open().await?;
        let (mut counts, mut read) = (Counts::new(), 0);
        for (minute, partitions) in open {
            for partition in partitions {
                let series = self.open_series(partition, minute, &mut read).await?;
                bounded(counts.len() + series.len())?;
                let series: Vec<&str> = series.iter().map(String::as_str).collect();
                for series in series.chunks(LOOKED_AT) {
                    let asking = self.reading.open_counts(Bucket { partition, minute }, series);
                    let found = self.pace.ask(asking).await?;
                    let found = found.into_iter();
                    counts
                        .extend(found.map(|it| ((minute, it.series), (it.unique, it.cumulative))));
                }
            }
        }
        Ok((counts, left_out))
    }

    /// The series of these minutes, and of the open ones.
    pub(super) async fn series(&self, range: Range) -> Result<BTreeSet<String>, Problem> {
        let mut all = BTreeSet::new();
        let take = |_, _, found: BTreeMap<String, (u64, u64)>| {
            all.extend(found.into_keys());
            bounded(all.len())
        };
        self.sealed(range, take).await?;
        let mut read = 0;
        for (minute, partitions) in self.open().await?.0 {
            for partition in partitions {
                all.extend(self.open_series(partition, minute, &mut read).await?);
                bounded(all.len())?;
            }
        }
        Ok(all)
    }
}

fn bounded(length: usize) -> Result<(), Problem> {
    if length > ANSWER_MAX {
        return Err(too_much(ANSWER_MAX as u64, "counts or series to answer with"));
    }
    Ok(())
}

fn too_much(most: u64, what: &str) -> Problem {
    Problem::too_much(format!(
        "there are more than {most} {what}; ask by more tags, or for fewer minutes"
    ))
}
