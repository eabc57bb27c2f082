//! What a partition has to do: all of it, or only whether there is anything.

use ::redis::{ScriptInvocation, cmd};
use futures_util::future::try_join_all;

use super::keys::PartitionKeys;
use super::{RedisStore, scripts};
use crate::event::{Minute, Partition};
use crate::store::{Backlog, OutputBacklog, OutputName, StoreError};

/// Output, names of minutes, counts in the quarantine.
type OfOutput = (String, Vec<String>, u64);
/// Minutes that wait, how many of them are old, the first of them, those claimed to be sealed, and what the outputs lack.
pub(super) type Waits = (u64, u64, Vec<String>, Vec<String>, Vec<OfOutput>);

/// What is asked for a [`Backlog`].
pub(super) fn ask_backlog(keys: &PartitionKeys, old_before: Minute) -> ScriptInvocation<'static> {
    let mut script = scripts::BACKLOG.prepare_invoke();
    script
        .key(&[&keys.minutes, &keys.claims])
        .key(&[&keys.quarantine, &keys.outputs])
        .arg(old_before.epoch_minutes());
    script
}

/// What is answered.
pub(super) fn read_backlog((waiting, old, mut names, claimed, of_outputs): Waits) -> Backlog {
    let count = claimed.len() as u64;
    // Claims are in the order of their deadlines, so the earliest of the minutes may be anywhere.
    let earliest = |names: &[String]| Minute::earliest(names.iter().map(String::as_str));
    names.extend(claimed);
    let of_output = |(output, lacks, quarantined): OfOutput| {
        let backlog =
            OutputBacklog { unsent: lacks.len() as u64, oldest: earliest(&lacks), quarantined };
        Some((output.parse().ok()?, backlog))
    };
    Backlog {
        waiting,
        old,
        claimed: count,
        oldest: earliest(&names),
        outputs: of_outputs.into_iter().filter_map(of_output).collect(),
    }
}

impl RedisStore {
    /// See [`have_work`](crate::store::Draining::have_work).
    pub(super) async fn look_for_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        let Some(&first) = partitions.first() else {
            return Ok(Vec::new());
        };
        // A Redis Cluster takes one command for the keys of one slot only.
        if !self.is_cluster && !self.has_work(first, partitions, outputs).await? {
            return Ok(vec![false; partitions.len()]);
        }
        let each = partitions.chunks(1);
        let each = each.map(|only| self.has_work(only[0], only, outputs));
        try_join_all(each).await
    }

    /// Whether any of these partitions has, which lie on the server of the first. An empty key is none.
    async fn has_work(
        &self,
        first: Partition,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<bool, StoreError> {
        let mut exists = cmd("EXISTS");
        for partition in partitions {
            let keys = self.keys(*partition);
            exists.arg(&[&keys.minutes, &keys.claims]);
            for output in outputs {
                exists.arg(PartitionKeys::of(&keys.claims, Some(output)));
            }
        }
        self.drain(first, async move |connection| exists.query_async(connection).await).await
    }
}
