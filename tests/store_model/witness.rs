//! Claiming and handing back, with all that a node may know or take for known.

use event_data_service::store::{Claim, ClaimRequest, Known, Testimony};

use super::answers::{Both, refused, text};
use super::ground::{output, partition};
use super::step::{At, Knowledge, Step, millis};
use super::world::{World, minute_of};

impl World<'_> {
    /// What the node says that it knows: by the number of the epoch.
    fn known(&self, at: At, knowledge: Knowledge) -> Known {
        let own = self.known[at.node][at.partition];
        match knowledge {
            Knowledge::Nothing => Known::default(),
            Knowledge::Own => own,
            Knowledge::Altered {
                epochs_back,
                stamps_ahead,
                closings_back,
            } => Known {
                epoch: own.epoch.saturating_sub(epochs_back as u64),
                stamp: own.stamp.saturating_add_signed(stamps_ahead),
                sequence: own.sequence.saturating_sub(closings_back),
                ..own
            },
        }
    }

    /// The epoch of this number on each side.
    fn epochs_of(&self, number: u64) -> [u64; 2] {
        let number = usize::try_from(number).unwrap();
        [self.epochs[0].epoch(number), self.epochs[1].epoch(number)]
    }

    pub(super) async fn check_in(
        &mut self,
        at: At,
        knowledge: Knowledge,
        lags: bool,
        lease_ms: u64,
    ) -> Both {
        let said = self.known(at, knowledge);
        let [real, model] = self
            .epochs_of(said.epoch)
            .map(|epoch| Known { epoch, ..said });
        let (partition, lease) = (partition(at.partition), millis(lease_ms));
        let alive = lease * 2;
        let node = &self.ground.nodes[at.node];
        let generation = node.generation(partition);
        let redis = node.check_in(partition, &real, lags, lease, alive).await;
        let mut answer = text(&redis);
        if let Ok(news) = &redis {
            let own = &mut self.known[at.node][at.partition];
            (own.stamp, own.sequence) = (news.stamp, news.sequence);
        } else if node.generation(partition) == generation {
            answer += " in the same generation";
        }
        let memory = &self.nodes[at.node];
        let memory = memory.check_in(partition, &model, lags, lease, alive).await;
        Both::of(answer, text(&memory))
    }

    pub(super) async fn claim(&mut self, step: &Step) -> Both {
        let &Step::Claim {
            at,
            grace_ms,
            max_hold_ms,
            lease_ms,
            lapsed_max,
            finished_max,
            old_max,
            ref sending,
            known,
            expected,
            stale,
        } = step
        else {
            return Both::nothing();
        };
        let said = self.known(at, known);
        let generation = self.ground.nodes[at.node].generation(partition(at.partition));
        let request = |epoch| ClaimRequest {
            generation: generation + u64::from(stale),
            grace: millis(grace_ms),
            max_hold: millis(max_hold_ms),
            lease: millis(lease_ms),
            lapsed_max,
            finished_max,
            old_max,
            known: Known {
                epoch,
                expected_ms: expected.map(|off| self.ground.now_ms() + off),
                ..said
            },
        };
        let partition = partition(at.partition);
        let sending = sending.iter().map(|&(of, most)| (output(of), most));
        let sending: Vec<_> = sending.collect();
        let epochs = self.epochs_of(said.epoch);
        let node = &self.ground.nodes[at.node];
        let mut redis = node.claim(partition, &request(epochs[0]), &sending).await;
        if stale {
            return refused(&redis);
        }
        let mut answer = text(&redis);
        if let Ok(claims) = &mut redis {
            self.claims.extend(claims.iter().cloned());
            // The model has no generations.
            for claim in claims.iter_mut() {
                claim.generation = 0;
            }
            answer = format!("{claims:?}");
        } else if node.generation(partition) == generation {
            answer += " in the same generation";
        }
        let memory = self.nodes[at.node]
            .claim(partition, &request(epochs[1]), &sending)
            .await;
        Both::of(answer, text(&memory))
    }

    /// Announces a claim, by a node that knows this.
    pub(super) async fn announce(
        &mut self,
        node: usize,
        claim: &Claim,
        knowledge: Knowledge,
    ) -> Both {
        let at = At {
            node,
            partition: claim.partition.index(),
        };
        let said = self.known(at, knowledge);
        let [real, model] = self
            .epochs_of(said.epoch)
            .map(|epoch| Known { epoch, ..said });
        let redis = &self.ground.nodes[node];
        let redis = redis.announce(claim.partition, &real, &[claim]).await;
        let memory = &self.nodes[node];
        let memory = memory.announce(claim.partition, &model, &[claim]).await;
        Both::of(text(&redis), text(&memory))
    }

    pub(super) async fn attest(
        &mut self,
        at: At,
        knowledge: Knowledge,
        since: Option<i64>,
        (closed, announced): (&[i64], &[i64]),
    ) -> Both {
        let said = self.known(at, knowledge);
        let testimony = |epoch| Testimony {
            epoch,
            stamp: said.stamp,
            since: since.map(minute_of),
            closed: closed.iter().copied().map(minute_of).collect(),
            announced: announced.iter().copied().map(minute_of).collect(),
        };
        let epochs = self.epochs_of(said.epoch);
        let of = partition(at.partition);
        let model_epoch = |world: &Self| {
            world
                .memory
                .look(|state| state.partitions[at.partition].witness.epoch)
        };
        let before = model_epoch(self);
        let redis = self.ground.nodes[at.node]
            .attest(of, &testimony(epochs[0]))
            .await;
        let mut memory = self.nodes[at.node].attest(of, &testimony(epochs[1])).await;
        if let Ok(attested) = &mut memory
            && attested.epoch != before
        {
            // The model makes epochs of its clock, so after it went back one may come again. Here none does.
            self.model_epochs += 1;
            attested.epoch = self.model_epochs;
            let epoch = attested.epoch;
            self.memory
                .look(|state| state.partitions[at.partition].witness.epoch = epoch);
        }
        let mut answers = [redis, memory];
        for (answer, epochs) in answers.iter_mut().zip(&mut self.epochs) {
            if let Ok(attested) = answer {
                attested.epoch = epochs.number(attested.epoch) as u64;
            }
        }
        if let Ok(attested) = &answers[0] {
            let own = &mut self.known[at.node][at.partition];
            (own.epoch, own.stamp) = (attested.epoch, attested.stamp);
        }
        Both::of(text(&answers[0]), text(&answers[1]))
    }
}
