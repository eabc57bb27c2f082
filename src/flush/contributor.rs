//! [`Contributor`]: the task that adds sealed minutes to the windows of the rollups. It announces a minute first, so that its
//! counts stay the same, and acknowledges it last, so that any node can repeat the step.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::Shared;
use super::claims::Inbox;
use crate::node::Heartbeat;
use crate::store::{Bucket, Claim, OutputName, StoreError, Union};

/// Number of minutes that are added at the same time.
const CONCURRENT: usize = 8;

#[derive(Debug)]
pub(super) struct Contributor {
    pub(super) shared: Arc<Shared>,
    pub(super) outbox: Arc<Inbox>,
}

impl Contributor {
    pub(super) async fn run(self, heartbeat: Heartbeat) {
        let shared = Arc::clone(&self.shared);
        let contributing = async {
            while !shared.stop.is_cancelled() {
                heartbeat.during(self.round()).await;
            }
        };
        shared.until_overdue(contributing).await;
        shared.finished.cancelled().await;
        shared.claims.release_all(Some(&OutputName::rollup())).await;
    }

    async fn round(&self) {
        let Shared { claims: held, stop, .. } = &*self.shared;
        let next = self.outbox.next(|claim| self.shared.is_recent(claim.minute));
        let Some(claims) = stop.run_until_cancelled(next).await else {
            return;
        };
        if !claims.is_empty() {
            self.shared.announce(&claims).await;
        }
        let calls: Vec<_> = claims
            .iter()
            .filter(|claim| held.has(claim))
            .map(async |claim| {
                if !stop.is_cancelled()
                    && let Err(error) = self.contribute(claim).await
                {
                    self.shared.claim_failed(claim, &error);
                }
            })
            .collect();
        stream::iter(calls).buffer_unordered(CONCURRENT).collect::<()>().await;
        held.release(&claims, Duration::ZERO).await;
        self.outbox.sent(None);
    }

    async fn contribute(&self, claim: &Claim) -> Result<(), StoreError> {
        let Shared { store, partitions, settings, .. } = &*self.shared;
        let counts = self.shared.unsent(claim).await?;
        let (mut windows, mut groups) = (Vec::new(), Vec::new());
        for (partition, rollup) in partitions.rollups() {
            let [_, minute] = rollup.every.window(claim.minute);
            let mut union = Union::new(rollup.limits);
            let of_series: Vec<_> =
                counts.iter().map(|counts| rollup.group(&counts.series)).collect();
            for (counts, group) in counts.iter().zip(&of_series) {
                if let Some(group) = group {
                    union.add(group, counts.cumulative, []);
                }
            }
            windows.push((Bucket { partition, minute }, union));
            groups.push(of_series);
        }
        let mut take = |place: usize, users: Vec<u64>| {
            for ((_, union), groups) in windows.iter_mut().zip(&groups) {
                if let Some(group) = &groups[place] {
                    union.add(group, 0, users.iter().copied());
                }
            }
        };
        store.sealed_users(claim, &counts, &mut take).await?;
        for (window, mut union) in windows {
            let frames = tokio::task::spawn_blocking(move || union.frames()).await;
            let frames = frames.map_err(|error| StoreError::unavailable(error.to_string()))?;
            if frames.is_empty() {
                continue;
            }
            if !store.contribute(window, claim, &frames).await? {
                tracing::warn!(
                    minute = claim.minute.shown(),
                    partition = claim.partition.index(),
                    window = window.minute.shown(),
                    "cannot add a minute to a window that is closed; its users are missing there, unless they were added before the \
                     store lost data"
                );
            }
        }
        let series: Vec<_> = counts.iter().map(|counts| &*counts.series).collect();
        if store.acknowledge(claim, &series, settings.lease).await? {
            self.shared.claims.remove(claim);
        }
        Ok(())
    }
}
