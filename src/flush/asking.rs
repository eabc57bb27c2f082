//! Asking the store for minutes. Before it claims anything a node hands back what the store forgot, and checks in.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use tokio::time::Instant;

use super::FlushSettings;
use super::settling::looked_within;
use super::worker::Worker;
use crate::diagnosis::{Cause, LossCause};
use crate::event::{Minute, Partition};
use crate::node::Throttle;
use crate::store::{Claim, ClaimRequest, OutputName, StoreError};

/// The most claims of a kind that a round takes of a partition.
const CLAIMS_MAX: usize = 16;
/// A minute that looks over after a jump is over after this long.
const MINUTE: Duration = Duration::from_secs(60);

impl Worker {
    /// The partitions that are asked in this round.
    pub(super) async fn awake(&self) -> Vec<Partition> {
        let all: Vec<_> = self.partitions.iter().collect();
        for partition in &all {
            let generation = self.store.generation(*partition);
            let mut watch = self.watches.of(*partition);
            watch.settling.look(generation, Instant::now());
        }
        let now = Instant::now();
        let is_spared = |it: &Partition| self.watches.of(*it).rest.is_spared(now);
        let (spared, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_spared);
        let have_work = self.store.have_work(&others, &self.outputs).await;
        // What is wrong with the store is found by asking.
        let have_work = have_work.unwrap_or_else(|_| vec![true; others.len()]);
        let others = others.into_iter().zip(have_work);
        let spared = spared.into_iter().map(|partition| (partition, false));
        let awake = others.chain(spared);
        let awake = awake.filter(|&(partition, has_work)| self.is_asked(partition, has_work));
        awake.map(|(partition, _)| partition).collect()
    }

    /// Whether a partition has something to do, or this node something to report to it or to hear from it.
    pub(super) fn is_asked(&self, partition: Partition, has_work: bool) -> bool {
        let FlushSettings { interval, grace, .. } = self.settings;
        let lags = self.node.lag.is_lagging(partition);
        let generation = self.store.generation(partition);
        let now = Instant::now();
        let mut watch = self.watches.of(partition);
        let settling = &mut watch.settling;
        let lags = settling.is_lagging(lags, now, grace);
        let has_settled = settling.may_close(now, grace) && settling.may_take_over(now, interval);
        let must = lags || !watch.witness.has_attested(generation);
        let has_work = has_work || !has_settled;
        watch.rest.is_asked(must, has_work, now, interval)
    }

    /// Checks in at a partition and, if it may, claims what is finished or lapsed there, for these outputs also what lapsed
    /// on its way to them.
    pub(super) async fn ask(
        &self,
        partition: Partition,
        wanting: Option<&[OutputName]>,
    ) -> Result<Vec<Claim>, StoreError> {
        let asked = async {
            let generation = self.store.generation(partition);
            self.hand_back(partition, generation).await?;
            let (mut lags, mut is_due, is_awaited) = self.check_in(partition).await?;
            if is_awaited {
                // Who announced it waits until this node has said that it heard so.
                (lags, is_due, _) = self.check_in(partition).await?;
            }
            // Another server may claim than the one that knows that this node lags.
            let is_another = self.store.generation(partition) != generation;
            let began_to_lag = !lags && self.node.lag.is_lagging(partition);
            match wanting {
                Some(wanting) if is_due && !is_another && !began_to_lag => {
                    self.claim(partition, generation, wanting).await
                }
                _ => Ok(Vec::new()),
            }
        };
        let asked = asked.await;
        if let Err(error) = &asked {
            let mut watch = self.watches.of(partition);
            watch.settling.failed(Instant::now());
            if matches!(error, StoreError::Forgot) {
                watch.witness.forgotten();
            }
        }
        asked
    }

    /// Reports whether this node lags, and takes in what the store says. Answers whether it lags, whether there may be something to
    /// claim, and whether somebody waits until this node has heard of what is about to be written.
    async fn check_in(&self, partition: Partition) -> Result<(bool, bool, bool), StoreError> {
        let FlushSettings { interval, grace, max_hold, lease } = self.settings;
        let recorded = self.node.confirmed.recorded(partition);
        let asked = Instant::now();
        let (lags, known) = {
            let mut watch = self.watches.of(partition);
            let lags = self.node.lag.is_lagging(partition);
            let lags = watch.settling.is_lagging(lags, asked, grace);
            (lags, watch.witness.known(asked))
        };
        let asked_nanos = self.node.clock.now_nanos();
        let alive = looked_within(interval);
        let news = self.store.check_in(partition, &known, lags, lease, alive);
        let news = news.await?;
        let now = Instant::now();
        let mut watch = self.watches.of(partition);
        let jumped_ms = watch.witness.heard(&news, recorded, asked, now);
        watch.rest.heard(&news, now, interval, grace);
        let late = watch.witness.found_late(news.late);
        if jumped_ms > 0 {
            let hold_max = max_hold.max(MINUTE + grace);
            let ahead = Duration::from_millis(jumped_ms.unsigned_abs());
            watch.settling.jumped(ahead, hold_max, now);
        }
        drop(watch);
        self.found_late(partition, None, late);
        // As of the middle of the call.
        let nanos = i64::midpoint(asked_nanos, self.node.clock.now_nanos());
        self.node.clock.set_store_ahead_ms(news.now_ms.saturating_sub(nanos / 1_000_000));
        Ok((lags, news.is_due, !news.announced.is_empty()))
    }

    /// Counts events that came too late, in this minute if that is known.
    pub(super) fn found_late(&self, partition: Partition, minute: Option<Minute>, events: u64) {
        if events == 0 {
            return;
        }
        self.metrics.events_late.inc_by(events);
        let now = self.node.clock.now_nanos();
        self.watches.late().add(partition, minute, events, now);
        let minute = minute.unwrap_or(Minute::of_nanos(now));
        self.node.losses.add(LossCause::Late, minute, events);
        let partition = partition.index();
        tracing::debug!(partition, events, "events came after their counts were sealed");
    }

    /// Claims what may be claimed in a store that has settled.
    async fn claim(
        &self,
        partition: Partition,
        generation: u64,
        wanting: &[OutputName],
    ) -> Result<Vec<Claim>, StoreError> {
        let FlushSettings { interval, grace, max_hold, lease, .. } = self.settings;
        let now = Instant::now();
        // Those that wait here are to be sealed first.
        let room = CLAIMS_MAX.saturating_sub(self.old.held.count(partition));
        let most = |may: bool| if may { CLAIMS_MAX } else { 0 };
        let (request, lapsed_max) = {
            let watch = self.watches.of(partition);
            let lapsed_max = most(watch.settling.may_take_over(now, interval));
            let request = ClaimRequest {
                generation,
                grace,
                max_hold,
                lease,
                lapsed_max: lapsed_max.min(room),
                finished_max: most(watch.settling.may_close(now, grace)),
                old_max: room,
                known: watch.witness.known(now),
            };
            (request, lapsed_max)
        };
        let sending = wanting.iter().map(|name| (name.clone(), lapsed_max));
        let sending: Vec<_> = sending.collect();
        if lapsed_max + request.finished_max == 0 {
            return Ok(Vec::new());
        }
        self.store.claim(partition, &request, &sending).await
    }

    /// Hands back what is known to be closed, if the store may have forgotten it.
    async fn hand_back(&self, partition: Partition, generation: u64) -> Result<(), StoreError> {
        let testimony = {
            let mut watch = self.watches.of(partition);
            watch.settling.look(generation, Instant::now());
            watch.witness.testimony(generation)
        };
        let Some(testimony) = testimony else {
            return Ok(());
        };
        let attested = self.store.attest(partition, &testimony).await?;
        let confirmed = &self.node.confirmed;
        let (recorded, kept) = (confirmed.recorded(partition), confirmed.kept(partition));
        let mut watch = self.watches.of(partition);
        if let Some(mut rollback) = watch.witness.attested(generation, attested, recorded) {
            watch.settling.went_back(Instant::now());
            rollback.events = rollback.events.saturating_sub(kept);
            self.watches.forgot(rollback);
        }
        Ok(())
    }

    pub(super) fn log_rollbacks(&self) {
        let Some((rollback, partitions)) = self.watches.take_rollbacks() else {
            return;
        };
        self.metrics.store_rollbacks.inc();
        self.metrics.events_forgotten.inc_by(rollback.events);
        let minute = Minute::of_nanos(rollback.to_ms.saturating_mul(1_000_000));
        self.node.losses.add(LossCause::Forgotten, minute, rollback.events);
        // Nobody writes their counts from now on.
        let unconfirmed = &rollback.unconfirmed;
        (self.metrics.publications_unconfirmed).inc_by(unconfirmed.len() as u64);
        for minute in unconfirmed {
            self.node.losses.add(LossCause::Unconfirmed, *minute, 1);
        }
        tracing::error!(
            store = self.store.describe(),
            partitions,
            from = time(rollback.from_ms),
            to = time(rollback.to_ms),
            events = rollback.events,
            "the store forgot what it had confirmed in this time; so many events of this node were recorded in it and \
             cannot be recorded again; minutes that were published keep their values; `eds loss` has the minutes"
        );
    }

    /// Warns of clocks that differ so much that events come late.
    pub(super) fn warn_of_clock(&self, throttle: &mut Throttle) {
        let offset_seconds = self.node.clock.store_ahead_seconds();
        let warns = offset_seconds.abs() > self.settings.grace.as_secs_f64() / 2.0;
        if warns && throttle.is_due() {
            tracing::warn!(
                offset_seconds,
                grace = %humantime::format_duration(self.settings.grace),
                "the store's clock, which closes minutes, is not this node's; {}",
                Cause::Clock.remedy()
            );
        }
    }
}

/// An instant in ms since the epoch, for people.
fn time(ms: i64) -> String {
    match DateTime::from_timestamp_millis(ms) {
        Some(time) if ms > 0 => time.to_rfc3339_opts(SecondsFormat::Millis, true),
        _ => "the beginning".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_utc_and_none_as_the_beginning() {
        assert_eq!(time(0), "the beginning");
        assert_eq!(time(1_480_876_707_352), "2016-12-04T18:38:27.352Z");
    }
}
