//! Filling minutes.

use std::collections::{BTreeMap, BTreeSet};

use event_data_service::event::{Batch, Group, Minute, overflow_series};
use event_data_service::store::{Admission, AdmitRequest, RecordRequest, Seen};

use super::answers::{Both, refused, text};
use super::ground::partition;
use super::step::{At, Event, SERIES, USERS};
use super::world::{World, minute_of};

impl World<'_> {
    /// The answers, and the series that are refused.
    pub(super) async fn admit(
        &self,
        at: At,
        minute: Minute,
        series: &[&str],
        series_max: u64,
    ) -> (Both, BTreeSet<String>) {
        let overflow = overflow_series(partition(at.partition));
        let request = AdmitRequest {
            minute,
            series,
            series_max,
            overflow: &overflow,
        };
        let admitted = self.ground.nodes[at.node]
            .admit(partition(at.partition), &request)
            .await;
        let mut model = self.nodes[at.node]
            .admit(partition(at.partition), &request)
            .await;
        if let (true, Ok(model), Ok(admitted)) = (self.in_logs(), &mut model, &admitted) {
            // Logs tell nothing of series that were admitted before, and that those have nobody that were not.
            let told = |model: &mut Option<u64>, told: Option<u64>| {
                if told.is_none_or(|users| users == 0) {
                    *model = told;
                }
            };
            told(&mut model.overflow_users, admitted.overflow_users);
            for both in model.series.iter_mut().zip(&admitted.series) {
                if let (Admission::Admitted { users }, Admission::Admitted { users: heard }) = both
                {
                    told(users, *heard);
                }
            }
        }
        let both = Both::of(text(&admitted), text(&model));
        let admissions = admitted.map(|admitted| admitted.series).unwrap_or_default();
        let refused = series
            .iter()
            .zip(admissions)
            .filter(|(_, admission)| matches!(admission, Admission::Refused));
        (
            both,
            refused.map(|(series, _)| (*series).to_owned()).collect(),
        )
    }

    pub(super) async fn record(
        &self,
        at: At,
        events: &[Event],
        series_max: Option<u64>,
        known_user: Option<usize>,
        stale: bool,
    ) -> Both {
        let known_user = known_user.map(|user| USERS[user]);
        let mut answers = Both::of("", "");
        let mut refused_in = BTreeMap::new();
        if let Some(series_max) = series_max {
            let minutes: BTreeSet<_> = events.iter().map(|event| event.minute).collect();
            for minute in minutes {
                let of = events.iter().filter(|event| event.minute == minute);
                let series: BTreeSet<_> = of.map(|event| SERIES[event.series]).collect();
                let series: Vec<_> = series.into_iter().collect();
                let minute = minute_of(minute);
                let (both, refused) = self.admit(at, minute, &series, series_max).await;
                answers.redis += &both.redis;
                answers.memory += &both.memory;
                refused_in.insert(minute, refused);
            }
        }
        let mut batch = Batch::default();
        for event in events {
            let minute = minute_of(event.minute);
            let timestamp = minute.start_nanos() + event.nanos;
            assert!(batch.push(minute, SERIES[event.series], USERS[event.user], timestamp));
        }
        let overflow = overflow_series(partition(at.partition));
        // In logs each event has its user, whatever the recorder knows.
        let known_user = known_user.filter(|_| !self.in_logs());
        let recording = |group: &Group| {
            refused_in
                .get(&group.minute)
                .is_some_and(|refused| refused.contains(&*group.series))
        };
        let recordings: Vec<_> = batch
            .groups()
            .iter()
            .map(|group| {
                let users: BTreeSet<_> =
                    group.occurrences.iter().map(|it| batch.user(it)).collect();
                let is_refused = recording(group);
                RecordRequest {
                    minute: group.minute,
                    series: if is_refused { &overflow } else { &group.series },
                    overflowed_from: is_refused.then_some(&group.series),
                    new_users: Some(
                        users
                            .into_iter()
                            .filter(|user| Some(*user) != known_user)
                            .collect(),
                    ),
                    occurrences: &group.occurrences,
                    batch: &batch,
                }
            })
            .collect();
        let partition = partition(at.partition);
        let generation = self.ground.nodes[at.node].generation(partition);
        if stale && generation != 0 {
            let node = &self.ground.nodes[at.node];
            let refused_one = node.record(partition, generation + 1, &recordings, &[]);
            return refused(&refused_one.await);
        }
        // Whatever a recorder would say: what is kept, and for how long, is the same.
        let minutes: BTreeSet<_> = events.iter().map(|event| event.minute).collect();
        let seen = minutes.into_iter().map(|minute| Seen {
            minute: minute_of(minute),
            events: events.len() as u64,
            renew: events.len().is_multiple_of(2),
        });
        let seen: Vec<_> = seen.collect();
        let in_logs = self.in_logs();
        let both = self.both(at.node, async |node| {
            let generation = node.generation(partition);
            let recorded = node.record(partition, generation, &recordings, &seen).await;
            recorded.map(|repeated| if in_logs { 0 } else { repeated })
        });
        let both = both.await;
        Both::of(answers.redis + &both.redis, answers.memory + &both.memory)
    }

    /// A thousand series and some, more than fit a page.
    pub(super) async fn crowd(&self, at: At, minute: i64) -> Both {
        let minute = minute_of(minute);
        let mut batch = Batch::default();
        for series in 0..1100 {
            assert!(batch.push(
                minute,
                &format!("crowd={series}"),
                "ann",
                minute.start_nanos()
            ));
        }
        let recordings = batch.groups().iter().map(|group| RecordRequest {
            minute,
            series: &group.series,
            overflowed_from: None,
            new_users: Some(vec!["ann"]),
            occurrences: &group.occurrences,
            batch: &batch,
        });
        let recordings = recordings.collect::<Vec<_>>();
        self.both(at.node, async |node| {
            let recorded = node
                .record(partition(at.partition), 0, &recordings, &[])
                .await;
            recorded.map(|repeated| if self.in_logs() { 0 } else { repeated })
        })
        .await
    }
}
