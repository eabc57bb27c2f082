//! [`Source`]: reads counts and series of minutes or windows from their partitions, and returns an error if there are too
//! many.

use std::collections::{BTreeMap, BTreeSet};

use super::parameters::{Counted, Filter, Range, matches};
use super::turns::Pace;
use crate::event::{Minute, Partition, Quality};
use crate::http::problem::Problem;
use crate::store::{Bucket, CountReader};

pub(super) const ANSWER_MAX: usize = 10_000;
/// Maximum number of counts read for a response, including counts that do not match the filter.
pub(super) const READ_MAX: u64 = 1_000_000;
/// Maximum number of open minutes in a response. If there are more, the response contains the newest.
pub(super) const OPEN_MINUTES_MAX: usize = 60;
pub(super) const SIZES_AT_ONCE: usize = 120;
const SETS_AT_ONCE: usize = 500;

/// The numbers of distinct users and events, and their quality.
pub(super) type Numbers = (u64, u64, Quality);
pub(super) type Counts = BTreeMap<(Minute, String), Numbers>;
pub(super) type BySeries = BTreeMap<String, Vec<(Minute, [u64; 2])>>;

#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) reading: &'a dyn CountReader,
    pub(super) counted: &'a Counted,
    pub(super) filter: &'a Filter,
    pub(super) pace: Pace,
}

impl Source<'_> {
    /// Reads the sealed counts in the range, and passes those that match the filter to `take`, which is called once per
    /// partition per minute. Returns an error if there are more than [`READ_MAX`] counts, or if `take` returns one.
    pub(super) async fn sealed(
        &self,
        range: Range,
        mut take: impl FnMut(Partition, Minute, BTreeMap<String, Numbers>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let minutes: Vec<Minute> = range.windows(self.counted.every).collect();
        let mut read = 0;
        for &partition in &self.counted.partitions {
            for minutes in minutes.chunks(SIZES_AT_ONCE) {
                let sizes = self.pace.ask(self.reading.sealed_sizes(partition, minutes)).await?;
                read += sizes.iter().sum::<u64>();
                if read > READ_MAX {
                    return Err(too_much(READ_MAX, "counts to read"));
                }
                let filled = minutes.iter().zip(sizes).filter(|(_, size)| *size > 0);
                for (&minute, _) in filled {
                    let mut found = BTreeMap::new();
                    let mut cursor = Some(0);
                    while let Some(at) = cursor {
                        let asking = self.reading.sealed_page(Bucket { partition, minute }, at);
                        let page = self.pace.ask(asking).await?;
                        for count in page.items {
                            if matches(self.filter, &count.series) {
                                let numbers = (count.unique, count.cumulative, count.quality);
                                found.insert(count.series, numbers);
                            }
                        }
                        cursor = page.next;
                    }
                    take(partition, minute, found)?;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn minutes(&self, range: Range) -> Result<Counts, Problem> {
        let mut counts = Counts::new();
        let take = |_, minute, found: BTreeMap<String, Numbers>| {
            counts.extend(found.into_iter().map(|(series, numbers)| ((minute, series), numbers)));
            bounded(counts.len())
        };
        self.sealed(range, take).await?;
        Ok(counts)
    }

    /// Returns the numbers of users and events of each series in each minute or, for a rollup, in each window, which has the
    /// key of its last minute.
    pub(super) async fn by_series(&self, range: Range) -> Result<BySeries, Problem> {
        let mut all = BySeries::new();
        let take = |_, minute, found: BTreeMap<String, Numbers>| {
            for (series, (unique, cumulative, _)) in found {
                all.entry(series).or_default().push((minute, [unique, cumulative]));
            }
            Ok(())
        };
        self.sealed(range, take).await?;
        Ok(all)
    }

    /// Returns the newest open minutes that begin in the range, each with the partitions in which it is open, and whether
    /// older ones are left out.
    pub(super) async fn open(
        &self,
        range: Range,
    ) -> Result<(BTreeMap<Minute, Vec<Partition>>, bool), Problem> {
        let mut open: BTreeMap<Minute, Vec<_>> = BTreeMap::new();
        for &partition in &self.counted.partitions {
            // Requesting one extra minute shows whether any are left out.
            let most = OPEN_MINUTES_MAX + 1;
            let found = self.pace.ask(self.reading.open_minutes(partition, most)).await?;
            for minute in found.into_iter().filter(|minute| range.has(self.counted.every, *minute))
            {
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
                return Err(too_much(READ_MAX, "series to read"));
            }
            let series = page.items.into_iter();
            found.extend(series.filter(|name| matches(self.filter, name)));
            cursor = page.next;
        }
        Ok(found)
    }

    /// Returns the current counts for the newest open minutes that begin in the range, and whether older minutes are left out.
    pub(super) async fn live(&self, range: Range) -> Result<(Counts, bool), Problem> {
        let (open, left_out) = self.open(range).await?;
        let (mut counts, mut read) = (Counts::new(), 0);
        for (minute, partitions) in open {
            for partition in partitions {
                let series = self.open_series(partition, minute, &mut read).await?;
                bounded(counts.len() + series.len())?;
                let series: Vec<&str> = series.iter().map(String::as_str).collect();
                for series in series.chunks(SETS_AT_ONCE) {
                    let asking = self.reading.open_counts(Bucket { partition, minute }, series);
                    for found in self.pace.ask(asking).await? {
                        let numbers = (found.unique, found.cumulative, found.quality);
                        counts.insert((minute, found.series), numbers);
                    }
                }
            }
        }
        Ok((counts, left_out))
    }

    pub(super) async fn series(&self, range: Range) -> Result<BTreeSet<String>, Problem> {
        let mut all = BTreeSet::new();
        let take = |_, _, found: BTreeMap<String, Numbers>| {
            all.extend(found.into_keys());
            bounded(all.len())
        };
        self.sealed(range, take).await?;
        let mut read = 0;
        for (minute, partitions) in self.open(Range::ALL).await?.0 {
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
        return Err(too_much(ANSWER_MAX as u64, "counts or series in the response"));
    }
    Ok(())
}

fn too_much(most: u64, items: &str) -> Problem {
    Problem::too_much(format!("there are more than {most} {items}; use more tags or fewer minutes"))
}
