//! [`Observer`]: looks at the store and answers how everything is, at most once a second however many ask.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::answer::Status;
use super::reporter::Latest;
use super::scene::Expected;
use super::summary::{Looked, summarize};
use crate::event::Minute;
use crate::store::{StoreError, Survey, Surveyed};

/// How long a look may take in all.
const LOOKED_WITHIN: Duration = Duration::from_secs(6);
/// How long an answer is good for.
const CURRENT_FOR: Duration = Duration::from_secs(1);
/// A minute that still waits for so long after it should have been closed is an old one.
const OLD_AFTER: Duration = Duration::from_secs(300);
/// The minutes whose coverage is looked at, and how many of the last whole ones are left out: they still fill.
const MINUTES: i64 = 5;
const MINUTES_LEFT_OUT: i64 = 1;

/// See the module.
#[derive(Debug)]
pub struct Observer {
    store: Arc<dyn Survey>,
    expected: Expected,
    /// What this node said last, if it is one that asks.
    own: Option<Arc<Latest>>,
    current: Mutex<Option<(Instant, Arc<Status>)>>,
}

impl Observer {
    /// An observer of this store, beside a node or apart.
    #[must_use]
    pub fn new(store: Arc<dyn Survey>, expected: Expected, own: Option<Arc<Latest>>) -> Self {
        Self { store, expected, own, current: Mutex::new(None) }
    }

    /// How everything is.
    pub async fn status(&self) -> Arc<Status> {
        let mut current = self.current.lock().await;
        if let Some((at, status)) = &*current
            && at.elapsed() < CURRENT_FOR
        {
            return Arc::clone(status);
        }
        let status = Arc::new(self.look().await);
        *current = Some((Instant::now(), Arc::clone(&status)));
        status
    }

    async fn look(&self) -> Status {
        let last = Utc::now().timestamp().div_euclid(60) - MINUTES_LEFT_OUT;
        // And those beside them, which tell who was there.
        let minutes: Vec<_> =
            (last - MINUTES - 1..=last).filter_map(Minute::from_epoch_minutes).collect();
        let old_after = (self.expected.grace.max(self.expected.max_hold) + OLD_AFTER).as_nanos();
        let now_nanos = Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        let old_before = now_nanos.saturating_sub(i64::try_from(old_after).unwrap_or(i64::MAX));
        let looked = self.store.survey(&minutes, Minute::of_nanos(old_before));
        let looked = timeout(LOOKED_WITHIN, looked).await;
        let seen = looked.unwrap_or_else(|_| {
            let why = StoreError::unavailable("no answer in time");
            Surveyed::nothing(self.store.place(), &why)
        });
        summarize(&Looked {
            at: Utc::now(),
            own: self.own.as_ref().and_then(|own| own.get()),
            expected: &self.expected,
            seen,
        })
    }
}
