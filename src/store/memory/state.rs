//! What the memory store holds: plain data, open to whoever looks into it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::sets::{OpenSets, Sets};
use super::users::Users;
use crate::event::{Minute, Partition, Partitions};
use crate::store::witness::kept_for;
use crate::store::{Claim, OutputName, Quarantined, StoreError};

/// What a count takes beside its name, in bytes; roughly.
const COUNT_BYTES: usize = 100;

/// All that the store knows.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// By [`Partition::index`].
    pub partitions: Vec<PartitionState>,
    /// The memory that open sets take, and counts of minutes of which an output lacks some; roughly.
    pub bytes: u64,
    /// Nothing expires before this, in ms since the epoch.
    pub(super) next_expiry_ms: i64,
    pub(super) retention: Duration,
    /// The counts that a partition keeps after they are sent.
    pub(super) counts_max: u64,
    pub(super) bytes_max: u64,
}

/// The minutes of one partition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PartitionState {
    /// Minutes with something to do, that nobody has claimed.
    pub waiting: BTreeSet<Minute>,
    /// Minutes that are claimed to be sealed.
    pub claims: BTreeMap<Minute, Held>,
    /// Every output that anything was sealed for, and the minutes that it lacks counts of.
    pub sending: BTreeMap<OutputName, BTreeMap<Minute, Held>>,
    /// What is known of each minute.
    pub minutes: HashMap<Minute, MinuteState>,
    /// Nodes that lag, and until when that counts in ms since the epoch.
    pub lagging: BTreeMap<String, i64>,
    /// The message of each output for counts that it refused.
    pub quarantine: BTreeMap<OutputName, BTreeMap<(Minute, String), Quarantined>>,
    /// What is known to be closed.
    pub witness: Witness,
}

/// What is known to be closed of a partition, and since when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Witness {
    /// Lasts as long as the store forgets nothing; 0 before the first node came.
    pub epoch: u64,
    /// How often nodes checked in or handed something back.
    pub stamp: u64,
    /// What is known of each node.
    pub stamps: BTreeMap<String, Stamp>,
    /// The clock when a node last checked in, in ms since the epoch.
    pub clock_ms: Option<i64>,
    /// The last stamp of the epoch before this one.
    pub forgot_from: u64,
    /// The clock at about that stamp, in ms since the epoch.
    pub forgot_from_ms: i64,
    /// How often a minute was announced or closed.
    pub sequence: u64,
    /// Closed minutes, each with twice its number in the order of closing; one more when an output has it.
    pub closed: BTreeMap<Minute, u64>,
    /// All minutes before this one are closed, too.
    pub since: Option<i64>,
    /// The highest minute that was closed.
    pub newest: Option<i64>,
}

/// What is known of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The number of its last check-in.
    pub number: u64,
    /// The last closing that it has heard of.
    pub heard: u64,
    /// Until when it counts as alive, in ms since the epoch.
    pub alive_until_ms: i64,
    /// The events that it found too late.
    pub late: u64,
}

/// A claim as the store sees it. The default has lapsed, and nobody holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// The proof that its holder has; empty: nobody does.
    pub token: String,
    /// The part of the token that grows.
    pub number: i64,
    /// When it lapses, in ms since the epoch.
    pub deadline_ms: i64,
}

/// One minute of a partition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MinuteState {
    /// Events recorded since it was last done, copies included.
    pub arrivals: u64,
    /// How idle it has been; `None` before it was first looked at.
    pub idle: Option<Idle>,
    /// Series that are recorded under their own names and not counted; with the overflow series when some are not.
    /// Those that are counted are in `counts`.
    pub admitted: BTreeSet<String>,
    /// The users in `sets`.
    pub users: Users,
    /// What is not compacted yet, by series.
    pub sets: BTreeMap<String, Sets>,
    /// Different users and different events, by series. Fixed for good.
    pub counts: BTreeMap<String, (u64, u64)>,
    /// Series whose counts an output has not confirmed.
    pub unsent: BTreeMap<OutputName, BTreeSet<String>>,
    /// The memory of its counts that is reckoned as long as any output lacks one.
    pub(super) unsent_bytes: u64,
    /// When the counts are forgotten, in ms since the epoch.
    pub expires_ms: Option<i64>,
    /// How many events of it each process has seen.
    pub coverage: BTreeMap<String, u64>,
    /// When that is forgotten, in ms since the epoch.
    pub coverage_until_ms: Option<i64>,
}

/// What was seen of a minute that is over and fills still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// The arrivals when it was last looked at.
    pub arrivals: u64,
    /// Since when they are the same, in ms since the epoch.
    pub since_ms: i64,
    /// When it was first looked at, in ms since the epoch.
    pub first_ms: i64,
}

impl State {
    pub(super) fn new(partitions: &Partitions, retention: Duration, bytes_max: u64) -> Self {
        let partitions = partitions.iter().map(|_| PartitionState::default());
        Self {
            partitions: partitions.collect(),
            bytes: 0,
            next_expiry_ms: i64::MAX,
            retention,
            counts_max: u64::MAX,
            bytes_max,
        }
    }

    pub(super) fn partition(&mut self, partition: Partition) -> &mut PartitionState {
        &mut self.partitions[partition.index()]
    }

    /// The partition of a claim that is held, and the memory that is reckoned.
    pub(super) fn held(
        &mut self,
        claim: &Claim,
    ) -> Result<(&mut PartitionState, &mut u64), StoreError> {
        let partition = &mut self.partitions[claim.partition.index()];
        let claims = partition.claims_of(claim.output.as_ref());
        let held = claims.and_then(|claims| claims.get(&claim.minute));
        if held.is_none_or(|held| held.token != claim.token) {
            return Err(StoreError::ClaimLost);
        }
        Ok((partition, &mut self.bytes))
    }

    /// Forgets what has outlived its time. As in Redis, that is when the millisecond in which it ends is over.
    pub(super) fn forget_expired(&mut self, now_ms: i64) {
        if now_ms <= self.next_expiry_ms {
            return;
        }
        self.next_expiry_ms = i64::MAX;
        for partition in &mut self.partitions {
            partition.minutes.retain(|_, minute| {
                minute.forget_expired(now_ms);
                for until_ms in [minute.expires_ms, minute.coverage_until_ms] {
                    self.next_expiry_ms = self.next_expiry_ms.min(until_ms.unwrap_or(i64::MAX));
                }
                *minute != MinuteState::default()
            });
        }
    }

    pub(super) fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        let of =
            |partition: &PartitionState| Some(partition.minutes.get(&minute)?.open_sets(minute));
        self.partitions.iter().filter_map(of).flatten().collect()
    }
}

impl State {
    /// Work on a minute has ended. Where nothing is left to do it is closed, and its counts get their time to live.
    pub(super) fn end(&mut self, partition: usize, minute: Minute, now_ms: i64) {
        let partition = &mut self.partitions[partition];
        let is_awaited = partition.is_awaited(minute);
        let state = partition.minutes.get_mut(&minute);
        if is_awaited || state.as_ref().is_some_and(|state| !state.sets.is_empty()) {
            return;
        }
        partition.witness.close(minute);
        if let Some(state) = state {
            self.bytes -= std::mem::take(&mut state.unsent_bytes);
            let counts = (state.counts.len() + state.admitted.len()) as u64;
            let kept = kept_for(self.retention, self.counts_max, counts);
            let expires_ms = deadline(now_ms, kept);
            state.expires_ms = Some(expires_ms);
            self.next_expiry_ms = self.next_expiry_ms.min(expires_ms);
        }
    }

    /// The different events of which an output lacks the counts, those of refused counts included.
    pub(super) fn unpublished(&self) -> u64 {
        let of = |partition: &PartitionState| {
            let refused = partition.quarantine.values().flat_map(BTreeMap::values);
            let mut lacking: BTreeMap<(Minute, &str), u64> = BTreeMap::new();
            for counts in refused {
                lacking.insert((counts.minute, counts.series.as_str()), counts.cumulative);
            }
            let mut open = 0;
            for (minute, state) in &partition.minutes {
                open += state.sets.values().map(Sets::cumulative).sum::<u64>();
                for series in state.unsent.values().flatten() {
                    if let Some(&(_, cumulative)) = state.counts.get(series) {
                        lacking.insert((*minute, series.as_str()), cumulative);
                    }
                }
            }
            open + lacking.values().sum::<u64>()
        };
        self.partitions.iter().map(of).sum()
    }
}

impl MinuteState {
    /// What its sets hold; it is this minute.
    #[must_use]
    pub fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        let open = |(series, sets): (&String, &Sets)| sets.open(series, minute, &self.users);
        self.sets.iter().map(open).collect()
    }

    fn forget_expired(&mut self, now_ms: i64) {
        let is_over = |until_ms: Option<i64>| until_ms.is_some_and(|until_ms| until_ms < now_ms);
        if is_over(self.expires_ms) {
            self.counts.clear();
            self.admitted.clear();
            self.expires_ms = None;
        }
        if is_over(self.coverage_until_ms) {
            self.coverage.clear();
            self.coverage_until_ms = None;
        }
    }
}

impl PartitionState {
    /// The claims to send to an output; those to seal without one.
    pub(super) fn claims_of(
        &mut self,
        output: Option<&OutputName>,
    ) -> Option<&mut BTreeMap<Minute, Held>> {
        match output {
            None => Some(&mut self.claims),
            Some(output) => self.sending.get_mut(output),
        }
    }

    pub(super) fn extend(&mut self, claim: &Claim, deadline_ms: i64) {
        let claims = self.claims_of(claim.output.as_ref());
        if let Some(held) = claims.and_then(|claims| claims.get_mut(&claim.minute)) {
            held.deadline_ms = deadline_ms;
        }
    }

    /// Whether an output lacks counts of the minute.
    pub(super) fn is_awaited(&self, minute: Minute) -> bool {
        self.sending.values().any(|of| of.contains_key(&minute))
    }
}

impl MinuteState {
    /// Takes series out of what an output lacks.
    pub(super) fn confirm<'a>(
        &mut self,
        output: &OutputName,
        series: impl IntoIterator<Item = &'a str>,
    ) {
        if let Some(unsent) = self.unsent.get_mut(output) {
            for series in series {
                unsent.remove(series);
            }
            if unsent.is_empty() {
                self.unsent.remove(output);
            }
        }
    }
}

/// What a count takes while outputs lack it, in bytes; roughly. Its name is there once, and once for each of them.
pub(super) fn unsent_bytes(series: &str, outputs: usize) -> u64 {
    ((1 + outputs) * (COUNT_BYTES + series.len())) as u64
}

/// So long after an instant, both in ms since the epoch.
pub(super) fn deadline(from_ms: i64, span: Duration) -> i64 {
    from_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}
