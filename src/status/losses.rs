//! [`LossReporter`]: brings what this process lost into the record of losses in the store.
//!
//! While the store is away the losses stay with the process, and with an `input.spool_dir` also in a file there, so that the next
//! process adds what this one could not. An entry is a total, so whoever adds it again changes nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::relay_report::RelayTotals;
use crate::diagnosis::LossCause;
use crate::event::Minute;
use crate::node::{LedgerTotals, Losses, Throttle, files};
use crate::store::{Loss, LossRecord};
use crate::telemetry::Metrics;

/// How long the store, or the disk, may take.
const WITHIN: Duration = Duration::from_secs(1);
/// How often it is logged that the file cannot be written.
const LOG_INTERVAL: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub struct LossReporter {
    record: Arc<dyn LossRecord>,
    losses: Arc<Losses>,
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What an earlier process could not bring into the record.
    inherited: Vec<Loss>,
    /// What the file has.
    on_disk: Vec<Loss>,
    complaint: Throttle,
}

impl LossReporter {
    /// One that brings these losses into the record, and keeps in this file what the store does not take.
    #[must_use]
    pub fn new(record: Arc<dyn LossRecord>, losses: Arc<Losses>, file: Option<PathBuf>) -> Self {
        let state = State {
            inherited: Vec::new(),
            on_disk: Vec::new(),
            complaint: Throttle::new(LOG_INTERVAL),
        };
        Self { record, losses, file, state: Mutex::new(state) }
    }

    /// Takes up what an earlier process left in the file. The directory must be this process' alone by now.
    pub(super) fn inherit(&self) {
        let left = self.file.as_deref().map(read).unwrap_or_default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.on_disk.clone_from(&left);
        state.inherited = left;
    }

    /// Takes in what was lost since the last call, of these totals.
    pub fn count(&self, now_nanos: i64, totals: impl IntoIterator<Item = (LossCause, u64)>) {
        let minute = Minute::of_nanos(now_nanos);
        for (cause, total) in totals {
            self.losses.count(cause, total, minute);
        }
    }

    /// Returns what the record does not have.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<Loss> {
        let process = self.record.identity();
        let own = self.losses.unrecorded().into_iter();
        let own = own.map(|lost| Loss {
            minute: lost.minute,
            cause: lost.cause.label().to_owned(),
            process: process.to_owned(),
            amount: lost.amount,
            acknowledged: 0,
        });
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.inherited.iter().cloned().chain(own).collect()
    }

    /// Brings it into the record, or else to the disk.
    pub async fn deliver(&self) {
        let own = self.losses.unrecorded();
        let losses = self.unrecorded();
        if !losses.is_empty() {
            let delivered = timeout(WITHIN, self.record.lose(&losses)).await;
            if matches!(delivered, Ok(Ok(true))) {
                self.losses.recorded(&own);
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.inherited.clear();
            }
        }
        self.save().await;
    }

    /// Reads what is not acknowledged, for the metrics.
    pub async fn look(&self) {
        let Ok(Ok(record)) = timeout(WITHIN, self.record.losses()).await else {
            return;
        };
        let all = merged(record, &self.unrecorded());
        let left = all.iter().filter_map(|loss| {
            let cause = LossCause::labelled(&loss.cause)?;
            Some((cause, loss.left()))
        });
        self.losses.set_unacknowledged(left);
    }

    /// Keeps on disk what the record does not have, if that is not what is there.
    async fn save(&self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        let losses = self.unrecorded();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.on_disk == losses {
                return;
            }
            state.on_disk.clone_from(&losses);
        }
        let path = file.clone();
        let saved = timeout(WITHIN, spawn_blocking(move || write(&file, &losses))).await;
        let error = match saved {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "the disk takes too long".to_owned(),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.complaint.is_due() {
            tracing::warn!(
                path = %path.display(),
                error,
                "cannot write down losses that the store does not have yet; if this process ends before the store is back, \
                 they are in its log only; {}",
                LossCause::SpoolFailed.remedy()
            );
        }
    }
}

/// Returns what a node dropped, and its kernel.
pub fn node_losses(
    totals: &LedgerTotals,
    metrics: &Metrics,
) -> impl Iterator<Item = (LossCause, u64)> {
    let mut lost = totals.dropped;
    lost[LossCause::KernelDrops as usize] = metrics.sums(std::iter::empty()).kernel_drops;
    LossCause::ALL.into_iter().zip(lost)
}

/// Returns what a relay lost.
#[must_use]
pub const fn relay_losses(totals: &RelayTotals) -> [(LossCause, u64); 3] {
    [
        (LossCause::RelayNowhere, totals.nowhere),
        (LossCause::RelayRest, totals.rest_dropped),
        (LossCause::RelayKernelDrops, totals.kernel_drops),
    ]
}

/// The record with what is not in it yet.
#[must_use]
pub(super) fn merged(mut record: Vec<Loss>, unrecorded: &[Loss]) -> Vec<Loss> {
    for loss in unrecorded {
        let key = |it: &Loss| (it.minute, it.cause.clone(), it.process.clone());
        match record.iter_mut().find(|it| key(it) == key(loss)) {
            Some(known) => known.amount = known.amount.max(loss.amount),
            None => record.push(loss.clone()),
        }
    }
    record
}

fn read(file: &Path) -> Vec<Loss> {
    let read =
        || -> io::Result<Vec<(String, u64)>> { Ok(serde_json::from_slice(&files::read(file)?)?) };
    match read() {
        Ok(losses) => {
            let losses = losses.iter();
            losses.filter_map(|(key, amount)| Loss::of_key(key, *amount)).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::error!(path = %file.display(), %error, "cannot read which losses an earlier process could not record; its log has them");
            Vec::new()
        }
    }
}

/// Replaces the file; no losses, no file.
fn write(file: &Path, losses: &[Loss]) -> io::Result<()> {
    if losses.is_empty() {
        return match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let named: Vec<_> = losses.iter().map(|it| (it.key(), it.amount)).collect();
    files::replace(file, &serde_json::to_vec(&named)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(key: &str, amount: u64) -> Loss {
        Loss::of_key(key, amount).unwrap()
    }

    #[test]
    fn losses_on_disk_are_read_by_the_next_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("losses.json");
        assert_eq!(read(&file), []);
        let losses = [loss("20161204:1118|queue_full|a|b#1", 7), loss("earlier|late|a#2", 1)];
        write(&file, &losses).unwrap();
        assert_eq!(read(&file), losses);
        write(&file, &[]).unwrap();
        assert_eq!(read(&file), []);
        write(&file, &[]).unwrap();
        fs::write(&file, "{").unwrap();
        assert_eq!(read(&file), []);
    }

    #[test]
    fn entry_that_the_record_has_in_part_counts_once() {
        let mut known = loss("20161204:1118|late|a#1", 5);
        known.acknowledged = 5;
        let other = loss("20161204:1118|late|b#1", 2);
        let own = [loss("20161204:1118|late|a#1", 8), loss("20161204:1119|late|a#1", 1)];
        let all = merged(vec![known, other], &own);
        let left: Vec<_> = all.iter().map(Loss::left).collect();
        assert_eq!(left, [3, 2, 1]);
    }
}
