//! What operators do, and what those see who only look.

use std::collections::{BTreeMap, BTreeSet};

use event_data_service::event::{Minute, overflow_series};
use event_data_service::store::{Quarantined, StoreError};

use super::answers::{Both, text};
use super::ground::{Node, output, partition};
use super::step::{OUTPUTS, SERIES};
use super::world::{World, minute_of};

/// The counts that a partition keeps when its output refuses them.
const QUARANTINE_MAX: usize = 10_000;

impl World<'_> {
    /// Leaves room for so many more.
    pub(super) fn fill_quarantine(&mut self, at: usize, of: usize, room: usize) -> Both {
        let minute = minute_of(0);
        let there = self.memory.look(|state| {
            let all = &state.partitions[at].quarantine;
            all.get(&output(of)).map_or(0, BTreeMap::len)
        });
        let mut fill = redis::pipe();
        let key = format!("{}:quarantine:{}", self.ground.tags[at], OUTPUTS[of]);
        for number in there..QUARANTINE_MAX - room {
            let series = format!("filled={number}");
            fill.hset(&key, format!("{minute}:{series}"), "1:2|3|full");
            let (unique, cumulative, since, message) = (1, 2, 3, "full".to_owned());
            let entry = Quarantined {
                minute,
                series: series.clone(),
                unique,
                cumulative,
                since,
                message,
            };
            self.memory.look(|state| {
                let all = &mut state.partitions[at].quarantine;
                let all = all.entry(output(of)).or_default();
                all.insert((minute, series), entry)
            });
        }
        if there < QUARANTINE_MAX - room {
            fill.exec(&mut self.ground.connection).unwrap();
        }
        Both::nothing()
    }

    /// So many entries of the quarantine, from the so-many-eth on.
    fn entries(&self, at: usize, of: usize, nth: usize, most: usize) -> Vec<Quarantined> {
        self.memory.look(|state| {
            let all = &state.partitions[at].quarantine;
            let Some(all) = all.get(&output(of)) else {
                return Vec::new();
            };
            all.values()
                .cycle()
                .skip(nth % all.len().max(1))
                .take(most.min(all.len()))
                .cloned()
                .collect()
        })
    }

    pub(super) async fn requeue(&self, at: usize, of: usize, nth: usize, most: usize) -> Both {
        let entries = self.entries(at, of, nth, most);
        let minute = entries.first().map_or(minute_of(0), |entry| entry.minute);
        // Also some that are not there, as they are of another minute.
        let mut series: Vec<_> = entries.iter().map(|entry| &*entry.series).collect();
        series.push("never=seen");
        self.both(0, async |node| {
            node.requeue(partition(at), &output(of), minute, &series)
                .await
        })
        .await
    }

    pub(super) async fn discard(
        &self,
        (at, of): (usize, usize),
        nth: usize,
        most: usize,
        altered: bool,
    ) -> Both {
        let mut entries = self.entries(at, of, nth, most);
        if let Some(first) = entries.first_mut().filter(|_| altered) {
            first.since += 1;
        }
        self.both(0, async |node| {
            node.discard(partition(at), &output(of), &entries).await
        })
        .await
    }

    pub(super) async fn drop_output(&self, at: usize, of: usize) -> Both {
        self.both(0, async |node| {
            node.drop_output(partition(at), &output(of)).await
        })
        .await
    }

    /// What can be read of a partition and of the minutes around one.
    pub(super) async fn read(&self, at: usize, minute: i64, most: usize) -> Both {
        let minutes: Vec<_> = (minute - 2..minute + 2).map(minute_of).collect();
        let mut answers = self
            .both(0, async |node| {
                let all = read(node, at, &minutes).await?;
                Ok((
                    node.open_minutes(partition(at), most).await?,
                    node.open_minutes(partition(at), 1000).await?,
                    node.backlog(partition(at)).await?,
                    quarantine(node, at).await?,
                    all,
                ))
            })
            .await;
        // Redis counts those that are admitted and have no counts, too, which it may.
        let sizes = self.ground.nodes[1]
            .sealed_sizes(partition(at), &minutes)
            .await;
        let expected: Vec<u64> = self.memory.look(|state| {
            let minutes = minutes
                .iter()
                .map(|it| state.partitions[at].minutes.get(it));
            let size = |state: Option<&event_data_service::store::memory::MinuteState>| {
                state.map_or(0, |state| {
                    (state.counts.len() + state.admitted.len()) as u64
                })
            };
            minutes.map(size).collect()
        });
        let fixed = self.nodes[1]
            .sealed_sizes(partition(at), &minutes)
            .await
            .unwrap();
        assert!(fixed.iter().zip(&expected).all(|(fixed, all)| fixed <= all));
        answers.redis += &text(&sizes);
        answers.memory += &text(&Ok(expected));
        answers
    }
}

/// Sealed counts, open series, and open counts with what was seen, of each minute.
type Counts = BTreeMap<Minute, (BTreeSet<String>, BTreeSet<String>, Vec<String>)>;

async fn read(node: &dyn Node, at: usize, minutes: &[Minute]) -> Result<Counts, StoreError> {
    let mut all = Counts::new();
    for &minute in minutes {
        let (sealed, open, counts) = all.entry(minute).or_default();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = node.sealed_page(partition(at), minute, from).await?;
            sealed.extend(page.items.iter().map(|of| format!("{of:?}")));
            cursor = page.next;
        }
        cursor = Some(0);
        while let Some(from) = cursor {
            let page = node.open_page(partition(at), minute, from).await?;
            open.extend(page.items);
            cursor = page.next;
        }
        let overflow = overflow_series(partition(at));
        let mut series = SERIES.to_vec();
        series.push(&overflow);
        let of = node.open_counts(partition(at), minute, &series).await?;
        counts.extend(of.iter().map(|of| format!("{of:?}")));
        counts.push(format!(
            "{:?}",
            node.coverage(partition(at), &[minute]).await?
        ));
    }
    Ok(all)
}

async fn quarantine(
    node: &dyn Node,
    at: usize,
) -> Result<BTreeSet<(usize, Quarantined)>, StoreError> {
    let mut all = BTreeSet::new();
    for of in 0..OUTPUTS.len() {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = node
                .quarantined_page(partition(at), &output(of), from)
                .await?;
            all.extend(page.items.into_iter().map(|it| (of, it)));
            cursor = page.next;
        }
    }
    Ok(all)
}
