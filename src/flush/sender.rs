//! [`Sender`]: the task that sends sealed counts to one output, independently of other outputs. A round writes all counts
//! once, recent minutes and new claims first. Then it searches the batches that were not accepted for the offending counts.
//! The search has a time limit, so that it does not delay the next minutes; claims for counts that it does not reach lapse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coordination::Mutex;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::agreement::{CountsTarget, accepts_nothing};
use super::breaker::Breaker;
use super::claims::{Inbox, by_partition};
use super::schedule::{SETTLE_MIN, looked_within};
use super::{Destination, Shared};
use crate::diagnosis::{Cause, Diagnosis, LossCause};
use crate::event::{Minute, Partition};
use crate::node::{Heartbeat, lock, number};
use crate::output::delivery::{Delivery, Refusal};
use crate::output::{SealedCounts, WriteError};
use crate::store::{Announced, Claim, SeriesCounts, Store, StoreError};
use crate::telemetry::OutputMetrics;

/// Maximum time that a round spends on searching, and on writing old or lapsed minutes; at most a third of the lease.
const TURN_MAX: Duration = Duration::from_secs(4);
/// How many counts are read into memory before any of them is announced.
const READ_FIRST_MAX: usize = 20_000;
/// Minimum pause between checks of whether all nodes know of an announcement. The pause is normally a tenth of the interval.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const QUARANTINE_STEP: usize = 200;
const EXAMPLES_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) destination: Destination,
    /// Held by the only node that probes the output while it is down.
    pub(super) probing: Mutex,
    pub(super) outbox: Arc<Inbox>,
    pub(super) metrics: OutputMetrics,
    pub(super) breaker: Breaker,
    /// The count that the output accepted last. Writing it again tests the output without changing anything.
    pub(super) last: Option<Vec<SealedCounts>>,
}

impl Sender {
    pub(super) async fn run(mut self, heartbeat: Heartbeat) {
        let shared = Arc::clone(&self.shared);
        let sending = async {
            while !shared.stop.is_cancelled() {
                heartbeat.during(self.round()).await;
            }
        };
        shared.until_overdue(sending).await;
        shared.finished.cancelled().await;
        shared.claims.release_all(Some(&self.destination.name)).await;
    }

    async fn round(&mut self) {
        let shared = &self.shared;
        let next = self.outbox.next(|claim| shared.is_recent(claim.minute));
        let Some(claims) = shared.stop.run_until_cancelled(next).await else {
            return;
        };
        // Without claims, the sender probes an output that is not known to work, for example to notice a wrong token early.
        let pause = if claims.is_empty() && self.breaker.is_known_well {
            Duration::ZERO
        } else {
            self.send(&claims).await
        };
        // Completed claims have already ended. The others lapse when the backoff ends.
        self.shared.claims.release(&claims, pause).await;
        self.outbox.sent((!pause.is_zero()).then(|| Instant::now() + pause));
    }

    /// Sends the unsent counts for these claims; without claims, probes the output. Returns how long to back off.
    async fn send(&mut self, claims: &[Claim]) -> Duration {
        let interval = self.shared.settings.interval;
        let turn = match self.breaker.pause(Instant::now()) {
            None => None,
            Some(Duration::ZERO) => match self.probing.try_acquire().await {
                Ok(Some(turn)) => Some(turn),
                // If Redis is out of memory, the sender continues without the mutex, because sending counts frees memory.
                Err(coordination::Error::Full(_)) => None,
                // Another node is probing. Once that node finds the output healthy, this one will, too.
                Ok(None) => return interval,
                Err(error) => {
                    tracing::debug!(%error, "cannot acquire the probe mutex; retrying in the next round");
                    return interval;
                }
            },
            Some(pause) => return pause,
        };
        // The future is boxed because it is large, and would otherwise enlarge the task for its whole life.
        Box::pin(self.send_all(claims)).await;
        if let Some(turn) = turn
            && let Err(error) = turn.release().await
        {
            tracing::debug!(%error, "cannot release the probe mutex; it will expire");
        }
        self.breaker.pause(Instant::now()).unwrap_or_default()
    }

    async fn send_all(&mut self, claims: &[Claim]) {
        let shared = Arc::clone(&self.shared);
        let now = Minute::of_nanos(shared.node.clock.now_nanos());
        let target = CountsTarget {
            store: Arc::clone(&shared.store) as Arc<dyn Store>,
            output: Arc::clone(&self.destination.output),
            metrics: self.metrics.clone(),
            node: Arc::clone(&shared.node),
            name: self.destination.name.clone(),
            newest: claims.iter().map(|claim| claim.minute).fold(now, Minute::max),
        };
        let mut delivery = Delivery::new(&target, self.last.take());
        let turn = TURN_MAX.min(shared.settings.lease / 3);
        let mut result = if claims.is_empty() {
            delivery.prove().await.map_err(accepts_nothing)
        } else {
            self.write_all(&mut delivery, claims, turn).await
        };
        if result.is_ok() && !claims.is_empty() {
            // The jitter is from 0.5 to 1, so the shift is from 0 to 1.
            let shift = 2.0 * shared.node.rng.jitter() - 1.0;
            let searched = delivery.search(Instant::now() + turn, shift).await;
            result = searched.map_err(accepts_nothing);
        }
        self.note_health(&delivery);
        self.last = delivery.last.take();
        self.acknowledge_all(&delivery.written).await;
        self.quarantine(delivery.refused()).await;
        self.release_failing(&delivery).await;
        if let Err(error) = &result {
            self.write_failed(error);
        }
    }

    /// Writes all unsent counts. Those of old and lapsed minutes come last and separately, in case the output rejects them.
    async fn write_all(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        claims: &[Claim],
        turn: Duration,
    ) -> Result<(), WriteError> {
        let until = Instant::now() + turn;
        let shared = Arc::clone(&self.shared);
        let kind = |claim: &Claim| (shared.is_recent(claim.minute), claim.taken_over);
        for group in claims.chunk_by(|a, b| kind(a) == kind(b)) {
            let until = (kind(&group[0]) != (true, false)).then_some(until);
            self.write_group(delivery, group, until).await?;
        }
        Ok(())
    }

    /// Announces these claims and writes their unsent counts. Reads many counts first, in case the store loses them.
    async fn write_group(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        group: &[Claim],
        until: Option<Instant>,
    ) -> Result<(), WriteError> {
        let write_counts_max = self.destination.write_counts_max;
        let mut pending = Vec::new();
        let mut is_announced = false;
        for (place, claim) in group.iter().enumerate() {
            if !self.shared.claims.has(claim) {
                continue;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                // These claims lapse before the others in this round, so they come first in the next round.
                self.shared.claims.release(&group[place..], Duration::ZERO).await;
                break;
            }
            match self.shared.unsent(claim).await {
                Ok(counts) if counts.is_empty() => self.acknowledge(claim, &[]).await,
                Ok(counts) => pending.extend(counts.into_iter().map(|unsent| SealedCounts {
                    partition: claim.partition,
                    minute: claim.minute,
                    period: self.shared.partitions.period(claim.partition, claim.minute),
                    series: unsent.series,
                    unique: unsent.unique,
                    cumulative: unsent.cumulative,
                    quality: unsent.quality,
                })),
                Err(error) => self.shared.claim_failed(claim, &error),
            }
            if !is_announced && pending.len() >= READ_FIRST_MAX {
                is_announced = true;
                self.announce(group, &mut pending).await;
            }
            while is_announced && pending.len() >= write_counts_max {
                self.write(delivery, &mut pending).await?;
            }
        }
        if !is_announced && !pending.is_empty() {
            self.announce(group, &mut pending).await;
        }
        while !pending.is_empty() {
            self.write(delivery, &mut pending).await?;
        }
        Ok(())
    }

    async fn write(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        pending: &mut Vec<SealedCounts>,
    ) -> Result<(), WriteError> {
        let later = pending.split_off(self.destination.write_counts_max.min(pending.len()));
        let mut batch = std::mem::replace(pending, later);
        // Rejected counts are often similar, and finding them takes fewer writes if they are adjacent.
        batch.sort_unstable_by(|a, b| (a.minute, &a.series).cmp(&(b.minute, &b.series)));
        if let Some(accepted) = delivery.write(batch).await? {
            self.note_health(delivery);
            self.acknowledge_all(&accepted).await;
        }
        Ok(())
    }

    /// Announces these claims. Removes the counts of lost claims from `pending`.
    async fn announce(&self, group: &[Claim], pending: &mut Vec<SealedCounts>) {
        self.shared.announce(group).await;
        let held = group.iter().filter(|claim| self.shared.claims.has(claim));
        let held: BTreeSet<_> = held.map(|claim| (claim.partition, claim.minute)).collect();
        pending.retain(|counts| held.contains(&(counts.partition, counts.minute)));
    }

    fn by_claim<'a, T>(
        &self,
        all: impl IntoIterator<Item = T>,
        counts_of: impl Fn(&T) -> &'a SealedCounts,
    ) -> Vec<(Claim, Vec<T>)> {
        let mut groups: BTreeMap<_, Vec<T>> = BTreeMap::new();
        for item in all {
            let SealedCounts { partition, minute, .. } = counts_of(&item);
            groups.entry((*partition, *minute)).or_default().push(item);
        }
        let claim = |partition, minute| {
            self.shared.claims.to_send(&self.destination.name, partition, minute)
        };
        let claimed = groups
            .into_iter()
            .filter_map(|((at, minute), group)| Some((claim(at, minute)?, group)));
        claimed.collect()
    }

    async fn acknowledge_all(&self, written: &[SealedCounts]) {
        self.metrics.points_sent.inc_by(2 * written.len() as u64);
        let of_minutes = written.iter().filter(|counts| counts.period.suffix.is_empty());
        let users = of_minutes.map(|counts| counts.unique).max().unwrap_or(0);
        self.shared.node.peaks.users.fetch_max(users, Ordering::Relaxed);
        for (claim, counts) in self.by_claim(written, |counts| counts) {
            let series: Vec<_> = counts.iter().map(|counts| &*counts.series).collect();
            let span = self.shared.node.spans.log_of(claim.minute);
            self.acknowledge(&claim, &series).instrument(span).await;
        }
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str]) {
        let Shared { store, settings, node, .. } = &*self.shared;
        let start = node.clock.now_nanos();
        let acknowledged = store.acknowledge(claim, series, settings.lease).await;
        let attributes = || {
            vec![
                ("eds.partition", number(claim.partition.index())),
                ("eds.output", self.destination.name.as_str().into()),
                ("eds.series", number(series.len())),
            ]
        };
        let error = acknowledged.as_ref().err().map(ToString::to_string);
        let times = [start, node.clock.now_nanos()];
        node.spans.add_step("acknowledge", claim.minute, times, attributes, error);
        match acknowledged {
            Ok(false) => {}
            Ok(true) => {
                self.shared.claims.remove(claim);
                let now_ms = node.clock.now_nanos() / 1_000_000;
                let delay_ms = now_ms - claim.minute.end_millis();
                #[expect(clippy::cast_precision_loss, reason = "a delay in ms is far below 2^52")]
                self.metrics.publish_delay_seconds.observe(delay_ms as f64 / 1000.0);
            }
            Err(error) => self.shared.claim_failed(claim, &error),
        }
    }

    /// Moves rejected counts to the quarantine, and logs them together. Ends claims that have no unsent counts left.
    async fn quarantine(&self, refused: &[Refusal<Vec<SealedCounts>>]) {
        let (mut kept, mut discarded) = (Vec::new(), Vec::new());
        for (claim, refused) in self.by_claim(refused, |refusal| &refusal.item[0]) {
            for refused in refused.chunks(QUARANTINE_STEP) {
                let texts =
                    refused.iter().map(|refusal| (&*refusal.item[0].series, &*refusal.message));
                let texts: Vec<_> = texts.collect();
                match self.shared.store.quarantine(&claim, &texts).await {
                    Ok(fates) => {
                        for (refusal, is_kept) in refused.iter().zip(fates) {
                            if is_kept {
                                kept.push(*refusal);
                                continue;
                            }
                            discarded.push(*refusal);
                            let SealedCounts { minute, cumulative, .. } = refusal.item[0];
                            self.shared.node.losses.add(LossCause::Discarded, minute, cumulative);
                        }
                    }
                    Err(error) => {
                        self.shared.claim_failed(&claim, &error);
                        break;
                    }
                }
            }
            if self.shared.claims.has(&claim) {
                // These may have been the last unsent counts of the claim.
                self.acknowledge(&claim, &[]).await;
            }
        }
        self.metrics.points_quarantined.inc_by(2 * kept.len() as u64);
        self.metrics.points_discarded.inc_by(2 * discarded.len() as u64);
        for (cause, refused) in [(Cause::Quarantine, kept), (Cause::Discarded, discarded)] {
            let minutes = refused.iter().map(|refusal| refusal.item[0].minute);
            let (Some(first), Some(last)) = (minutes.clone().min(), minutes.max()) else {
                continue;
            };
            let name = &self.destination.name;
            let found = Diagnosis::new(cause, examples(&refused));
            let found = found.at(format_args!("output {name}")).named(name.as_str());
            tracing::error!(counts = refused.len(), %first, %last, "{found}");
        }
    }

    /// Logs the counts for which the output fails, and releases their claims so that they lapse after one lease.
    async fn release_failing(&self, delivery: &Delivery<'_, CountsTarget>) {
        let Some(first) = delivery.failing.first().filter(|_| delivery.has_accepted) else {
            return;
        };
        tracing::warn!(
            name = %self.destination.name,
            output = self.destination.output.describe(),
            counts = delivery.failing.len(),
            minute = %first.item[0].minute.shown(),
            series = first.item[0].series,
            message = first.message,
            "the output fails on these counts even when each is sent alone; they stay unsent and will be retried, while all other counts are written"
        );
        if delivery.is_complete() {
            let failing = self.by_claim(&delivery.failing, |refusal| &refusal.item[0]);
            let failing: Vec<_> = failing.into_iter().map(|(claim, _)| claim).collect();
            self.shared.claims.release(&failing, self.shared.settings.lease).await;
        }
    }

    fn note_health(&mut self, delivery: &Delivery<'_, CountsTarget>) {
        if !delivery.has_accepted {
            return;
        }
        self.set_trouble(None);
        if self.breaker.succeeded() {
            tracing::info!(
                name = %self.destination.name,
                output = self.destination.output.describe(),
                "the output is accepting points again"
            );
        }
    }

    fn set_trouble(&self, trouble: Option<Diagnosis>) {
        self.metrics.output_up.set(trouble.is_none().into());
        let mut down = lock(&self.shared.node.outputs_down);
        match trouble {
            Some(trouble) => down.insert(self.destination.name.to_string(), trouble),
            None => down.remove(self.destination.name.as_str()),
        };
    }

    fn write_failed(&mut self, error: &WriteError) {
        self.metrics.write_failures.inc();
        let found = error.found().clone().at(format_args!("output {}", self.destination.name));
        self.set_trouble(Some(found.clone()));
        let wanted = match error {
            WriteError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = self.breaker.failed(Instant::now(), wanted, self.shared.node.rng.jitter());
        let output = self.destination.output.describe();
        let failures = self.breaker.failures;
        let pause = format!("{pause:.1?}");
        if matches!(error, WriteError::Misconfigured(_)) {
            tracing::error!(output, failures, pause, "{found}");
        } else {
            tracing::warn!(output, failures, pause, "{found}");
        }
    }
}

impl Shared {
    /// Reads all unsent counts for a claim before any is acknowledged, because an acknowledgement would shift the next page.
    /// Returns them sorted by series.
    pub(super) async fn unsent(&self, claim: &Claim) -> Result<Vec<SeriesCounts>, StoreError> {
        let mut counts = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.store.unsent(claim, at).await?;
            counts.extend(page.items);
            cursor = page.next;
        }
        // Similar series go into the same batch. A series may appear on more than one page.
        counts.sort_unstable_by(|a, b| a.series.cmp(&b.series));
        counts.dedup_by(|a, b| a.series == b.series);
        Ok(counts)
    }

    /// Announces these claims, and returns once every live node knows of them: if the store loses a claim whose counts may
    /// have been written, only those nodes can tell the store.
    pub(super) async fn announce(&self, group: &[Claim]) {
        let claims = by_partition(group.iter().filter(|claim| self.claims.has(claim))).into_iter();
        join_all(claims.map(|((_, partition), claims)| self.announce_in(partition, claims))).await;
        self.states.save().await;
    }

    async fn announce_in(&self, partition: Partition, mut claims: Vec<&Claim>) {
        let interval = self.settings.interval;
        let pause = (interval / 10).max(PAUSE_MIN);
        // The wait for a dead node is normally limited by the store's clock. This limit applies if that clock stops.
        let mut waits_left = 2 * looked_within(interval).as_millis() / pause.as_millis();
        // When the store last had everything that this node knows; `None` until the store has learned of these claims.
        let mut known_at: Option<Instant> = None;
        while !claims.is_empty() {
            let asked = Instant::now();
            let known = self.states.of(partition).witness.known(asked);
            let answer = self.store.announce(&known, &claims).await;
            // After a rollback, no node claims anything from the store for `SETTLE_MIN`. If this announcement is repeated
            // within that time, no node has counted the minutes again, so the counts in memory are still the only ones.
            let is_in_time = known_at.is_some_and(|at| at.elapsed() < SETTLE_MIN);
            match answer {
                Ok(states) if known_at.is_none() || is_in_time => {
                    known_at = Some(asked);
                    let is_heard = !states.contains(&Announced::Unheard);
                    let mut left = Vec::new();
                    for (claim, state) in claims.into_iter().zip(states) {
                        if state == Announced::ClaimLost {
                            self.claim_failed(claim, &StoreError::ClaimLost);
                        } else {
                            self.states.of(partition).witness.publishes(claim.minute);
                            left.push(claim);
                        }
                    }
                    claims = left;
                    if is_heard || waits_left == 0 {
                        return;
                    }
                    waits_left -= 1;
                }
                Err(_) if is_in_time => {}
                answer => {
                    let error = answer.err().unwrap_or(StoreError::Forgot);
                    return claims.iter().for_each(|claim| self.claim_failed(claim, &error));
                }
            }
            sleep(pause).await;
        }
    }
}

fn examples(refused: &[&Refusal<Vec<SealedCounts>>]) -> String {
    let examples = refused.iter().take(EXAMPLES_MAX).map(|Refusal { item, message }| {
        let SealedCounts { minute, series, unique, cumulative, .. } = &item[0];
        format!("{} {series} {unique}:{cumulative} ({message})", minute.shown())
    });
    examples.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Quality;

    #[test]
    fn a_log_line_shows_a_few_of_the_counts() {
        let refused = [5, 4, 3, 6].map(|number| Refusal {
            item: vec![SealedCounts {
                partition: Partition::default(),
                minute: Minute::from_epoch_minutes(number).unwrap(),
                period: Minute::from_epoch_minutes(number).unwrap().into(),
                series: format!("a={number}"),
                unique: 1,
                cumulative: 2,
                quality: Quality::default(),
            }],
            message: "no".to_owned(),
        });
        let refused: Vec<_> = refused.iter().collect();
        let expected = "19700101:0005 a=5 1:2 (no); 19700101:0004 a=4 1:2 (no); \
                        19700101:0003 a=3 1:2 (no)";
        assert_eq!(examples(&refused), expected);
    }
}
