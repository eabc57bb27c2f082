//! A mutant of sending: what is given to be written is acknowledged first.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use event_data_service::output::{Output, SealedCounts, WriteError, Written};
use event_data_service::store::{Claim, Store};

use super::faulty_store::FaultyStore;
use super::scripted_output::ScriptedOutput;

/// See the module.
#[derive(Debug)]
pub(crate) struct HastyOutput {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) output: ScriptedOutput,
    pub(crate) lease: Duration,
}

#[async_trait]
impl Output for HastyOutput {
    async fn write(&self, counts: &[SealedCounts]) -> Result<Written, WriteError> {
        let world = &self.output.world;
        for count in counts {
            let partition = world.partitions().of(&count.series);
            let held = world.store.look(|state| {
                let claims = &state.partitions[partition.index()].claims;
                claims.get(&count.minute).map(|held| held.token.clone())
            });
            if let Some(token) = held {
                let claim = Claim {
                    generation: 0,
                    partition,
                    minute: count.minute,
                    token,
                    taken_over: false,
                };
                let series = [count.series.as_str()];
                let _ = self.store.acknowledge(&claim, &series, self.lease).await;
            }
        }
        self.output.write(counts).await
    }

    fn describe(&self) -> String {
        "hasty".to_owned()
    }
}
