//! The store as seen by one life of a node. Calls may, for example, fail, lose the response, or be executed late or twice.

use event_data_service::diagnosis::{Cause, Diagnosis};
use event_data_service::store::{
    Attested, Backlog, Capabilities, News, Page, SeriesCounts, SeriesUsers, Store,
};

use super::call::{Answer, Call, Hidden, Parcel};
use super::mutants::RuledStore;
use crate::simulation::prelude::*;

#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
    pub(crate) inner: Arc<RuledStore>,
    /// The task that uses the store, which determines how a mutant behaves.
    pub(crate) role: Role,
    pub(crate) mutant: Option<Mutant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Recorder,
    Worker,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Fine,
    Slow(Duration, Duration),
    Fails,
    Full,
    AnswerLost,
    /// The caller times out, and the call is executed later.
    Late(Duration, Duration),
    Twice,
    DiesBefore,
    DiesAfter,
    SleepsBefore(Duration),
    SleepsAfter(Duration),
}

impl FaultyStore {
    fn fate(&self, call: &Call) -> Fate {
        let plan = &self.world.plan;
        if self.world.is_calm() {
            return Fate::Fine;
        }
        let dice = &mut *self.world.dice();
        let lease = i64::try_from(plan.flush.lease.as_millis()).unwrap();
        if self.world.is_away(&plan.store_outages, self.life.node) {
            return dice.pick(&[Fate::Fails, Fate::Fails, Fate::AnswerLost]);
        }
        // Most calls only look for work, so calls that do work are more likely to fail.
        let weight = if call.is_of_a_claim() { 4 } else { 1 };
        if !dice.per_mille(weight * plan.store_faults) {
            return Fate::Fine;
        }
        let sleep_min = dice.pick(&[0, lease]);
        match dice.below(16) {
            0 => Fate::DiesBefore,
            1 => Fate::DiesAfter,
            2 => Fate::SleepsBefore(dice.millis(sleep_min, 2 * lease)),
            3 => Fate::SleepsAfter(dice.millis(sleep_min, 2 * lease)),
            4 | 5 => Fate::Fails,
            6 => Fate::Full,
            7 | 8 => Fate::AnswerLost,
            9 | 10 => Fate::Late(dice.millis(0, 3000), dice.millis(0, 20_000)),
            11 => Fate::Twice,
            _ => Fate::Slow(dice.millis(0, 3000), dice.millis(0, 3000)),
        }
    }

    async fn make(&self, call: Call) -> Result<Answer, StoreError> {
        self.life.audit().await;
        let fate = self.fate(&call);
        let number = self.life.number;
        match (&call, fate) {
            (Call::Backlog(_) | Call::HaveWork(..), Fate::Fine) => {}
            _ => self.world.note(|| format!("life {number}: {call:?} {fate:?}")),
        }
        let answer = self.undergo(&call, fate).await;
        if let Call::Admit(partition, ..)
        | Call::Counts(Bucket { partition, .. })
        | Call::Users(Bucket { partition, .. }, ..)
        | Call::Record(partition, _) = &call
        {
            self.life.heard_of_recording(*partition, answer.is_err());
        }
        if answer.is_err() && !self.world.is_calm() && self.world.dice().one_in(2) {
            self.life.reconnect();
        }
        match (&call, &answer) {
            (Call::Backlog(_) | Call::HaveWork(..), Ok(_)) => {}
            _ => self.world.note(|| format!("life {number}: = {answer:?}")),
        }
        if let (Call::Record(partition, parcel), Ok(_)) = (&call, &answer) {
            let totals = self.life.shared.ledger.totals();
            let (mut oracle, now_ms) = (self.world.oracle(), self.world.time.now_ms());
            let verdict = oracle.confirmed(number, &parcel.events, &totals);
            oracle.keeps(number, partition.index(), &parcel.events, now_ms);
            drop(oracle);
            self.world.judge(verdict);
        }
        if let (Call::CheckIn(partition, ..), Ok(Answer::News(news))) = (&call, &answer) {
            let mut oracle = self.world.oracle();
            oracle.knows(number, partition.index(), &news.closed);
            oracle.knows(number, partition.index(), &news.empty);
            oracle.knows(number, partition.index(), &news.announced);
        }
        if let (Call::Announce(_, claims), Ok(Answer::Announced(states))) = (&call, &answer) {
            let partition = claims[0].partition;
            let heard = claims.iter().zip(states);
            let heard = heard.filter(|(_, state)| **state == Announced::Heard);
            let heard: Vec<_> = heard.map(|(claim, _)| claim.minute).collect();
            let mut oracle = self.world.oracle();
            oracle.may_write(number, partition.index(), &heard);
        }
        if let Call::CheckIn(partition, ..) | Call::Claim(partition, ..) = &call {
            self.life.heard_of_claim(*partition, answer.is_err());
        }
        if matches!(answer, Err(StoreError::Forgot)) {
            // As with Redis, only recorders learn that the store is full.
            self.life.reconnect();
        }
        answer
    }

    async fn undergo(&self, call: &Call, fate: Fate) -> Result<Answer, StoreError> {
        let unavailable = || Err(StoreError::unavailable(format!("{fate:?}")));
        match fate {
            Fate::Fine => self.carry_out(call).await,
            Fate::Slow(there, back) => {
                tokio::time::sleep(there).await;
                let answer = self.carry_out(call).await;
                tokio::time::sleep(back).await;
                answer
            }
            Fate::Fails => unavailable(),
            Fate::Full => Err(StoreError::Full(Diagnosis::new(Cause::RedisFull, "as planned"))),
            Fate::AnswerLost => {
                let _ = self.carry_out(call).await;
                unavailable()
            }
            Fate::Late(patience, delay) => {
                let (world, inner) = (Arc::clone(&self.world), Arc::clone(&self.inner));
                let (call, number) = (call.clone(), self.life.number);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let answer = call.carry_out(&world, &inner).await;
                    world.note(|| format!("life {number}, long ago: {call:?} = {answer:?}"));
                });
                tokio::time::sleep(patience).await;
                unavailable()
            }
            Fate::Twice => {
                let _ = self.carry_out(call).await;
                self.carry_out(call).await
            }
            Fate::DiesBefore => self.life.die().await,
            Fate::DiesAfter => {
                let _ = self.carry_out(call).await;
                self.life.die().await
            }
            Fate::SleepsBefore(span) => {
                self.life.sleep(span).await;
                self.carry_out(call).await
            }
            Fate::SleepsAfter(span) => {
                let answer = self.carry_out(call).await;
                self.life.sleep(span).await;
                answer
            }
        }
    }

    async fn carry_out(&self, call: &Call) -> Result<Answer, StoreError> {
        let (world, inner, call) = (Arc::clone(&self.world), Arc::clone(&self.inner), call.clone());
        // A separate task ensures that the model learns of the effect even if the caller is dropped.
        let carried_out = tokio::spawn(async move { call.carry_out(&world, &inner).await });
        match carried_out.await {
            Ok(answer) => answer,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

macro_rules! answer {
    ($self:ident, $call:expr, $kind:pat => $value:expr) => {
        match $self.make($call).await {
            Ok($kind) => Ok($value),
            Err(error) => Err(error),
            Ok(other) => panic!("{other:?} is not an answer to this call"),
        }
    };
}

#[async_trait]
impl Store for FaultyStore {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, _partition: Partition) -> u64 {
        match (self.mutant, self.role) {
            (Some(Mutant::NoReplay), Role::Recorder) | (Some(Mutant::NoSettling), Role::Worker) => {
                1
            }
            _ => self.life.generation(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.right.capabilities()
    }

    fn describe(&self) -> String {
        format!("the store as life {} sees it", self.life.number)
    }
}

#[async_trait]
impl Recording for FaultyStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        let series = request.series.iter().map(ToString::to_string).collect();
        let call = Call::Admit(
            partition,
            request.minute,
            series,
            request.series_max,
            request.overflow.to_owned(),
        );
        answer!(self, call, Answer::Admitted(admitted) => admitted)
    }

    async fn counts(&self, bucket: Bucket) -> Result<Vec<SeriesCounts>, StoreError> {
        answer!(self, Call::Counts(bucket), Answer::Counts(counts) => counts)
    }

    async fn users(
        &self,
        bucket: Bucket,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        let users = users.iter().map(ToString::to_string).collect();
        let call = Call::Users(bucket, series.to_owned(), users);
        answer!(self, call, Answer::Users(users) => users)
    }

    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64, StoreError> {
        let parcel = Arc::new(Parcel::new(records.requests, records.seen));
        answer!(self, Call::Record(partition, parcel), Answer::Nothing => 0)
    }
}

#[async_trait]
impl Draining for FaultyStore {
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        let mut testimony = testimony.clone();
        if self.mutant == Some(Mutant::NoWitness) {
            testimony.closed.clear();
            testimony.announced.clear();
            testimony.since = None;
        }
        let call = Call::Attest(partition, testimony);
        answer!(self, call, Answer::Attested(attested) => attested)
    }

    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News, StoreError> {
        let lags = check_in.lags && self.mutant != Some(Mutant::NoLag);
        self.world.judge(self.life.may_report(partition, lags));
        let call = Call::CheckIn(partition, CheckIn { lags, ..*check_in });
        let news = answer!(self, call, Answer::News(news) => news)?;
        self.life.reported_lag(partition, lags);
        Ok(news)
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        let generation = self.generation(partition);
        if request.generation != generation {
            return Err(StoreError::unavailable("another connection"));
        }
        let interval = self.world.plan.flush.interval;
        self.world.judge(self.life.may_ask(partition, request, interval));
        let call = Call::Claim(partition, *request, sending.to_vec());
        let mut claims = answer!(self, call, Answer::Claims(claims) => claims)?;
        for claim in &mut claims {
            claim.generation = generation;
        }
        Ok(claims)
    }

    async fn compact(
        &self,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction, StoreError> {
        if claim.generation != self.generation(claim.partition) {
            return Err(StoreError::unavailable("another connection"));
        }
        // Use smaller steps than the worker requests, so that more can happen between two steps.
        let SealRequest { series_max, lease, outputs, sources, .. } = *request;
        let series_max = series_max.min(self.world.plan.compact_series);
        let (outputs, sources) = (outputs.to_vec(), sources.to_vec());
        let call = Call::Compact(claim.clone(), series_max, lease, outputs, sources);
        let mut done = answer!(self, call, Answer::Compaction(done) => done)?;
        for to_send in &mut done.sending {
            to_send.generation = claim.generation;
        }
        Ok(done)
    }

    async fn sealed_users(
        &self,
        claim: &Claim,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<(), StoreError> {
        let call = Call::SealedUsers(claim.clone(), series.to_vec());
        let found = answer!(self, call, Answer::Fingerprints(Hidden(found)) => found)?;
        for (place, users) in found {
            take(place, users);
        }
        Ok(())
    }

    async fn contribute(
        &self,
        window: Bucket,
        source: Bucket,
        frames: &[Vec<u8>],
    ) -> Result<bool, StoreError> {
        // Frames are made by other threads, in any order. The calls need an order that depends only on the seed.
        let minute = source.minute.epoch_minutes().unsigned_abs() % 10;
        let place = (minute * 3 + source.partition.index() as u64) * 3 + self.life.node as u64;
        tokio::time::sleep(Duration::from_millis(1 + place)).await;
        let is_doubled = !self.world.is_calm() && self.world.dice().one_in(8);
        let call = Call::Contribute(window, source, Hidden(frames.to_vec()), is_doubled);
        answer!(self, call, Answer::Yes(is_open) => is_open)
    }

    async fn lacks(
        &self,
        window: Bucket,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>, StoreError> {
        let call = Call::Lacks(window, partition, minutes.to_vec());
        answer!(self, call, Answer::Lacking(lacking) => lacking)
    }

    async fn settle(
        &self,
        at: Partition,
        window: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>, StoreError> {
        let call = Call::Settle(at, window, *request);
        answer!(self, call, Answer::Settled(settled) => settled)
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        answer!(self, Call::Unsent(claim.clone(), cursor), Answer::Page(page) => page)
    }

    async fn announce(
        &self,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        if self.mutant == Some(Mutant::NoAnnouncement) {
            return Ok(vec![Announced::Heard; claims.len()]);
        }
        let claims = claims.iter().map(|&claim| claim.clone()).collect();
        let call = Call::Announce(*known, claims);
        let answer = answer!(self, call, Answer::Announced(announced) => announced);
        if self.mutant == Some(Mutant::NoWait) {
            let hear = |state: Announced| match state {
                Announced::Unheard => Announced::Heard,
                state => state,
            };
            return answer.map(|states| states.into_iter().map(hear).collect());
        }
        answer
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let series = series.iter().map(ToString::to_string).collect();
        let call = Call::Acknowledge(claim.clone(), series, lease);
        answer!(self, call, Answer::Yes(done) => done)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let refused = refused.iter().map(|(series, words)| (series.to_string(), words.to_string()));
        let call = Call::Quarantine(claim.clone(), refused.collect());
        answer!(self, call, Answer::Kept(kept) => kept)
    }

    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize, StoreError> {
        let claims: Vec<_> = claims.iter().map(|&claim| claim.clone()).collect();
        let is_blind = self.mutant == Some(Mutant::BlindContribution)
            && matches!(&claims[..], [Claim { output: Some(output), .. }] if output.as_str() == "rollup");
        let held = answer!(self, Call::Extend(claims, lease), Answer::Held(held) => held);
        held.map(|held| if is_blind { 1 } else { held })
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        answer!(self, Call::Backlog(partition), Answer::Backlog(backlog) => backlog)
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        let call = Call::HaveWork(partitions.to_vec(), outputs.to_vec());
        answer!(self, call, Answer::Each(have) => have)
    }
}
