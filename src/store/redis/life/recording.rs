//! Admission of series, which both layouts share, and recording in either.

use async_trait::async_trait;

use super::Admit;
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};
use crate::store::redis::gateway::RECORDING;
use crate::store::redis::{RedisStore, millis};
use crate::store::{
    Admission, AdmitRequest, Admitted, RecordRequest, Recording, Result, Seen, SeriesCounts,
    SeriesUsers, StoreError,
};

#[async_trait]
impl Recording for RedisStore {
    async fn admit(&self, partition: Partition, request: &AdmitRequest<'_>) -> Result<Admitted> {
        let (gateway, minute) = (&self.gateway, request.minute);
        if let Some(outdated) = gateway.outdated_from(minute) {
            return Err(StoreError::Refused(outdated));
        }
        let divided = gateway.partitions.count_in(minute);
        let at = gateway.at(partition, minute);
        let mut script = Admit {
            name: minute.to_string(),
            minute: minute.epoch_minutes(),
            series_max: request.series_max,
            overflow: request.overflow,
            retention_ms: millis(gateway.retention),
            minute_end_ms: minute.end_millis(),
            user_sets: self.layout.user_sets().map_or_else(String::new, |sets| at.key(sets)),
            divided,
        }
        .at(&at.place);
        script.arg(request.series);
        let answers: Option<(u64, Vec<i64>)> = at.ask(RECORDING, script).await?;
        let (arrivals, answers) = answers.ok_or_else(|| {
            let why = format!(
                "minute {} is not divided into {divided} partitions any more",
                minute.shown()
            );
            StoreError::Refused(Diagnosis::new(Cause::SettingsOutdated, why))
        })?;
        let mut answers = answers.into_iter();
        let users = |answer: i64| u64::try_from(answer).ok();
        let overflow_users = answers.next().and_then(users);
        let series: Vec<_> = answers
            .map(|answer| match answer {
                -1 => Admission::Refused,
                answer => Admission::Admitted { users: users(answer) },
            })
            .collect();
        if series.len() != request.series.len() {
            return Err(StoreError::unavailable("an answer of another length"));
        }
        Ok(Admitted { overflow_users, arrivals, series })
    }

    async fn counts(&self, partition: Partition, minute: Minute) -> Result<Vec<SeriesCounts>> {
        self.layout.counts(self.gateway.at(partition, minute)).await
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers> {
        self.layout.users(self.gateway.at(partition, minute), series, users).await
    }

    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<u64> {
        self.layout.record(&self.gateway, partition, generation, recordings, seen).await
    }
}
