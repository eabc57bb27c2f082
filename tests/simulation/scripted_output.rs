//! The output as one life of a node sees it: it can fail, hang, take a part, take all and lose the answer, take
//! it late, or refuse a count for good, and the node can die or sleep in the midst of a write.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use event_data_service::output::{Output, Refused, SealedCounts, WriteError, Written};

use super::event::{overflows, series_number};
use super::life::Life;
use super::world::World;

/// When a write that hangs is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct ScriptedOutput {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
}

/// What becomes of a write.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Fine,
    Slow(Duration),
    Fails(Option<Duration>),
    Misconfigured,
    /// So many counts are taken, and then it fails.
    Part(usize),
    AnswerLost,
    Hangs,
    /// It is given up, and arrives all the same, later.
    Late(Duration),
    DiesBefore,
    DiesAfter,
    SleepsBefore(Duration),
    SleepsAfter(Duration),
}

impl ScriptedOutput {
    fn fate(&self, counts: usize) -> Fate {
        let plan = &self.world.plan;
        if self.world.is_calm() {
            return Fate::Fine;
        }
        let dice = &mut *self.world.dice();
        let lease = i64::try_from(plan.flush.lease.as_millis()).unwrap();
        if self.world.is_away(&plan.output_outages, self.life.node) {
            return dice.pick(&[Fate::Fails(None), Fate::Fails(None), Fate::Hangs]);
        }
        if !dice.per_mille(plan.output_faults) {
            return Fate::Fine;
        }
        match dice.below(14) {
            0 => Fate::Slow(dice.millis(0, 9000)),
            1 => Fate::Fails(Some(dice.millis(0, 20_000))),
            2 => Fate::Misconfigured,
            3 | 4 => Fate::Part(usize::try_from(dice.below(counts as u64 + 1)).unwrap()),
            5 | 6 => Fate::AnswerLost,
            7 => Fate::Hangs,
            8 => Fate::Late(dice.millis(0, 30_000)),
            9 => Fate::DiesBefore,
            10 => Fate::DiesAfter,
            11 => Fate::SleepsBefore(dice.millis(0, 2 * lease)),
            12 => Fate::SleepsAfter(dice.millis(0, 2 * lease)),
            _ => Fate::Fails(None),
        }
    }

    async fn undergo(&self, counts: &[SealedCounts], fate: Fate) -> Result<Written, WriteError> {
        let unavailable = |retry_after| {
            Err(WriteError::Unavailable {
                reason: format!("{fate:?}"),
                retry_after,
            })
        };
        match fate {
            Fate::Fine => Ok(take(&self.world, counts)),
            Fate::Slow(span) => {
                tokio::time::sleep(span).await;
                Ok(take(&self.world, counts))
            }
            Fate::Fails(retry_after) => unavailable(retry_after),
            Fate::Misconfigured => Err(WriteError::Misconfigured {
                reason: "as planned".to_owned(),
                mend: "wait".to_owned(),
            }),
            Fate::Part(taken) => {
                take(&self.world, &counts[..taken]);
                unavailable(None)
            }
            Fate::AnswerLost => {
                take(&self.world, counts);
                unavailable(None)
            }
            Fate::Hangs => {
                tokio::time::sleep(TIMEOUT).await;
                unavailable(None)
            }
            Fate::Late(delay) => {
                let (world, counts) = (Arc::clone(&self.world), counts.to_vec());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    world.note(|| format!("a late write arrives: {counts:?}"));
                    take(&world, &counts);
                });
                unavailable(None)
            }
            Fate::DiesBefore => self.life.die().await,
            Fate::DiesAfter => {
                take(&self.world, counts);
                self.life.die().await
            }
            Fate::SleepsBefore(span) => {
                self.life.sleep(span).await;
                Ok(take(&self.world, counts))
            }
            Fate::SleepsAfter(span) => {
                let written = take(&self.world, counts);
                self.life.sleep(span).await;
                Ok(written)
            }
        }
    }
}

/// Partition, minute and series of counts, and their values.
fn point(world: &World, count: &SealedCounts) -> ((usize, i64, u8), (u64, u64)) {
    let series = series_number(&count.series);
    let partition =
        overflows(series).unwrap_or_else(|| world.partitions().of(&count.series).index());
    let place = (partition, count.minute.epoch_minutes(), series);
    (place, (count.unique, count.cumulative))
}

/// The server takes what it does not refuse.
fn take(world: &World, counts: &[SealedCounts]) -> Written {
    let mut written = Written::default();
    for (index, count) in counts.iter().enumerate() {
        let ((partition, minute, series), values) = point(world, count);
        if world.plan.is_poison(minute, series) {
            let words = "not this one".to_owned();
            written.refused.push(Refused { index, words });
        } else {
            let verdict = world.oracle().written(partition, (minute, series), values);
            world.judge(verdict);
        }
    }
    written
}

#[async_trait]
impl Output for ScriptedOutput {
    async fn write(&self, counts: &[SealedCounts]) -> Result<Written, WriteError> {
        self.life.audit().await;
        let fate = self.fate(counts.len());
        let number = self.life.number;
        self.world
            .note(|| format!("life {number} writes {counts:?} {fate:?}"));
        for count in counts {
            let (place, values) = point(&self.world, count);
            let verdict = self.world.oracle().writing(number, place, values);
            self.world.judge(verdict);
        }
        self.undergo(counts, fate).await
    }

    fn describe(&self) -> String {
        format!("the output as life {} sees it", self.life.number)
    }
}
