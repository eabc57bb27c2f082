//! Store calls as data, so that a call can be executed late, twice, or without a response.

use event_data_service::event::{Batch, Group};
use event_data_service::store::{Attested, Backlog, News, Page, SeriesCounts, SeriesUsers};
use testing::lua_redis::keyspace::Keyspace;

use super::event::{series_number, user_number};
use super::mutants::RuledStore;
use super::oracle::Contribution;
use crate::simulation::prelude::*;

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Admit(Partition, Minute, Vec<String>, u64, String),
    Counts(Bucket),
    Users(Bucket, String, Vec<String>),
    Record(Partition, Arc<Parcel>),
    Attest(Partition, Testimony),
    CheckIn(Partition, CheckIn),
    Claim(Partition, ClaimRequest, Vec<(OutputName, usize)>),
    Compact(Claim, usize, Duration, Vec<OutputName>, Vec<(Partition, Vec<Minute>)>),
    SealedUsers(Claim, Vec<SeriesCounts>),
    /// The window, the minute that is added, its frames, and whether two nodes add it at the same time.
    Contribute(Bucket, Bucket, Hidden<Vec<Vec<u8>>>, bool),
    Lacks(Bucket, Partition, Vec<Minute>),
    Settle(Partition, [Minute; 2], ClaimRequest),
    Unsent(Claim, u64),
    Announce(Known, Vec<Claim>),
    Acknowledge(Claim, Vec<String>, Duration),
    Quarantine(Claim, Vec<(String, String)>),
    Extend(Vec<Claim>, Duration),
    Backlog(Partition),
    HaveWork(Vec<Partition>, Vec<OutputName>),
}

#[derive(Debug)]
pub(crate) enum Answer {
    Nothing,
    Admitted(Admitted),
    Counts(Vec<SeriesCounts>),
    Users(SeriesUsers),
    Attested(Attested),
    News(News),
    Claims(Vec<Claim>),
    Compaction(Compaction),
    Fingerprints(Hidden<Vec<(usize, Vec<u64>)>>),
    Lacking(Vec<Minute>),
    Settled(Option<Vec<Minute>>),
    Page(Page<SeriesCounts>),
    Announced(Vec<Announced>),
    Yes(bool),
    Kept(Vec<bool>),
    Held(usize),
    Backlog(Backlog),
    Each(Vec<bool>),
}

/// A value that depends on the random fingerprint key, so that it must not be in a trace.
#[derive(Clone)]
pub(crate) struct Hidden<T>(pub(crate) T);

impl<T> std::fmt::Debug for Hidden<Vec<T>> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} parts", self.0.len())
    }
}

pub(crate) struct Parcel {
    batch: Batch,
    /// For each group of the batch, the users that the store may not know, and the overflow series if there is one.
    details: Vec<(Option<Vec<String>>, Option<String>)>,
    pub(crate) events: Vec<Event>,
    pub(crate) under: Vec<u8>,
    /// The node's coverage after the events have been recorded.
    seen: Vec<Seen>,
}

impl std::fmt::Debug for Parcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} under {:?}, details {:?}", self.events, self.under, self.details)
    }
}

impl Parcel {
    pub(crate) fn new(recordings: &[RecordRequest<'_>], seen: &[Seen]) -> Self {
        let mut batch = Batch::default();
        let mut details: Vec<(Option<Vec<String>>, Option<String>)> = Vec::new();
        let mut events = Vec::new();
        let mut under = Vec::new();
        for recording in recordings {
            // Use the original series, because several groups may have the same overflow series.
            let own = recording.overflowed_from.unwrap_or(recording.series);
            for occurrence in recording.occurrences {
                let user = recording.batch.user(occurrence);
                assert!(batch.push(recording.minute, own, user, occurrence.timestamp));
                let event = Event {
                    series: series_number(own),
                    user: user_number(user),
                    at: occurrence.timestamp,
                };
                assert_eq!(Some(recording.minute), Minute::from_epoch_minutes(event.minute()));
                events.push(event);
                under.push(series_number(recording.series));
            }
            let groups = batch.groups();
            let is_same = |group: &Group| group.minute == recording.minute && *group.series == *own;
            let place = groups.iter().position(is_same).unwrap();
            details.resize_with(groups.len(), Default::default);
            let overflow = recording.overflowed_from.map(|_| recording.series.to_owned());
            let (users, is_under) = &mut details[place];
            if let Some(new) = &recording.new_users {
                let users = users.get_or_insert_default();
                users.extend(new.iter().map(ToString::to_string));
            }
            assert!(is_under.is_none() || *is_under == overflow);
            *is_under = overflow;
        }
        Self { batch, details, events, under, seen: seen.to_vec() }
    }

    pub(crate) fn recordings(&self) -> Vec<RecordRequest<'_>> {
        let groups = self.batch.groups().iter().zip(&self.details);
        groups
            .map(|(group, (users, overflow))| RecordRequest {
                minute: group.minute,
                series: overflow.as_deref().unwrap_or(&group.series),
                overflowed_from: overflow.is_some().then_some(&*group.series),
                new_users: users.as_ref().map(|users| users.iter().map(String::as_str).collect()),
                occurrences: &group.occurrences,
                batch: &self.batch,
            })
            .collect()
    }
}

fn place(bucket: Bucket) -> Place {
    (bucket.partition.index(), bucket.minute.epoch_minutes())
}

impl Call {
    /// Executes the call and updates the model in a single step.
    pub(crate) async fn carry_out(
        &self,
        world: &World,
        store: &RuledStore,
    ) -> Result<Answer, StoreError> {
        let _step = world.step.lock().await;
        store.connect().await;
        let stale = self.is_stale(world);
        let before = stale.then(|| world.redis.keyspace().clone());
        let late_before = world.look(|state| self.late(state));
        let answer = store.ask(world, self).await;
        let verdict = match &before {
            Some(before) => self.changed_nothing(&answer, before, &world.redis.keyspace()),
            None => world.look(|state| self.report(world, store.life, &answer, late_before, state)),
        };
        world.judge(verdict);
        answer
    }

    pub(crate) async fn ask(&self, store: &RedisStore) -> Result<Answer, StoreError> {
        Ok(match self {
            Self::Admit(partition, minute, series, series_max, overflow) => {
                let series: Vec<&str> = series.iter().map(String::as_str).collect();
                let request = AdmitRequest {
                    minute: *minute,
                    series: &series,
                    series_max: *series_max,
                    overflow,
                };
                Answer::Admitted(store.admit(*partition, &request).await?)
            }
            Self::Counts(bucket) => Answer::Counts(store.counts(*bucket).await?),
            Self::Users(bucket, series, users) => {
                let users: Vec<&str> = users.iter().map(String::as_str).collect();
                Answer::Users(store.users(*bucket, series, &users).await?)
            }
            Self::Record(partition, parcel) => {
                let recordings = parcel.recordings();
                let records = Records { generation: 0, requests: &recordings, seen: &parcel.seen };
                store.record(*partition, &records).await?;
                Answer::Nothing
            }
            Self::Attest(partition, testimony) => {
                Answer::Attested(store.attest(*partition, testimony).await?)
            }
            Self::CheckIn(partition, check_in) => {
                Answer::News(store.check_in(*partition, check_in).await?)
            }
            Self::Claim(partition, request, sending) => {
                // The model checks claims itself, so the store must not reject them after a reconnect.
                let request = ClaimRequest { generation: 0, ..*request };
                Answer::Claims(store.claim(*partition, &request, sending).await?)
            }
            Self::Compact(claim, series_max, lease, outputs, sources) => {
                let claim = Claim { generation: 0, ..claim.clone() };
                let request = SealRequest {
                    series_max: *series_max,
                    lease: *lease,
                    outputs,
                    sources,
                    ..SealRequest::default()
                };
                Answer::Compaction(store.compact(&claim, &request).await?)
            }
            Self::SealedUsers(claim, series) => {
                let mut found = Vec::new();
                let mut take = |place, users| found.push((place, users));
                store.sealed_users(claim, series, &mut take).await?;
                Answer::Fingerprints(Hidden(found))
            }
            Self::Contribute(window, source, Hidden(frames), is_doubled) => {
                let add = || store.contribute(*window, *source, frames);
                let other = async { if *is_doubled { add().await } else { Ok(true) } };
                let (added, other) = tokio::join!(add(), other);
                Answer::Yes(added? && other?)
            }
            Self::Lacks(window, partition, minutes) => {
                Answer::Lacking(store.lacks(*window, *partition, minutes).await?)
            }
            Self::Settle(partition, window, request) => {
                Answer::Settled(store.settle(*partition, *window, request).await?)
            }
            Self::Unsent(claim, cursor) => Answer::Page(store.unsent(claim, *cursor).await?),
            Self::Acknowledge(claim, series, lease) => {
                let series: Vec<&str> = series.iter().map(String::as_str).collect();
                Answer::Yes(store.acknowledge(claim, &series, *lease).await?)
            }
            Self::Quarantine(claim, refused) => {
                let refused: Vec<_> =
                    refused.iter().map(|(series, words)| (&**series, &**words)).collect();
                Answer::Kept(store.quarantine(claim, &refused).await?)
            }
            Self::Announce(known, claims) => {
                let claims: Vec<&Claim> = claims.iter().collect();
                Answer::Announced(store.announce(known, &claims).await?)
            }
            Self::Extend(claims, lease) => {
                let claims: Vec<&Claim> = claims.iter().collect();
                Answer::Held(store.extend(&claims, *lease).await?)
            }
            Self::Backlog(partition) => Answer::Backlog(store.backlog(*partition).await?),
            Self::HaveWork(partitions, outputs) => {
                Answer::Each(store.have_work(partitions, outputs).await?)
            }
        })
    }

    /// Returns how many late events the store has counted for the holder of a claim to seal.
    fn late(&self, state: &State<'_>) -> u64 {
        let Self::Compact(claim, ..) = self else {
            return 0;
        };
        let node = claim.token.rsplit_once('|').map_or("", |(node, _)| node);
        state.late(claim.partition.index(), node)
    }

    pub(crate) const fn is_of_a_claim(&self) -> bool {
        matches!(
            self,
            Self::Compact(..)
                | Self::SealedUsers(..)
                | Self::Contribute(..)
                | Self::Settle(..)
                | Self::Announce(..)
                | Self::Acknowledge(..)
                | Self::Quarantine(..)
                | Self::Extend(..)
        )
    }

    fn is_stale(&self, world: &World) -> bool {
        match self {
            Self::Compact(claim, ..)
            | Self::Acknowledge(claim, ..)
            | Self::Quarantine(claim, ..) => !world.oracle().is_current(claim),
            Self::Extend(claims, _) => {
                let oracle = world.oracle();
                !claims.iter().any(|claim| oracle.is_current(claim))
            }
            _ => false,
        }
    }

    fn changed_nothing(
        &self,
        answer: &Result<Answer, StoreError>,
        before: &Keyspace,
        after: &Keyspace,
    ) -> Verdict {
        let refused = matches!(answer, Err(StoreError::ClaimLost) | Ok(Answer::Held(0)));
        if refused && before == after {
            Ok(())
        } else {
            Err(format!("a stale token was good for {self:?}: {answer:?}"))
        }
    }

    fn report(
        &self,
        world: &World,
        life: usize,
        answer: &Result<Answer, StoreError>,
        late_before: u64,
        state: &State<'_>,
    ) -> Verdict {
        let now_ms = world.time.now_ms();
        let deadline = |lease: &Duration| now_ms + i64::try_from(lease.as_millis()).unwrap();
        let mut oracle = world.oracle();
        match (self, answer) {
            (Self::Record(partition, parcel), Ok(_)) => {
                let events = parcel.events.iter().copied();
                let events: Vec<_> = events.zip(parcel.under.iter().copied()).collect();
                oracle.recorded(partition.index(), &events, now_ms, state)
            }
            (
                Self::Admit(partition, minute, series, series_max, _),
                Ok(Answer::Admitted(answer)),
            ) => {
                let series = series.iter().map(|series| series_number(series));
                let answers: Vec<_> = series.zip(answer.series.iter().copied()).collect();
                oracle.admitted(
                    (partition.index(), minute.epoch_minutes()),
                    &answers,
                    *series_max,
                    now_ms,
                )
            }
            (Self::CheckIn(partition, CheckIn { alive, .. }), Ok(_)) => {
                oracle.checked_in(life, partition.index(), deadline(alive));
                Ok(())
            }
            (Self::Attest(partition, testimony), Ok(Answer::Attested(_))) => {
                oracle.attested(partition.index(), testimony);
                Ok(())
            }
            (Self::Claim(partition, request, _), Ok(Answer::Claims(claims))) => {
                oracle.claimed(partition.index(), request, claims, now_ms, state)
            }
            (Self::Contribute(window, source, frames, _), Ok(Answer::Yes(is_open))) => {
                let contribution = Contribution {
                    life,
                    window: place(*window),
                    source: place(*source),
                    is_empty: frames.0.is_empty(),
                    is_open: *is_open,
                };
                let words = oracle.contributed(contribution, now_ms, state)?;
                world.note(|| format!("life {life} adds {source:?} to {window:?} {words}"));
                Ok(())
            }
            (Self::Settle(partition, window, request), Ok(Answer::Settled(settled))) => {
                let at = (partition.index(), *window);
                oracle.settled(life, at, request, settled.is_some(), now_ms, state)
            }
            (Self::Compact(claim, series_max, lease, ..), Ok(Answer::Compaction(done))) => {
                let done = Compaction {
                    late: done.late - late_before,
                    ..done.clone()
                };
                let times = (now_ms, deadline(lease));
                oracle.compacted(claim, *series_max, &done, times, state)
            }
            (Self::Announce(_, claims), Ok(Answer::Announced(states))) => {
                let partition = claims[0].partition;
                let states = claims.iter().zip(states.iter().copied());
                oracle.announced(partition.index(), states, now_ms, state)
            }
            (Self::Acknowledge(claim, series, lease), Ok(Answer::Yes(done))) => {
                let series: Vec<u8> = series.iter().map(|series| series_number(series)).collect();
                let times = (now_ms, deadline(lease));
                oracle.acknowledged(claim, &series, *done, times, state)
            }
            (Self::Quarantine(claim, refused), Ok(Answer::Kept(kept)))
                if kept.iter().all(|kept| *kept) && kept.len() == refused.len() =>
            {
                let series: Vec<u8> = refused
                    .iter()
                    .map(|(series, _)| series_number(series))
                    .collect();
                oracle.quarantine(claim, &series, now_ms, state)
            }
            (Self::Extend(claims, lease), Ok(Answer::Held(held))) => {
                oracle.extended(claims, deadline(lease), *held)
            }
            (
                Self::Counts(..)
                | Self::Users(..)
                | Self::SealedUsers(..)
                | Self::Lacks(..)
                | Self::Unsent(..)
                | Self::Backlog(_)
                | Self::HaveWork(..),
                Ok(_),
            )
            // The store has lost data that the node knows of, unless a different node has restored it since this call.
            | (Self::CheckIn(..) | Self::Claim(..) | Self::Settle(..) | Self::Announce(..), Err(StoreError::Forgot)) => Ok(()),
            (call, answer) => Err(format!("{call:?} was answered by {answer:?}")),
        }
    }
}
