//! Mutants of outputs: one acknowledges counts before they are written, and one never writes probes.

use event_data_service::output::{Output, SealedCounts, WriteError};

use crate::simulation::prelude::*;

#[derive(Debug)]
pub(crate) struct HastyOutput {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) output: ScriptedOutput,
    pub(crate) lease: Duration,
}

#[async_trait]
impl Output for HastyOutput {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let world = &self.output.world;
        let to = output_name(self.output.number);
        for count in counts {
            let partition = count.partition;
            let place = (partition.index(), count.minute.epoch_minutes());
            let held = world.look(|state| {
                let token = state.token(place, Some(self.output.number))?;
                Some(token.to_owned())
            });
            if let Some(token) = held {
                let claim = Claim {
                    generation: 0,
                    partition,
                    minute: count.minute,
                    output: Some(to.clone()),
                    token,
                    taken_over: false,
                };
                let series = [count.series.as_str()];
                let _ = self.store.acknowledge(&claim, &series, self.lease).await;
            }
        }
        self.output.write(counts).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        self.output.probe(minute).await
    }

    fn describe(&self) -> String {
        "hasty".to_owned()
    }
}

#[derive(Debug)]
pub(crate) struct CredulousOutput {
    pub(crate) output: ScriptedOutput,
    /// The last accepted count. A write of only this count is a probe.
    pub(crate) accepted: Mutex<Option<SealedCounts>>,
}

#[async_trait]
impl Output for CredulousOutput {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        if let [count] = counts
            && *self.accepted.lock().unwrap() == Some(count.clone())
        {
            return Ok(());
        }
        self.output.write(counts).await?;
        *self.accepted.lock().unwrap() = counts.last().cloned();
        Ok(())
    }

    async fn probe(&self, _: Minute) -> Result<(), WriteError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "credulous".to_owned()
    }
}
