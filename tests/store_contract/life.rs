//! Tests every operation in every state of a minute with a single series and a single output.

use std::collections::BTreeSet;

use State::{Absent, Claimed, Late, LateClaimed, Open, Quarantine, Requeued, Sealed, Sent};

use crate::contract::prelude::*;

/// The state of the series; see the module `store`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    /// The series has sets, and its minute is waiting.
    Open,
    /// The series has sets, and its minute is claimed.
    Claimed,
    /// The series has counts, which a node is sending.
    Sealed,
    /// The series has counts, which any node may claim and send.
    Requeued,
    Sent,
    /// The counts are quarantined until an operator requeues or discards them.
    Quarantine,
    /// More events have arrived after the counts were sent, so the minute is waiting to be claimed again.
    Late,
    LateClaimed,
}

/// The result of an operation: the new state, or `None` if the operation is refused.
type Outcome = Option<State>;
const REFUSED: Outcome = None;

/// For each state, the outcome of recording, claiming, compacting, acknowledging, quarantining, requeueing and discarding.
/// An event of a counted series is late. Its minute is claimed again, but the counts do not change.
#[rustfmt::skip]
const LIFE: [(State, [Outcome; 7]); 9] = [
    (Absent, [Some(Open), Some(Absent), REFUSED, REFUSED, REFUSED, Some(Absent), Some(Absent)]),
    (Open, [Some(Open), Some(Claimed), REFUSED, REFUSED, REFUSED, Some(Open), Some(Open)]),
    (Claimed, [Some(Claimed), Some(Claimed), Some(Sealed), REFUSED, REFUSED, Some(Claimed), Some(Claimed)]),
    (Sealed, [Some(Sealed), Some(Sealed), REFUSED, Some(Sent), Some(Quarantine), Some(Sealed), Some(Sealed)]),
    (Requeued, [Some(Requeued), Some(Sealed), REFUSED, REFUSED, REFUSED, Some(Requeued), Some(Requeued)]),
    (Sent, [Some(Late), Some(Sent), REFUSED, REFUSED, REFUSED, Some(Sent), Some(Sent)]),
    (Quarantine, [Some(Late), Some(Quarantine), REFUSED, REFUSED, REFUSED, Some(Requeued), Some(Sent)]),
    (Late, [Some(Late), Some(LateClaimed), REFUSED, REFUSED, REFUSED, Some(Late), Some(Late)]),
    (LateClaimed, [Some(LateClaimed), Some(LateClaimed), Some(Sent), REFUSED, REFUSED, Some(LateClaimed), Some(LateClaimed)]),
];

struct Life<'a> {
    ground: &'a Ground,
    node: Node,
    series: String,
    claims: [Option<Claim>; 2],
    events: i64,
}

impl Life<'_> {
    fn partition(&self) -> Partition {
        partitions().of(&self.series, Minute::MIN)
    }

    fn event(&mut self) -> Event {
        self.events += 1;
        event(SEED_MINUTE, &self.series, "user", self.events)
    }

    fn minute() -> Minute {
        "20161204:1118".parse().unwrap()
    }

    /// Returns the claim that the node holds, or a claim that it has lost.
    fn claim(&self, sends: bool) -> Claim {
        let held = self.claims[usize::from(sends)].clone();
        held.unwrap_or_else(|| Claim {
            partition: self.partition(),
            minute: Self::minute(),
            output: sends.then(|| only().clone()),
            token: "nobody|1".to_owned(),
            generation: self.node.0.generation(self.partition()),
            taken_over: false,
        })
    }

    async fn undergo(&mut self, number: usize) -> Result<(), StoreError> {
        let partition = self.partition();
        let (to_seal, to_send) = (self.claim(false), self.claim(true));
        let series = self.series.clone();
        let lease = AT_ONCE.lease;
        let mut end_if = |ended| {
            if ended {
                self.claims[1] = None;
            }
        };
        match number {
            0 => {
                let event = self.event();
                self.node.record(&[event]).await;
            }
            1 => {
                for claim in self.node.claim(&AT_ONCE).await {
                    let sends = claim.output.is_some();
                    self.claims[usize::from(sends)] = Some(claim);
                }
            }
            2 => {
                let mut done = self.node.try_compact(&to_seal, 100).await?;
                self.claims[0] = None;
                self.claims[1] = done.sending.pop().or(self.claims[1].take());
            }
            3 => end_if(self.node.0.acknowledge(&to_send, &[&series], lease).await?),
            4 => {
                self.node.0.quarantine(&to_send, &[(&series, "no")]).await?;
                end_if(self.node.0.acknowledge(&to_send, &[], lease).await?);
            }
            5 => {
                let quarantine = self.ground.quarantine();
                let wanted = [series.as_str()];
                let bucket = Bucket { partition, minute: Self::minute() };
                let requeued = quarantine.requeue(bucket, only(), &wanted);
                requeued.await?;
            }
            _ => {
                let quarantine = self.ground.quarantine();
                let seen = quarantine.quarantined_page(partition, only(), 0).await?;
                quarantine.discard(partition, only(), &seen.items).await?;
            }
        }
        Ok(())
    }

    async fn state(&self) -> State {
        let (partition, minute) = (self.partition(), Self::minute());
        let bucket = Bucket { partition, minute };
        let (reading, store) = (self.ground.reading(), &self.node.0);
        let sealed = reading.sealed_page(bucket, 0).await.unwrap();
        let open = reading.open_page(bucket, 0).await.unwrap();
        let (has_counts, has_sets) = (!sealed.items.is_empty(), !open.items.is_empty());
        let backlog = store.backlog(partition).await.unwrap();
        let lacks = backlog.outputs.get(only()).copied().unwrap_or_default();
        let (claimed, waiting) = (backlog.claimed == 1, backlog.waiting == 1);
        match (has_counts, has_sets, lacks.unsent, lacks.quarantined) {
            (true, _, 1, 0) if self.claims[1].is_some() => Sealed,
            (true, _, 1, 0) => Requeued,
            (true, true, 0, _) if claimed => LateClaimed,
            (true, true, 0, _) if waiting => Late,
            (true, false, 0, 0) if !claimed && !waiting => Sent,
            (true, false, 0, 1) if !claimed && !waiting => Quarantine,
            (false, true, 0, 0) if claimed => Claimed,
            (false, true, 0, 0) if waiting => Open,
            (false, false, 0, 0) if !claimed && !waiting => Absent,
            other => panic!("not a valid state: {other:?}, {backlog:?}"),
        }
    }
}

pub(crate) async fn series_goes_through_the_documented_states(ground: &Ground) {
    // The operations that lead to each state, as indexes into a row of `LIFE`.
    let way = |state| match state {
        Absent => &[][..],
        Open => &[0],
        Claimed => &[0, 1],
        Sealed => &[0, 1, 2],
        Sent => &[0, 1, 2, 3],
        Quarantine => &[0, 1, 2, 4],
        Requeued => &[0, 1, 2, 4, 5],
        Late => &[0, 1, 2, 3, 0],
        LateClaimed => &[0, 1, 2, 3, 0, 1],
    };
    let mut seen = BTreeSet::new();
    for (from, outcomes) in LIFE {
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let ground = &ground.afresh();
            let mut life = Life {
                ground,
                node: ground.node("a"),
                series: series_of_one_partition(1).remove(0),
                claims: [None, None],
                events: 0,
            };
            for &step in way(from) {
                life.undergo(step).await.unwrap();
            }
            assert_eq!(life.state().await, from, "after {:?}", way(from));
            let result = life.undergo(number).await;
            let refused = matches!(result, Err(StoreError::ClaimLost));
            assert!(refused || result.is_ok(), "{from:?}, event {number}: {result:?}");
            assert_eq!(refused, outcome == REFUSED, "{from:?}, event {number}");
            let to = life.state().await;
            assert_eq!(to, outcome.unwrap_or(from), "{from:?}, event {number}");
            seen.insert((from as usize, to as usize));
        }
    }
    assert!(seen.len() >= 17, "{seen:?}");
}
