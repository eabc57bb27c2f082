//! What is done with a claim.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use event_data_service::store::memory::{Sets, State};
use event_data_service::store::{Claim, OutputName};

use super::answers::{Both, refused, text};
use super::ground::output;
use super::step::{SERIES, Step, millis};
use super::world::{World, series_name};

/// What the output says of counts that it refuses.
const MESSAGES: [&str; 3] = ["partial write: a | b", "", "1:2|3|4"];

/// More series than there are.
const MANY: usize = 10_000;

/// A name behind all others.
const LAST: &str = "\u{10ffff}";

impl World<'_> {
    pub(super) async fn work(&mut self, node: usize, claim: &Claim, step: &Step) -> Both {
        match step {
            Step::Compact {
                series_max,
                lease_ms,
                outputs,
                ..
            } => {
                let outputs: Vec<_> = outputs.iter().map(|&of| output(of)).collect();
                // What comes between two steps is another matter with logs: the contract has it.
                let series_max = if self.in_logs() { MANY } else { *series_max };
                self.compact(node, claim, series_max, millis(*lease_ms), &outputs)
                    .await
            }
            Step::Acknowledge {
                series, lease_ms, ..
            } => {
                let place = claim.partition.index();
                let names = series.as_ref().map_or_else(
                    || self.unsent(claim),
                    |of| of.iter().map(|&it| series_name(place, it)).collect(),
                );
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                self.both(node, async |node| {
                    node.acknowledge(claim, &names, millis(*lease_ms)).await
                })
                .await
            }
            &Step::Quarantine { nth, most, .. } => {
                let unsent = self.unsent(claim);
                let series = unsent.iter().skip(nth).take(most).map(String::as_str);
                // One that may have no counts, or come twice.
                let series = series.chain([SERIES[0]]);
                let refused: Vec<_> = series.zip(MESSAGES.into_iter().cycle()).collect();
                self.both(node, async |node| node.quarantine(claim, &refused).await)
                    .await
            }
            Step::Announce { known, .. } => self.announce(node, claim, *known).await,
            _ => self.read_unsent(node, claim).await,
        }
    }

    async fn read_unsent(&self, node: usize, claim: &Claim) -> Both {
        self.both(node, async |node| {
            let mut all = BTreeMap::new();
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = node.unsent(claim, at).await?;
                // What is there twice has one value.
                let counts = page.items.into_iter();
                all.extend(counts.map(|of| (of.series, (of.unique, of.cumulative))));
                cursor = page.next;
            }
            Ok(all)
        })
        .await
    }

    /// Which series Redis takes it chooses by lot, so the model is given these, and where some are left one more behind them.
    async fn compact(
        &mut self,
        node: usize,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        outputs: &[OutputName],
    ) -> Both {
        let real = Arc::clone(&self.ground.nodes[node]);
        let mut redis = real.compact(claim, series_max, lease, outputs).await;
        if claim.output.is_none() && claim.generation != real.generation(claim.partition) {
            return refused(&redis);
        }
        let mut left = BTreeSet::new();
        let mut cursor = (!self.in_logs()).then_some(0);
        while let Some(at) = cursor {
            let page = real
                .open_page(claim.partition, claim.minute, at)
                .await
                .unwrap();
            left.extend(page.items);
            cursor = page.next;
        }
        let minute_in = |state: &mut State, with: &mut dyn FnMut(&mut BTreeMap<_, _>)| {
            let minutes = &mut state.partitions[claim.partition.index()].minutes;
            minutes
                .get_mut(&claim.minute)
                .into_iter()
                .for_each(|minute| with(&mut minute.sets));
        };
        let mut spared = BTreeMap::new();
        let mut before = 0;
        self.memory.look(|state| {
            minute_in(state, &mut |sets| {
                before = sets.len();
                let all = std::mem::take(sets).into_iter();
                (spared, *sets) = all.partition(|(series, _)| left.contains(series));
                if !spared.is_empty() {
                    sets.insert(LAST.to_owned(), Sets::default());
                }
            });
        });
        let taken = before - spared.len();
        let mut memory = self.nodes[node].compact(claim, taken, lease, outputs).await;
        self.memory.look(|state| {
            minute_in(state, &mut |sets| {
                sets.remove(LAST);
                sets.append(&mut spared);
            });
        });
        if let Ok(done) = &mut memory {
            done.left = before.saturating_sub(series_max) as u64;
        }
        if let Ok(done) = &mut redis {
            // The model told copies when they were recorded.
            done.repeated = 0;
            self.claims.extend(done.sending.iter().cloned());
        }
        Both::of(text(&redis), text(&memory))
    }

    fn unsent(&self, claim: &Claim) -> BTreeSet<String> {
        self.memory.look(|state| {
            let minutes = &state.partitions[claim.partition.index()].minutes;
            let minute = minutes.get(&claim.minute);
            let unsent = minute.zip(claim.output.as_ref());
            let unsent = unsent.and_then(|(minute, output)| minute.unsent.get(output));
            unsent.cloned().unwrap_or_default()
        })
    }
}
