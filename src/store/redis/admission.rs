//! Asking Redis which series and users of a minute have a place of their own.
//!
//! Over the connection that records: what it answers holds for what is recorded over the same connection.

use ::redis::aio::MultiplexedConnection;
use ::redis::pipe;

use super::agreement::OUTDATED_HINT;
use super::gateway::RECORDING;
use super::{RedisStore, millis, scripts};
use crate::event::{Minute, Partition};
use crate::store::{Admission, AdmitRequest, Admitted, SeriesUsers, StoreError};

impl RedisStore {
    pub(super) async fn ask_to_admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        let keys = self.keys(partition);
        let base = keys.minute(request.minute);
        let mut script = scripts::ADMIT.prepare_invoke();
        let minute = request.minute;
        let divided = self.partitions.count_in(minute);
        let outdated = |reason| StoreError::Refused {
            reason,
            hint: OUTDATED_HINT.to_owned(),
        };
        if let Some(reason) = self.gateway.outdated_from(minute) {
            return Err(outdated(reason));
        }
        script
            .key(format!("{base}counts"))
            .key(&keys.division)
            .arg(request.series_max)
            .arg(request.overflow)
            .arg(millis(self.retention))
            .arg(request.minute.end_millis())
            .arg(format!("{base}unique_user:"))
            .arg(minute.epoch_minutes())
            .arg(divided)
            .arg(request.series);
        let ask = async move |connection: &mut MultiplexedConnection| {
            script.invoke_async::<Option<Vec<i64>>>(connection).await
        };
        let answers = self.gateway.run(keys.slot, RECORDING, ask).await?;
        let answers = answers.ok_or_else(|| {
            let words =
                format!("minute {minute} is not divided into {divided} partitions any more");
            outdated(words)
        })?;
        let mut users = answers.into_iter().map(u64::try_from);
        let overflow_users = users.next().and_then(Result::ok).unwrap_or_default();
        let series: Vec<_> = users
            .map(|users| users.map_or(Admission::Refused, |users| Admission::Admitted { users }))
            .collect();
        if series.len() != request.series.len() {
            return Err(StoreError::Unavailable(
                "an answer of another length".to_owned(),
            ));
        }
        Ok(Admitted {
            overflow_users,
            series,
        })
    }

    pub(super) async fn ask_for_users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        let keys = self.keys(partition);
        let key = format!("{}unique_user:{series}", keys.minute(minute));
        let mut pipeline = pipe();
        pipeline.scard(&key);
        pipeline.cmd("SMISMEMBER").arg(&key).arg(users);
        let ask = async |connection: &mut MultiplexedConnection| {
            pipeline.query_async::<(u64, Vec<bool>)>(connection).await
        };
        let (count, there) = self.gateway.run(keys.slot, RECORDING, ask).await?;
        Ok(SeriesUsers { count, there })
    }
}
