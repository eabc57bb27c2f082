//! [`Contributor`]: the task that adds sealed minutes to the windows of the rollups. It announces a minute first, so that its
//! counts stay the same, and acknowledges it last, so that any node can repeat the step.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::Shared;
use super::claims::Inbox;
use super::contributions::Contributions;
use crate::event::{Minute, Partition, Rollup};
use crate::node::Heartbeat;
use crate::store::{Bucket, Claim, OutputName, StoreError, Union, off_runtime, sort_distinct};

/// Number of minutes that are added at the same time.
const CONCURRENT: usize = 8;

/// The users and events that a minute adds to the windows of all rollups with the same groups.
#[derive(Debug)]
struct Part<'a> {
    rollup: &'a Rollup,
    /// The group of each series; `None` if the rollups do not count it.
    groups: Vec<Option<Cow<'a, str>>>,
    union: Union,
    windows: Vec<Bucket>,
}

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
        let handing_back = async {
            while !shared.stop.is_cancelled() {
                shared.stop.run_until_cancelled(self.hand_back()).await;
            }
        };
        shared
            .until_overdue(async {
                tokio::join!(contributing, handing_back);
            })
            .await;
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
        self.forget_sealed();
    }

    /// Waits for a new connection to the store, and then adds again what windows lack of the contributions of this node.
    async fn hand_back(&self) {
        let Shared { contributions: Some(contributions), states, hand_back, settings, .. } =
            &*self.shared
        else {
            return std::future::pending().await;
        };
        hand_back.notified().await;
        self.forget_sealed();
        let windows = contributions.windows();
        let rollups = self.shared.partitions.rollups();
        let attested: BTreeMap<_, _> =
            rollups.map(|(partition, _)| (partition, states.of(partition).hands_back)).collect();
        for window in windows {
            if attested[&window.partition] > 0
                && let Err(error) = self.restore(contributions, window).await
            {
                tracing::debug!(%error, "cannot add contributions to a window again; retrying");
                tokio::time::sleep(settings.interval).await;
                hand_back.notify_one();
                return;
            }
        }
        for (partition, times) in attested {
            states.of(partition).hands_back -= times;
        }
    }

    async fn restore(
        &self,
        contributions: &Contributions,
        window: Bucket,
    ) -> Result<(), StoreError> {
        let Shared { store, partitions, .. } = &*self.shared;
        let Some(rollup) = partitions.rollup(window.partition) else {
            return Ok(());
        };
        let [first, last] = rollup.every.window(window.minute);
        let numbers = first.epoch_minutes()..=last.epoch_minutes();
        let minutes: Vec<_> = numbers.filter_map(Minute::from_epoch_minutes).collect();
        let mut lacking: BTreeMap<Partition, BTreeSet<Minute>> = BTreeMap::new();
        let (mut records, mut restored) = (contributions.of(window), 0);
        loop {
            let (rest, next) = off_runtime(move || {
                let next = records.next();
                (records, next)
            })
            .await;
            records = rest;
            let Some((source, frames)) = next else {
                break;
            };
            let lacking = match lacking.entry(source.partition) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let lacks = store.lacks(window, source.partition, &minutes).await?;
                    unknown.insert(lacks.into_iter().collect())
                }
            };
            if lacking.remove(&source.minute) {
                if !store.contribute(window, source, &frames).await? {
                    contributions.forget(window);
                    return Ok(());
                }
                restored += 1;
            }
        }
        if restored > 0 {
            tracing::info!(
                window = window.minute.shown(),
                restored,
                "added minutes to a window again that Redis had lost"
            );
        }
        Ok(())
    }

    /// Deletes the data of sealed windows.
    fn forget_sealed(&self) {
        let Some(contributions) = &self.shared.contributions else {
            return;
        };
        for window in contributions.windows() {
            if self.shared.states.of(window.partition).witness.has_closed(window.minute) {
                contributions.forget(window);
            }
        }
    }

    async fn contribute(&self, claim: &Claim) -> Result<(), StoreError> {
        let Shared { store, partitions, settings, .. } = &*self.shared;
        let counts = self.shared.unsent(claim).await?;
        let mut parts: Vec<Part<'_>> = Vec::new();
        for (partition, rollup) in partitions.rollups() {
            let [_, minute] = rollup.every.window(claim.minute);
            let window = Bucket { partition, minute };
            if let Some(part) = parts.iter_mut().find(|part| part.rollup.has_groups_of(rollup)) {
                part.windows.push(window);
                continue;
            }
            let mut union = Union::new(rollup.limits);
            // A window has no zeros.
            let groups = counts.iter().map(|counts| match counts.cumulative {
                0 => None,
                _ => rollup.group(&counts.series),
            });
            let groups: Vec<_> = groups.collect();
            for (counts, group) in counts.iter().zip(&groups) {
                if let Some(group) = group {
                    union.add(group, counts.cumulative, Vec::new());
                }
            }
            parts.push(Part { rollup, groups, union, windows: vec![window] });
        }
        let mut take = |place: usize, mut users: Vec<u64>| {
            // Sorted once, because each union merges sorted lists much faster.
            sort_distinct(&mut users);
            let copies = std::iter::repeat_n(users, parts.len());
            for (Part { groups, union, .. }, users) in parts.iter_mut().zip(copies) {
                if let Some(group) = &groups[place] {
                    union.add(group, 0, users);
                }
            }
        };
        store.sealed_users(claim, &counts, &mut take).await?;
        // If the store has lost the claim, it may have lost the users before they were read.
        if store.extend(&[claim], settings.lease).await? == 0 {
            return Err(StoreError::ClaimLost);
        }
        for Part { mut union, windows, .. } in parts {
            let contributions = self.shared.contributions.clone();
            let source = Bucket { partition: claim.partition, minute: claim.minute };
            let (windows, frames) = off_runtime(move || {
                let frames = union.frames();
                for window in &windows {
                    if let Some(contributions) = &contributions {
                        contributions.keep(*window, source, &frames);
                    }
                }
                (windows, frames)
            })
            .await;
            for window in windows {
                if !store.contribute(window, source, &frames).await? {
                    tracing::warn!(
                        minute = claim.minute.shown(),
                        partition = claim.partition.index(),
                        window = window.minute.shown(),
                        "cannot add a minute to a window that is closed; its users are missing there, unless they were added \
                         before the store lost data"
                    );
                }
            }
        }
        let series: Vec<_> = counts.iter().map(|counts| &*counts.series).collect();
        if store.acknowledge(claim, &series, settings.lease).await? {
            self.shared.claims.remove(claim);
        }
        Ok(())
    }
}
