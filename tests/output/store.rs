//! A store of sealed counts, which a worker sends to its one output.

use std::sync::MutexGuard;

use async_trait::async_trait;
use event_data_service::event::{Minute, Partition};
use event_data_service::output::SealedCounts;
use event_data_service::store::{
    Announced, Attested, Backlog, CheckIn, Claim, ClaimRequest, Compaction, Draining, Known, News,
    OutputName, Page, SealRequest, SeriesCounts, Store, StoreError, Testimony,
};
use testing::prelude::*;
use tokio::time::Instant;

/// Minute and series of counts.
pub(super) type Names = BTreeSet<(i64, String)>;

#[derive(Debug, Default)]
struct MinuteState {
    unsent: BTreeMap<String, SeriesCounts>,
    /// When the worker may claim it again.
    lapses: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SealedStore {
    minutes: Mutex<BTreeMap<Minute, MinuteState>>,
    quarantined: Mutex<Names>,
}

impl SealedStore {
    pub(super) fn add(&self, counts: &SealedCounts) {
        let SealedCounts { minute, series, unique, cumulative, .. } = counts.clone();
        let unsent = SeriesCounts { series: series.clone(), unique, cumulative };
        self.minutes().entry(minute).or_default().unsent.insert(series, unsent);
    }

    /// The counts that are neither confirmed nor quarantined.
    pub(super) fn unsent(&self) -> Names {
        let minutes = self.minutes();
        let names = minutes.iter().flat_map(|(minute, state)| {
            state.unsent.keys().map(|series| (minute.epoch_minutes(), series.clone()))
        });
        names.collect()
    }

    pub(super) fn quarantined(&self) -> Names {
        self.quarantined.lock().unwrap().clone()
    }

    fn minutes(&self) -> MutexGuard<'_, BTreeMap<Minute, MinuteState>> {
        self.minutes.lock().unwrap()
    }
}

#[async_trait]
impl Store for SealedStore {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, _: Partition) -> u64 {
        0
    }

    fn describe(&self) -> String {
        "a store of sealed counts".to_owned()
    }
}

#[async_trait]
impl Draining for SealedStore {
    async fn attest(&self, _: Partition, _: &Testimony) -> Result<Attested, StoreError> {
        Ok(Attested { epoch: 1, ..Attested::default() })
    }

    async fn check_in(&self, _: Partition, _: &CheckIn) -> Result<News, StoreError> {
        let now_ms = chrono::Utc::now().timestamp_millis();
        Ok(News { now_ms, is_due: !self.minutes().is_empty(), ..News::default() })
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        let Some((output, most)) = sending.first() else {
            return Ok(Vec::new());
        };
        let now = Instant::now();
        let mut minutes = self.minutes();
        let lapsed =
            minutes.iter_mut().filter(|(_, state)| state.lapses.is_none_or(|at| at <= now));
        let claims = lapsed.take(*most).map(|(minute, state)| {
            state.lapses = Some(now + request.lease);
            Claim {
                partition,
                minute: *minute,
                output: Some(output.clone()),
                token: String::new(),
                generation: 0,
                taken_over: true,
            }
        });
        Ok(claims.collect())
    }

    async fn compact(&self, _: &Claim, _: &SealRequest<'_>) -> Result<Compaction, StoreError> {
        Err(StoreError::ClaimLost)
    }

    async fn unsent(&self, claim: &Claim, _: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let minutes = self.minutes();
        let unsent = minutes.get(&claim.minute).into_iter().flat_map(|it| it.unsent.values());
        Ok(Page { items: unsent.cloned().collect(), next: None })
    }

    async fn announce(&self, _: &Known, claims: &[&Claim]) -> Result<Vec<Announced>, StoreError> {
        Ok(vec![Announced::Heard; claims.len()])
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let mut minutes = self.minutes();
        let state = minutes.get_mut(&claim.minute).ok_or(StoreError::ClaimLost)?;
        state.unsent.retain(|name, _| !series.contains(&name.as_str()));
        state.lapses = Some(Instant::now() + lease);
        let is_sent = state.unsent.is_empty();
        if is_sent {
            minutes.remove(&claim.minute);
        }
        Ok(is_sent)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let mut minutes = self.minutes();
        let state = minutes.get_mut(&claim.minute).ok_or(StoreError::ClaimLost)?;
        let mut quarantined = self.quarantined.lock().unwrap();
        for (series, _) in refused {
            state.unsent.remove(*series);
            quarantined.insert((claim.minute.epoch_minutes(), (*series).to_owned()));
        }
        Ok(vec![true; refused.len()])
    }

    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize, StoreError> {
        let mut minutes = self.minutes();
        let mut held = 0;
        for claim in claims {
            if let Some(state) = minutes.get_mut(&claim.minute) {
                state.lapses = Some(Instant::now() + lease);
                held += 1;
            }
        }
        Ok(held)
    }

    async fn backlog(&self, _: Partition) -> Result<Backlog, StoreError> {
        Ok(Backlog::default())
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        _: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        Ok(vec![!self.minutes().is_empty(); partitions.len()])
    }
}
