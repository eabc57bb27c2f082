//! The life of a minute's series, walked through: every state, and every event in it.

use std::collections::BTreeSet;

use State::{Absent, Claimed, Open, Quarantine, Requeued, Sealed, Sent};
use event_data_service::event::{Minute, Partition};
use event_data_service::store::{Claim, StoreError};

use super::ground::{
    AT_ONCE, Event, Ground, Node, SEED_MINUTE, event, partitions, series_of_one_partition,
};

/// What has become of the series; see the module `store`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is known of it.
    Absent,
    /// It has sets, and its minute waits.
    Open,
    /// It has sets, and a node works on its minute.
    Claimed,
    /// It has counts, and a node works on its minute.
    Sealed,
    /// It has counts, and its minute waits to be claimed again.
    Requeued,
    /// Nothing is left to do.
    Sent,
    /// Nothing is left to do but for an operator.
    Quarantine,
}

/// What a call came to: another state, or a refusal that left all as it was.
type Outcome = Option<State>;
const REFUSED: Outcome = None;

/// From each state: what comes of an event, a claim, compacting, acknowledging, quarantining, requeueing, discarding.
/// An event that comes when there are counts is late: it has its minute claimed again, and changes no count.
const LIFE: [(State, [Outcome; 7]); 7] = [
    (
        Absent,
        [
            Some(Open),
            Some(Absent),
            REFUSED,
            REFUSED,
            REFUSED,
            Some(Absent),
            Some(Absent),
        ],
    ),
    (
        Open,
        [
            Some(Open),
            Some(Claimed),
            REFUSED,
            REFUSED,
            REFUSED,
            Some(Open),
            Some(Open),
        ],
    ),
    (
        Claimed,
        [
            Some(Claimed),
            Some(Claimed),
            Some(Sealed),
            Some(Claimed),
            Some(Claimed),
            Some(Claimed),
            Some(Claimed),
        ],
    ),
    (
        Sealed,
        [
            Some(Sealed),
            Some(Sealed),
            Some(Sealed),
            Some(Sent),
            Some(Quarantine),
            Some(Sealed),
            Some(Sealed),
        ],
    ),
    (
        Requeued,
        [
            Some(Requeued),
            Some(Sealed),
            REFUSED,
            REFUSED,
            REFUSED,
            Some(Requeued),
            Some(Requeued),
        ],
    ),
    (
        Sent,
        [
            Some(Requeued),
            Some(Sent),
            REFUSED,
            REFUSED,
            REFUSED,
            Some(Sent),
            Some(Sent),
        ],
    ),
    (
        Quarantine,
        [
            Some(Requeued),
            Some(Quarantine),
            REFUSED,
            REFUSED,
            REFUSED,
            Some(Requeued),
            Some(Sent),
        ],
    ),
];

/// A series in one state.
struct Life<'a> {
    ground: &'a Ground,
    node: Node,
    series: String,
    claim: Option<Claim>,
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

    /// Held, or as a node has it that lost it.
    fn claim(&self) -> Claim {
        self.claim.clone().unwrap_or_else(|| Claim {
            partition: self.partition(),
            minute: "20161204:1118".parse().unwrap(),
            token: "nobody|1".to_owned(),
            generation: self.node.0.generation(self.partition()),
            taken_over: false,
        })
    }

    /// Does the event of this number, as the table has them.
    async fn undergo(&mut self, number: usize) -> Result<(), StoreError> {
        let (claim, partition) = (self.claim(), self.partition());
        let series = self.series.clone();
        let lease = AT_ONCE.lease;
        match number {
            0 => {
                let event = self.event();
                self.node.record(&[event]).await;
            }
            1 => self.claim = self.node.claim(&AT_ONCE).await.pop().or(self.claim.take()),
            2 => drop(self.node.0.compact(&claim, 100, lease).await?),
            3 => {
                if self.node.0.acknowledge(&claim, &[&series], lease).await? {
                    self.claim = None;
                }
            }
            4 => {
                self.node.0.quarantine(&claim, &[(&series, "no")]).await?;
                if self.node.0.acknowledge(&claim, &[], lease).await? {
                    self.claim = None;
                }
            }
            5 => drop(
                self.ground
                    .quarantine()
                    .requeue(partition, claim.minute, &[&series])
                    .await?,
            ),
            _ => {
                let quarantine = self.ground.quarantine();
                let seen = quarantine.quarantined_page(partition, 0).await?.items;
                quarantine.discard(partition, &seen).await?;
            }
        }
        Ok(())
    }

    /// The state, by all that the store answers about it.
    async fn state(&self) -> State {
        let (partition, minute) = (self.partition(), self.claim().minute);
        let (reading, store) = (self.ground.reading(), &self.node.0);
        let has_counts = !reading
            .sealed_page(partition, minute, 0)
            .await
            .unwrap()
            .items
            .is_empty();
        let has_sets = !reading
            .open_page(partition, minute, 0)
            .await
            .unwrap()
            .items
            .is_empty();
        let backlog = store.backlog(partition).await.unwrap();
        match (
            has_counts,
            backlog.claimed,
            backlog.waiting,
            backlog.quarantined,
        ) {
            (true, 1, _, _) => Sealed,
            (true, 0, 1, _) => Requeued,
            (true, 0, 0, 0) => Sent,
            (true, 0, 0, 1) => Quarantine,
            (false, 1, _, 0) if has_sets => Claimed,
            (false, 0, 1, 0) if has_sets => Open,
            (false, 0, 0, 0) if !has_sets => Absent,
            other => panic!("no state: {other:?}, sets: {has_sets}"),
        }
    }
}

pub(crate) async fn a_series_lives_as_the_table_says(ground: &Ground) {
    // How each state is reached, by the numbers of the events.
    let way = |state| match state {
        Absent => &[][..],
        Open => &[0],
        Claimed => &[0, 1],
        Sealed => &[0, 1, 2],
        Sent => &[0, 1, 2, 3],
        Quarantine => &[0, 1, 2, 4],
        Requeued => &[0, 1, 2, 4, 5],
    };
    let mut seen = BTreeSet::new();
    for (from, outcomes) in LIFE {
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let ground = &ground.afresh();
            let mut life = Life {
                ground,
                node: ground.node("a"),
                series: series_of_one_partition(1).remove(0),
                claim: None,
                events: 0,
            };
            for &step in way(from) {
                life.undergo(step).await.unwrap();
            }
            assert_eq!(life.state().await, from, "after {:?}", way(from));
            let result = life.undergo(number).await;
            let refused = matches!(result, Err(StoreError::ClaimLost));
            assert!(
                refused || result.is_ok(),
                "{from:?}, event {number}: {result:?}"
            );
            assert_eq!(refused, outcome == REFUSED, "{from:?}, event {number}");
            let to = life.state().await;
            assert_eq!(to, outcome.unwrap_or(from), "{from:?}, event {number}");
            seen.insert((from as usize, to as usize));
        }
    }
    assert!(seen.len() >= 14, "{seen:?}");
}
