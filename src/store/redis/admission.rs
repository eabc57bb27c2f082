//! Asking Redis which series and users of a minute have a place of their own.
//!
//! Over the connection that records: what it answers holds for what is recorded over the same connection.

use ::redis::aio::MultiplexedConnection;
use ::redis::pipe;

use super::gateway::Lane;
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
        script
            .key(format!("{base}counts"))
            .arg(request.series_max)
            .arg(request.overflow)
            .arg(millis(self.retention))
            .arg(request.minute.end_millis())
            .arg(format!("{base}unique_user:"))
            .arg(request.series);
        let ask = async move |connection: &mut MultiplexedConnection| {
            script.invoke_async::<Vec<i64>>(connection).await
        };
        let answers: Vec<i64> = self.gateway.run(keys.slot, Lane::Recording, ask).await?;
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
        let (count, there) = self.gateway.run(keys.slot, Lane::Recording, ask).await?;
        Ok(SeriesUsers { count, there })
    }
}
