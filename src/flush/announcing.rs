//! Before counts are written: every other node that is alive hears that they are about to be.
//!
//! Whoever is killed behind a write, before it could say that the output has the counts, takes the only knowledge of it along,
//! unless others have it. So no write begins before they have; and they hand it back to a store that forgets it.
//!
//! A node that is dead or hangs holds nothing up for longer than it counts as alive, which it says whenever it checks in. A node
//! without others waits for none.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::sender::Sender;
use super::settling::{SETTLE_MIN, looked_within};
use crate::event::Partition;
use crate::store::{Announced, Claim, StoreError};

/// How long it waits at least until it asks again whether all have heard. Otherwise it asks ten times in an interval.
const PAUSE_MIN: Duration = Duration::from_millis(20);

impl Sender {
    /// Announces these claims, and returns when every node that is alive has heard it. Lets go of those that are lost: their counts
    /// must not be written.
    pub(super) async fn announce(&self, claims: &[Claim]) {
        let mut by_partition: BTreeMap<Partition, Vec<&Claim>> = BTreeMap::new();
        for claim in claims.iter().filter(|claim| self.outbox.held.has(claim)) {
            by_partition.entry(claim.partition).or_default().push(claim);
        }
        let calls = by_partition.into_iter();
        join_all(calls.map(|(partition, claims)| self.announce_in(partition, claims))).await;
        self.watches.save().await;
    }

    async fn announce_in(&self, partition: Partition, mut claims: Vec<&Claim>) {
        let interval = self.settings.interval;
        let pause = (interval / 10).max(PAUSE_MIN);
        // The store's clock ends the wait for a node that is gone. If that stands still, this does.
        let mut waits_left = 2 * looked_within(interval).as_millis() / pause.as_millis();
        // When the store last had all that this node knows; `None`: it was never told of these claims.
        let mut known_at: Option<Instant> = None;
        while !claims.is_empty() {
            let asked = Instant::now();
            let known = self.watches.of(partition).witness.known(asked);
            let answer = self.store.announce(partition, &known, &claims).await;
            // Nobody claims anything from a store that went back for this long. If it was told again by then what this node
            // knows, nobody has counted the minutes anew, and the counts at hand stay the only ones.
            let is_in_time = known_at.is_some_and(|at| at.elapsed() < SETTLE_MIN);
            match answer {
                Ok(states) if known_at.is_none() || is_in_time => {
                    known_at = Some(asked);
                    let states: Vec<_> = states.into_iter().zip(claims).collect();
                    claims = self.announced(&states);
                    let is_heard = |(state, _): &(Announced, _)| *state != Announced::Unheard;
                    if states.iter().all(is_heard) || waits_left == 0 {
                        return;
                    }
                    waits_left -= 1;
                }
                Err(_) if is_in_time => {}
                Ok(_) => return self.give_up(&claims, &StoreError::Forgot),
                Err(error) => return self.give_up(&claims, &error),
            }
            sleep(pause).await;
        }
    }

    /// From now on this node hands the minutes back, too. Lets go of what is lost, and answers what is left.
    fn announced<'a>(&self, states: &[(Announced, &'a Claim)]) -> Vec<&'a Claim> {
        let mut left = Vec::new();
        for &(state, claim) in states {
            if state == Announced::ClaimLost {
                self.failed(claim, &StoreError::ClaimLost);
                continue;
            }
            let mut watch = self.watches.of(claim.partition);
            watch.witness.publishes(claim.minute);
            left.push(claim);
        }
        left
    }

    fn give_up(&self, claims: &[&Claim], error: &StoreError) {
        for claim in claims {
            self.failed(claim, error);
        }
    }
}
