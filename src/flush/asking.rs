//! Asking the store for minutes: what this node knows goes there, and what it forgot, or its clock, is logged.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use tokio::time::Instant;

use super::FlushSettings;
use super::watch::Watches;
use super::worker::Worker;
use crate::event::Partition;
use crate::node::Throttle;
use crate::store::{CLOCK_TOLERANCE_MS, Claim, ClaimRequest, StoreError};

/// A minute that looks over after a jump is over after this long.
const MINUTE: Duration = Duration::from_secs(60);

impl Worker {
    /// Asks for at most so many minutes of each kind, and takes in what the store tells.
    pub(super) async fn ask(
        &self,
        partition: Partition,
        watches: &Watches,
        claims_max: usize,
    ) -> Result<Vec<Claim>, StoreError> {
        let FlushSettings {
            interval,
            grace,
            max_hold,
            lease,
            ..
        } = self.settings;
        self.hand_back(partition, watches).await?;
        let recorded = self.node.confirmed.recorded(partition);
        let generation = self.store.generation(partition);
        self.report_lag(partition, watches).await?;
        let reported_elsewhere = self.store.generation(partition) != generation;
        let request = {
            let now = Instant::now();
            let mut watch = watches.of(partition);
            if self.node.lag.is_lagging(partition) && !watch.settling.reported_lag {
                // It began a moment ago, and is reported before anything is claimed.
                return Ok(Vec::new());
            }
            if watch.settling.reported_lag && reported_elsewhere {
                // Another server may claim than the one that knows of it.
                return Ok(Vec::new());
            }
            // Handing back may have taken long.
            watch.settling.look(self.store.generation(partition), now);
            let most = |may: bool| if may { claims_max } else { 0 };
            ClaimRequest {
                grace,
                max_hold,
                lease,
                lapsed_max: most(watch.settling.may_take_over(now, interval)),
                finished_max: most(watch.settling.may_close(now, grace)),
                known: watch.witness.known(now),
            }
        };
        let asked_nanos = self.node.clock.now_nanos();
        let claimed = self.store.claim(partition, &request).await;
        let mut watch = watches.of(partition);
        let claimed = claimed.inspect_err(|error| {
            if matches!(error, StoreError::Forgot) {
                watch.witness.forgotten();
            }
        })?;
        let now = Instant::now();
        let jump_ms = watch.witness.heard(&claimed, recorded, now);
        if jump_ms > CLOCK_TOLERANCE_MS {
            let hold_max = max_hold.max(MINUTE + grace);
            let ahead = Duration::from_millis(jump_ms.unsigned_abs());
            watch.settling.jumped(ahead, hold_max, now);
        }
        // As of the middle of the call.
        let nanos = i64::midpoint(asked_nanos, self.node.clock.now_nanos());
        self.node
            .clock
            .set_store_ahead_ms(claimed.now_ms.saturating_sub(nanos / 1_000_000));
        Ok(claimed.claims)
    }

    /// Reports that this node lags, as long as it does, and once that it does no more.
    async fn report_lag(&self, partition: Partition, watches: &Watches) -> Result<(), StoreError> {
        let FlushSettings { grace, lease, .. } = self.settings;
        let lags = {
            let mut watch = watches.of(partition);
            let lags = self.node.lag.is_lagging(partition);
            let lags = watch.settling.is_lagging(lags, Instant::now(), grace);
            if !lags && !watch.settling.reported_lag {
                return Ok(());
            }
            lags
        };
        if lags {
            // A report that fails may have been taken all the same.
            watches.of(partition).settling.reported_lag = true;
        }
        let lags_for = lags.then_some(lease);
        self.store.report_lag(partition, lags_for).await?;
        watches.of(partition).settling.reported_lag = lags;
        Ok(())
    }

    /// Hands back what is known to be closed, if the store may have forgotten it.
    async fn hand_back(&self, partition: Partition, watches: &Watches) -> Result<(), StoreError> {
        let generation = self.store.generation(partition);
        let testimony = {
            let mut watch = watches.of(partition);
            watch.settling.look(generation, Instant::now());
            watch.witness.testimony(generation)
        };
        let Some(testimony) = testimony else {
            return Ok(());
        };
        let attested = self.store.attest(partition, &testimony).await?;
        let confirmed = &self.node.confirmed;
        let (recorded, kept) = (confirmed.recorded(partition), confirmed.kept(partition));
        let mut watch = watches.of(partition);
        if let Some(mut rollback) = watch.witness.attested(generation, attested, recorded) {
            watch.settling.went_back(Instant::now());
            rollback.events = rollback.events.saturating_sub(kept);
            watches.forgot(rollback);
        }
        Ok(())
    }

    pub(super) fn tell_of_rollbacks(&self, watches: &Watches) {
        let Some((rollback, partitions)) = watches.take_rollbacks() else {
            return;
        };
        self.metrics.store_rollbacks.inc();
        self.metrics.events_forgotten.inc_by(rollback.events);
        tracing::error!(
            store = self.store.describe(),
            partitions,
            from = time(rollback.from_ms),
            to = time(rollback.to_ms),
            events = rollback.events,
            "the store forgot what it had confirmed in this time; so many events of this node were recorded in it and \
             cannot be recorded again; minutes that were published keep their values; give Redis an append-only file \
             (appendonly yes)"
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
                "the store's clock, which closes minutes, is not this node's: where it is ahead minutes close before their \
                 events are there; set both by NTP"
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
