//! Windows of rollups. Each sealed minute of each partition adds a list with the users of its groups to its windows, once. A
//! list is uploaded first and then added in one step, so that a failed attempt changes nothing. As lists accumulate, they are
//! folded into one without duplicates. A window is sealed like a minute.

use ::redis::{Cmd, cmd, pipe};
use async_trait::async_trait;

use super::RedisStore;
use super::counted::{Cuts, Length, Taken, lengths, log_key};
use super::gateway::{At, DRAINING};
use super::keys::{Place, Scope};
use super::layout::OpenMinutes;
use super::millis;
use super::scripts::{SHARED, Source, scripts};
use crate::event::{Minute, Partition};
use crate::store::{
    Bucket, Claim, ClaimRequest, Compaction, Page, Result, SealRequest, SeriesCounts, StoreError,
    Union, off_runtime,
};

scripts! {
    COMMIT Commit = "commit.lua"() Partition[minutes arrivals witness closed] Minute[logs counts]
        => name minute base (log frames source offset mark_ms open_mark_ms);
    FOLD Fold = "fold.lua"() Minute[logs cut] => base (log frames);
    SETTLE Settle = SHARED + "settle.lua"() Partition[minutes claims witness closed stamps lagging]
        => node minute (known_epoch known_stamp grace_ms max_hold_ms first first_date first_number last_date last_number);
}

/// The time to live of a list that has not been added to its window.
const UPLOAD_MS: u64 = 600_000;
/// The time to live of the marks of a window that has users and has not been sealed.
const OPEN_MARK_MS: u64 = 90 * 86_400_000;
/// Whether to fold lists is decided whenever their number is a multiple of this, or of twice the number of partitions: the
/// lists of one minute have hardly any user twice.
const FOLD_EVERY: u64 = 16;
/// The maximum number of lists in addition to the largest one.
const LISTS_MAX: usize = 256;
/// Lists are folded into the largest one when their total size is at least one in this many parts of its size.
const FOLD_SHARE: u64 = 8;

#[derive(Debug)]
pub(super) struct Windows {
    cuts: Cuts,
    /// The counts of open windows, each with the lists that they were read from.
    read: Taken<(Vec<Length>, Vec<SeriesCounts>)>,
}

impl Windows {
    pub(super) fn new() -> Self {
        Self { cuts: Cuts::new(), read: Taken::new() }
    }

    /// Passes the current counts of an open window to `take`. A list never changes, so they are read again only if the window
    /// has other lists than the last time.
    async fn open<T>(&self, at: At<'_>, take: impl FnOnce(&[SeriesCounts]) -> T) -> Result<T> {
        let mut lists = lengths(at).await?;
        lists.sort_unstable();
        let known = self.read.take(&at.bucket()).filter(|(of, _)| *of == lists);
        let (lists, counts) = match known {
            Some(known) => known,
            None => (lists.clone(), read(at, lists).await?),
        };
        let taken = take(&counts);
        self.read.put(at.bucket(), (lists, counts));
        Ok(taken)
    }
}

#[async_trait]
impl OpenMinutes for Windows {
    fn to_seal(&self) -> &'static str {
        "logs"
    }

    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction> {
        let mut missing = 0;
        let count = async |cut: Vec<Length>| {
            let mut counts = read(at, cut).await?;
            for (partition, minutes) in request.sources {
                missing += lacks(at, *partition, minutes).await?.len() as u64;
                let mark = mark_key(at, *partition);
                at.ask::<()>(cmd("PEXPIRE").arg(mark).arg(mark_ms(at)).take()).await?;
            }
            for counts in &mut counts {
                counts.quality.is_incomplete = missing > 0;
            }
            let events = counts.iter().map(|counts| counts.cumulative).sum();
            Ok((counts, events))
        };
        let done = self.cuts.seal(at, claim, request, count).await?;
        Ok(Compaction { missing, ..done })
    }

    async fn open_page(&self, at: At<'_>, cursor: u64) -> Result<Page<String>> {
        let series = |counts: &SeriesCounts| counts.series.clone();
        self.open(at, |counts| Page::cut(counts.iter().map(series), cursor)).await
    }

    async fn open_counts(&self, at: At<'_>, series: &[&str]) -> Result<Vec<SeriesCounts>> {
        let find = |counts: &[SeriesCounts]| {
            let place = |name: &&str| counts.binary_search_by(|counts| (*counts.series).cmp(name));
            series.iter().filter_map(|name| Some(counts[place(name).ok()?].clone())).collect()
        };
        self.open(at, find).await
    }
}

/// Returns which of these minutes of a partition have not been added to the window of this place.
pub(super) async fn lacks(
    at: At<'_>,
    partition: Partition,
    minutes: &[Minute],
) -> Result<Vec<Minute>> {
    let Some([first, _]) = window_of(at).filter(|_| !minutes.is_empty()) else {
        return Ok(Vec::new());
    };
    let key = mark_key(at, partition);
    let bits: Option<Vec<u8>> = at.ask(Cmd::get(key)).await?;
    let bits = bits.unwrap_or_default();
    let is_lacking = |minute: &Minute| {
        let offset = usize::try_from(minute.epoch_minutes() - first.epoch_minutes());
        let offset = offset.unwrap_or(usize::MAX);
        let byte = bits.get(offset / 8).copied().unwrap_or_default();
        byte & (0x80 >> (offset % 8)) == 0
    };
    Ok(minutes.iter().copied().filter(is_lacking).collect())
}

/// Returns the time to live of the marks of a window that is sealed or has no users: longer than any call can be delayed.
fn mark_ms(at: At<'_>) -> u64 {
    let minutes =
        window_of(at).map_or(0, |[first, last]| last.epoch_minutes() - first.epoch_minutes() + 1);
    millis(at.gateway.process.retention) + minutes.unsigned_abs() * 60_000
}

/// Returns the name of a partition in the keys of windows.
fn source_name(at: At<'_>, partition: Partition) -> &str {
    at.gateway.keys(partition).tag.trim_matches(['{', '}'])
}

/// Returns the key with a bit for each minute of a partition that has been added to the window of this place.
fn mark_key(at: At<'_>, partition: Partition) -> String {
    at.place.key(Scope::Minute, "had:") + source_name(at, partition)
}

/// Returns the first and the last minute of the window of this place.
fn window_of(at: At<'_>) -> Option<[Minute; 2]> {
    let rollup = at.gateway.partitions.rollup(at.partition);
    rollup.zip(at.place.minute).map(|(rollup, last)| rollup.every.window(last))
}

async fn read(at: At<'_>, lists: Vec<Length>) -> Result<Vec<SeriesCounts>> {
    let mut union = merged(at, &lists).await?;
    let counts = move || {
        union.settle();
        union.counts().collect()
    };
    Ok(off_runtime(counts).await)
}

async fn merged(at: At<'_>, lists: &[Length]) -> Result<Union> {
    let rollup = at.gateway.partitions.rollup(at.partition);
    let rollup = rollup.ok_or_else(|| StoreError::unavailable("not a partition of windows"))?;
    let mut union = Union::new(rollup.limits);
    for (name, length) in lists {
        let list = log_key(at.place, name);
        for place in 0..*length {
            let range = cmd("LRANGE").arg(&list).arg(place).arg(place).take();
            let frames: Vec<Vec<u8>> = at.ask(range).await?;
            let [frame] = &frames[..] else {
                let why = format!("list {list} has only {place} of {length} frames");
                return Err(StoreError::unavailable(why));
            };
            if let Err(error) = union.read(frame) {
                tracing::error!(list, place, %error, "part of a frame is not counted");
            }
        }
    }
    Ok(union)
}

/// Uploads frames as a new list, which expires unless it is added to its window. Returns its name, which includes its size.
async fn upload(at: At<'_>, frames: &[Vec<u8>]) -> Result<String> {
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let name = format!("{bytes}.{:016x}", rand::random::<u64>());
    let list = log_key(at.place, &name);
    for frame in frames {
        let mut push = pipe();
        push.rpush(&list, frame).ignore();
        push.cmd("PEXPIRE").arg(&list).arg(UPLOAD_MS).ignore();
        at.ask::<()>(push).await?;
    }
    Ok(name)
}

/// Returns the size of a list with this name in bytes.
pub(super) fn size(name: &str) -> u64 {
    name.split_once('.').and_then(|(bytes, _)| bytes.parse().ok()).unwrap_or_default()
}

/// Merges the lists of a window if the largest list, without the others, would take much less memory.
async fn fold(at: At<'_>) -> Result<()> {
    let mut lists = lengths(at).await?;
    lists.sort_by_key(|(name, _)| std::cmp::Reverse(size(name)));
    let others: u64 = lists.iter().skip(1).map(|(name, _)| size(name)).sum();
    let largest = lists.first().map_or(0, |(name, _)| size(name));
    if FOLD_SHARE * others < largest {
        if lists.len() <= LISTS_MAX {
            return Ok(());
        }
        lists.remove(0);
    }
    let mut union = merged(at, &lists).await?;
    let frames = off_runtime(move || union.frames()).await;
    let log = upload(at, &frames).await?;
    let list = log_key(at.place, &log);
    let mut script = Fold { log, frames: frames.len() }.at(&at.place);
    script.arg(lists.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    let is_replaced: bool = at.ask(script).await?;
    if is_replaced { Ok(()) } else { at.ask(Cmd::unlink(list)).await }
}

impl RedisStore {
    /// Implements [`Draining::contribute`](crate::store::Draining::contribute).
    pub(super) async fn add_to_window(
        &self,
        window: Bucket,
        source: Bucket,
        frames: &[Vec<u8>],
    ) -> Result<bool> {
        let at = self.gateway.at(window.partition, DRAINING).minute(window.minute);
        let Some(rollup) = self.gateway.partitions.rollup(window.partition) else {
            return Ok(false);
        };
        let [first, _] = rollup.every.window(window.minute);
        if first < self.gateway.agreement.rollup_from(&rollup.name) {
            // The minutes that were sealed before the rollup was added are missing in this window.
            return Ok(true);
        }
        if lacks(at, source.partition, &[source.minute]).await?.is_empty() {
            return Ok(true);
        }
        let script = Commit {
            log: upload(at, frames).await?,
            frames: frames.len(),
            source: source_name(at, source.partition),
            offset: source.minute.epoch_minutes() - first.epoch_minutes(),
            mark_ms: mark_ms(at),
            open_mark_ms: OPEN_MARK_MS,
        };
        let lists: Option<i64> = at.ask(script.at(&at.place)).await?;
        let lists =
            lists.ok_or_else(|| StoreError::unavailable("an uploaded list is incomplete"))?;
        let fold_every = FOLD_EVERY.max(2 * u64::from(self.gateway.partitions.count()));
        if u64::try_from(lists).is_ok_and(|lists| lists > 0 && lists % fold_every == 0)
            && let Err(error) = fold(at).await
        {
            tracing::debug!(%error, "cannot fold the lists of a window; a later contribution will");
        }
        Ok(lists >= 0)
    }

    /// Implements [`Draining::settle`](crate::store::Draining::settle).
    pub(super) async fn close_window(
        &self,
        partition: Partition,
        [first, last]: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>> {
        let at = self.gateway.at(partition, DRAINING).minute(last);
        // Names of claimed minutes are compared by date and by number.
        let [(first_date, first_number), (last_date, last_number)] = [first, last].map(|minute| {
            let name = minute.to_string();
            let (date, number) = name.split_once(':').unwrap_or_default();
            (date.to_owned(), number.to_owned())
        });
        let script = Settle {
            known_epoch: request.known.epoch,
            known_stamp: request.known.stamp,
            grace_ms: millis(request.grace),
            max_hold_ms: millis(request.max_hold),
            first: first.epoch_minutes(),
            first_date,
            first_number,
            last_date,
            last_number,
        };
        let settled: Option<(u8, Vec<i64>)> = at.ask(script.at(&at.place)).await?;
        let (state, minutes) = settled.ok_or_else(|| self.gateway.forgot(partition))?;
        let minutes = minutes.into_iter().filter_map(Minute::from_epoch_minutes);
        Ok((state == 2).then(|| minutes.collect()))
    }

    pub(super) fn layout_of(&self, partition: Partition) -> &dyn OpenMinutes {
        match self.gateway.partitions.rollup(partition) {
            Some(_) => &self.windows,
            None => &*self.layout,
        }
    }
}
