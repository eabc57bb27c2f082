//! [`Observer`]: surveys the store and returns the status, computed at most once a second.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::answer::{Expected, Status};
use super::reporter::Latest;
use super::summary::summarize;
use crate::event::Minute;
use crate::store::{StoreError, Survey, Surveyed};

/// The timeout of a survey.
const SURVEYED_WITHIN: Duration = Duration::from_secs(6);
/// How long a status is current.
const CURRENT_FOR: Duration = Duration::from_secs(1);
/// A minute that is not sealed this long after it should have closed is old.
const OLD_AFTER: Duration = Duration::from_secs(300);
/// The minutes whose coverage is compared, and how many of the last whole ones are left out because their events still arrive.
const MINUTES: i64 = 5;
const MINUTES_LEFT_OUT: i64 = 1;

/// Caches the status for all readers.
#[derive(Debug)]
pub(crate) struct Observer {
    store: Arc<dyn Survey>,
    expected: Expected,
    /// The report of this node, if a node observes.
    own: Option<Latest>,
    current: Mutex<Option<(Instant, Arc<Status>)>>,
}

impl Observer {
    pub(crate) fn new(store: Arc<dyn Survey>, expected: Expected, own: Option<Latest>) -> Self {
        Self { store, expected, own, current: Mutex::new(None) }
    }

    pub(crate) async fn status(&self) -> Arc<Status> {
        let mut current = self.current.lock().await;
        if let Some((at, status)) = &*current
            && at.elapsed() < CURRENT_FOR
        {
            return Arc::clone(status);
        }
        let status = Arc::new(self.observe().await);
        *current = Some((Instant::now(), Arc::clone(&status)));
        status
    }

    async fn observe(&self) -> Status {
        let last = Utc::now().timestamp().div_euclid(60) - MINUTES_LEFT_OUT;
        // The minutes before and after show which processes ran throughout.
        let minutes: Vec<_> =
            (last - MINUTES - 1..=last).filter_map(Minute::from_epoch_minutes).collect();
        let old_after = (self.expected.grace.max(self.expected.max_hold) + OLD_AFTER).as_nanos();
        let now_nanos = Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        let old_before = now_nanos.saturating_sub(i64::try_from(old_after).unwrap_or(i64::MAX));
        let survey = self.store.survey(&minutes, Minute::of_nanos(old_before));
        let seen = timeout(SURVEYED_WITHIN, survey).await.unwrap_or_else(|_elapsed| {
            let why = StoreError::unavailable("no answer in time");
            Surveyed::nothing(self.store.place(), &why)
        });
        let own = self.own.as_ref().and_then(|latest| latest.borrow().clone());
        let own = own.map(|(at, report)| (at.elapsed(), report));
        summarize(Utc::now(), own, &self.expected, seen)
    }
}
