//! [`LossReporter`]: adds this process's losses to the loss record in the store. While the store is unavailable, they are
//! kept in memory and, if `input.spool_dir` is set, in a file for the next process. Recording an entry twice has no effect.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::diagnosis::{ByCause, LossCause};
use crate::event::Minute;
use crate::node::{Losses, Node, Throttle, files};
use crate::store::{Loss, Registry};

const WITHIN: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct LossReporter {
    record: Arc<dyn Registry>,
    losses: Arc<Losses>,
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inherited: Vec<Loss>,
    on_disk: Vec<Loss>,
    log_due: Throttle,
}

impl LossReporter {
    /// Creates a reporter. `file` keeps losses until they have been recorded in the store.
    pub(crate) fn new(
        record: Arc<dyn Registry>,
        losses: Arc<Losses>,
        file: Option<PathBuf>,
    ) -> Self {
        let log_due = Throttle::new(LOG_INTERVAL);
        let state = State { inherited: Vec::new(), on_disk: Vec::new(), log_due };
        Self { record, losses, file, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the losses that an earlier process left in the file. That process must no longer be using the file.
    pub(super) fn inherit(&self) {
        let inherited = self.file.as_deref().map(read).unwrap_or_default();
        let mut state = self.lock();
        state.on_disk.clone_from(&inherited);
        state.inherited = inherited;
    }

    /// Counts the increase in these totals since the last call as losses in the current minute.
    pub(crate) fn count(&self, now_nanos: i64, totals: impl IntoIterator<Item = (LossCause, u64)>) {
        let minute = Minute::of_nanos(now_nanos);
        for (cause, total) in totals {
            self.losses.count(cause, total, minute);
        }
    }

    pub(crate) fn count_node(&self, node: &Node, dropped: ByCause) {
        self.count(node.clock.now_nanos(), LossCause::ALL.into_iter().zip(dropped));
        node.log_losses();
    }

    pub(super) fn unrecorded(&self) -> Vec<Loss> {
        let mut losses = self.lock().inherited.clone();
        losses.extend(self.losses.unrecorded().into_iter().map(|((minute, cause), amount)| Loss {
            minute,
            cause: cause.label().to_owned(),
            process: self.record.identity().to_owned(),
            amount,
            acknowledged: 0,
        }));
        losses
    }

    pub(crate) async fn deliver(&self) {
        let (own, losses) = (self.losses.unrecorded(), self.unrecorded());
        if !losses.is_empty() {
            let recorded = timeout(WITHIN, self.record.lose(&losses)).await;
            if matches!(recorded, Ok(Ok(true))) {
                self.losses.recorded(&own);
                self.lock().inherited.clear();
            }
        }
        self.save().await;
    }

    pub(super) async fn read_unacknowledged(&self) {
        if let Ok(Ok(record)) = timeout(WITHIN, self.record.losses()).await {
            let all = merged(record, &self.unrecorded());
            let cause = |loss: &Loss| Some((LossCause::labelled(&loss.cause)?, loss.left()));
            self.losses.set_unacknowledged(all.iter().filter_map(cause));
        }
    }

    async fn save(&self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        let losses = self.unrecorded();
        let before = std::mem::replace(&mut self.lock().on_disk, losses.clone());
        if before == losses {
            return;
        }
        let path = file.display().to_string();
        let error = match timeout(WITHIN, spawn_blocking(move || write(&file, &losses))).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "the disk is too slow".to_owned(),
        };
        if self.lock().log_due.is_due() {
            tracing::warn!(
                path,
                error,
                "cannot write losses to the file that holds them while the store is unavailable; if this process exits before \
                 the store recovers, these losses are only in its log; {}",
                LossCause::SpoolFailed.remedy()
            );
        }
    }
}

pub(super) fn merged(mut record: Vec<Loss>, unrecorded: &[Loss]) -> Vec<Loss> {
    for loss in unrecorded {
        match record.iter_mut().find(|known| known.key() == loss.key()) {
            Some(known) => known.amount = known.amount.max(loss.amount),
            None => record.push(loss.clone()),
        }
    }
    record
}

fn read(file: &Path) -> Vec<Loss> {
    let parsed = files::read(file)
        .and_then(|bytes| Ok(serde_json::from_slice::<Vec<(String, u64)>>(&bytes)?));
    let losses = parsed.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::error!(path = %file.display(), %error, "cannot read the losses that an earlier process could not record; that process has also logged them");
        }
        Vec::new()
    });
    losses.iter().filter_map(|(key, amount)| Loss::of_key(key, *amount)).collect()
}

fn write(file: &Path, losses: &[Loss]) -> io::Result<()> {
    if losses.is_empty() {
        return match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let named: Vec<_> = losses.iter().map(|loss| (loss.key(), loss.amount)).collect();
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
    fn partly_recorded_loss_counts_once() {
        let mut known = loss("20161204:1118|late|a#1", 5);
        known.acknowledged = 5;
        let other = loss("20161204:1118|late|b#1", 2);
        let own = [loss("20161204:1118|late|a#1", 8), loss("20161204:1119|late|a#1", 1)];
        let all = merged(vec![known, other], &own);
        let left: Vec<_> = all.iter().map(Loss::left).collect();
        assert_eq!(left, [3, 2, 1]);
    }
}
