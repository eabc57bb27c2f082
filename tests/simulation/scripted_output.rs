//! An output as seen by one life of a node. Writes may, for example, fail, hang, lose the response, or be rejected.

use event_data_service::diagnosis::{Cause, Diagnosis};
use event_data_service::output::{Output, SealedCounts, WriteError};

use super::event::{overflows, series_number};
use crate::simulation::prelude::*;

/// The name that replaces the series of a probe.
const PROBE: &str = "a probe";
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct ScriptedOutput {
    pub(crate) number: usize,
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Fine,
    Slow(Duration),
    Fails(Option<Duration>),
    Misconfigured,
    Rejects,
    /// The write fails after this many counts have been accepted.
    Part(usize),
    AnswerLost,
    Hangs,
    /// The caller times out, and the write arrives later.
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
        if self.world.is_away(&plan.output_outages[self.number], self.life.node) {
            return dice.pick(&[Fate::Fails(None), Fate::Rejects, Fate::Rejects, Fate::Hangs]);
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

    async fn undergo(&self, counts: &[SealedCounts], fate: Fate) -> Result<(), WriteError> {
        let unavailable = |retry_after| {
            Err(WriteError::Unavailable { found: planned(format!("{fate:?}")), retry_after })
        };
        let failed = || Err(WriteError::Failed(planned(format!("{fate:?}"))));
        match fate {
            Fate::Fine => self.take(counts),
            Fate::Slow(span) => {
                tokio::time::sleep(span).await;
                self.take(counts)
            }
            Fate::Fails(retry_after) => unavailable(retry_after),
            Fate::Misconfigured => {
                // The write is rejected in a different way, for example by a firewall that blocks certain texts.
                let _ = self.reject(counts);
                Err(WriteError::Misconfigured(planned("as planned")))
            }
            Fate::Part(taken) => {
                let _ = self.take(&counts[..taken]);
                failed()
            }
            Fate::AnswerLost => {
                let _ = self.take(counts);
                failed()
            }
            Fate::Hangs => {
                tokio::time::sleep(TIMEOUT).await;
                failed()
            }
            Fate::Rejects => Err(self.reject(counts)),
            Fate::Late(delay) => {
                let (world, number) = (Arc::clone(&self.world), self.number);
                let counts = counts.to_vec();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    world.note(|| format!("a late write arrives: {counts:?}"));
                    // The response is lost, so the node does not learn of a rejection.
                    arrive(&world, number, &counts);
                });
                failed()
            }
            Fate::DiesBefore => self.life.die().await,
            Fate::DiesAfter => {
                let _ = self.take(counts);
                self.life.die().await
            }
            Fate::SleepsBefore(span) => {
                self.life.sleep(span).await;
                self.take(counts)
            }
            Fate::SleepsAfter(span) => {
                let written = self.take(counts);
                self.life.sleep(span).await;
                written
            }
        }
    }
}

impl ScriptedOutput {
    /// Accepts the write, unless one of the points is rejected. In this case, nothing is written.
    fn take(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        if arrive(&self.world, self.number, counts) { Ok(()) } else { Err(self.reject(counts)) }
    }

    fn reject(&self, counts: &[SealedCounts]) -> WriteError {
        if let [count] = counts
            && let Some((partition, point)) = place(&self.world, count)
        {
            let life = self.life.number;
            self.world.oracle().rejected(life, self.number, partition, point);
        }
        WriteError::Rejected(planned("not this one"))
    }
}

/// Returns the partition, minute and series of a count in the model, or `None` for a probe.
fn place(world: &World, count: &SealedCounts) -> Option<(usize, (i64, u8))> {
    if count.series == PROBE {
        return None;
    }
    let series = series_number(&count.series);
    if let Some(number) = count.period.suffix.strip_prefix("_r") {
        let number: usize = number.parse().unwrap();
        let start = count.period.start.epoch_minutes();
        let last = world.plan.rollups[number].last(start);
        assert_eq!(*world.plan.rollups[number].window(last).start(), start);
        return Some((usize::from(world.plan.partitions) + number, (last, series)));
    }
    let partition = overflows(series);
    let partition =
        partition.unwrap_or_else(|| world.partitions().of(&count.series, count.minute).index());
    Some((partition, (count.minute.epoch_minutes(), series)))
}

fn arrive(world: &World, output: usize, counts: &[SealedCounts]) -> bool {
    let mut is_poisoned = false;
    for count in counts {
        let Some((partition, point)) = place(world, count) else {
            continue;
        };
        if world.plan.is_poison(output, point.0, point.1) {
            is_poisoned = true;
        } else {
            let values = (count.unique, count.cumulative);
            let verdict = world.oracle().written(output, partition, point, values);
            world.judge(verdict);
        }
    }
    if !is_poisoned {
        world.oracle().accepted(output);
    }
    !is_poisoned
}

fn planned(reason: impl Into<String>) -> Diagnosis {
    Diagnosis::new(Cause::OutputDown, reason)
}

#[async_trait]
impl Output for ScriptedOutput {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.life.audit().await;
        let fate = self.fate(counts.len());
        let number = self.life.number;
        self.world.note(|| format!("life {number} writes {counts:?} to {} {fate:?}", self.number));
        for count in counts {
            let Some((partition, (minute, series))) = place(&self.world, count) else {
                continue;
            };
            let values = (count.unique, count.cumulative);
            let point = (partition, minute, series);
            let verdict = self.world.oracle().writing(number, point, values);
            self.world.judge(verdict);
        }
        self.undergo(counts, fate).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        let probe = SealedCounts {
            partition: Partition::default(),
            minute,
            period: minute.into(),
            series: PROBE.to_owned(),
            unique: 0,
            cumulative: 0,
            quality: event_data_service::event::Quality::default(),
        };
        self.write(&[probe]).await
    }

    fn describe(&self) -> String {
        let (number, life) = (self.number, self.life.number);
        format!("output {number} as life {life} sees it")
    }
}
