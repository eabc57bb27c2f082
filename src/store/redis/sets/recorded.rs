//! [`Recorded`]: the users that this process has recorded in open minutes. If the process seals a minute and has recorded as
//! many users as a sealed set has, they are the members of the set, which need not be read to add them to windows.

use std::sync::Mutex;

use hashbrown::HashMap;
use tokio::time::Instant;

use crate::store::redis::counted::UNUSED_FOR;
use crate::store::redis::lock;
use crate::store::redis::settings::Key;
use crate::store::{Bucket, RecordRequest};

/// The maximum number of users in memory, in total: 32 MiB, or up to twice that, because a list doubles when it grows.
const HELD_MAX: usize = 4 << 20;

/// The users of one minute of a partition, all recorded in the same generation of the store.
#[derive(Debug)]
pub(super) struct OwnUsers {
    pub(super) generation: u64,
    /// The fingerprints of the users by series, possibly with duplicates.
    series: HashMap<String, Vec<u64>>,
    /// The number of users in all lists.
    held: usize,
    last_used: Instant,
}

impl OwnUsers {
    /// Returns the distinct users of each series, sorted.
    pub(super) fn distinct(self) -> HashMap<String, Vec<u64>> {
        let Self { mut series, .. } = self;
        for users in series.values_mut() {
            users.sort_unstable();
            users.dedup();
        }
        series
    }
}

#[derive(Debug, Default)]
pub(super) struct Recorded(Mutex<HashMap<Bucket, OwnUsers>>);

impl Recorded {
    /// Adds the users of requests that the store has acknowledged.
    pub(super) fn add(
        &self,
        bucket: Bucket,
        generation: u64,
        key: Key,
        requests: &[&RecordRequest<'_>],
    ) {
        let now = Instant::now();
        let mut minutes = lock(&self.0);
        let is_same = |own: &OwnUsers| own.generation == generation;
        if !minutes.get(&bucket).is_some_and(is_same) {
            minutes.retain(|_, own| now.duration_since(own.last_used) < UNUSED_FOR);
            let own = OwnUsers { generation, series: HashMap::new(), held: 0, last_used: now };
            minutes.insert(bucket, own);
        }
        let Some(own) = minutes.get_mut(&bucket) else {
            return;
        };
        own.last_used = now;
        for request in requests {
            let users = own.series.entry_ref(request.series).or_default();
            let before = users.len();
            users.extend(request.new_users.iter().flatten().map(|user| key.user(user)));
            own.held += users.len() - before;
        }
        while minutes.values().map(|own| own.held).sum::<usize>() > HELD_MAX {
            let oldest = minutes.iter().min_by_key(|(_, own)| own.last_used);
            let Some(oldest) = oldest.map(|(bucket, _)| *bucket) else {
                break;
            };
            minutes.remove(&oldest);
        }
    }

    /// Returns the users recorded in a minute so far, and forgets them.
    pub(super) fn take(&self, bucket: Bucket) -> Option<OwnUsers> {
        lock(&self.0).remove(&bucket)
    }
}
