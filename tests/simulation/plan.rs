//! Creates the plan of a schedule from a seed: nodes and settings, deliveries, and faults.

use std::time::Duration;

use event_data_service::flush::FlushSettings;

use super::dice::Dice;
use super::event::{MINUTE, SECOND};
use super::rollup::RollupPlan;
use super::script::{Blow, Forget, Outage, Part};
use crate::simulation::prelude::*;

/// 2016-12-04 00:00 UTC, in nanoseconds since the epoch.
const MIDNIGHT: i64 = 17_139 * 1440 * MINUTE;
const DAY: i64 = 1440 * MINUTE;

pub(crate) const OUTPUTS: usize = 2;
/// The number of the output that represents adding minutes to windows.
pub(crate) const ROLLUP: usize = OUTPUTS;
const NAMES: [&str; 1 + OUTPUTS] = ["one", "two", "rollup"];

pub(crate) fn output_name(output: usize) -> OutputName {
    NAMES[output].parse().unwrap()
}

pub(crate) fn output_number(name: &OutputName) -> usize {
    NAMES.iter().position(|known| *known == name.as_str()).unwrap()
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) outputs: usize,
    pub(crate) partitions: u16,
    pub(crate) layout: Layout,
    pub(crate) begins: i64,
    /// The offset of each node's clock, in nanoseconds.
    pub(crate) skews: Vec<i64>,
    pub(crate) max_age: Duration,
    pub(crate) flush: FlushSettings,
    pub(crate) write_counts_max: usize,
    pub(crate) linger: Duration,
    pub(crate) replay_window: Duration,
    pub(crate) queue_events: u64,
    pub(crate) dedup_users: usize,
    pub(crate) compact_series: usize,
    /// The maximum number of series per minute per partition.
    pub(crate) series_max: usize,
    /// The maximum number of users per series per minute; 0 means no limit.
    pub(crate) users_max: u64,
    /// The deliveries to each node, in chronological order.
    pub(crate) deliveries: Vec<Vec<Delivery>>,
    /// When a blow hits a node (in nanoseconds after the beginning), the node, and the blow.
    pub(crate) blows: Vec<(i64, usize, Blow)>,
    pub(crate) store_outages: Vec<Outage>,
    pub(crate) output_outages: [Vec<Outage>; OUTPUTS],
    /// How many store calls out of a thousand fail.
    pub(crate) store_faults: u64,
    /// How many writes out of a thousand fail.
    pub(crate) output_faults: u64,
    /// For each output, which points it rejects permanently; 0 means none.
    pub(crate) poison: [u64; OUTPUTS],
    pub(crate) forgets: Vec<Forget>,
    pub(crate) rollups: Vec<RollupPlan>,
    /// When faults and events end, in nanoseconds after the beginning.
    pub(crate) calm: i64,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let nodes = usize::try_from(dice.between(1, 3)).unwrap();
        // The shortest value makes counts expire within a schedule, and the longest accepts events from yesterday.
        let max_age = dice.pick(&[60, 300, 26 * 3600]) * SECOND;
        let skew_max = (max_age / 3).min(300 * SECOND);
        let skewed = dice.one_in(2);
        let skew = |dice: &mut Dice| {
            if skewed { dice.between(-skew_max, skew_max) } else { 0 }
        };
        let calm_max = if max_age == 60 * SECOND { 280 } else { 120 };
        let calm = dice.between(45, calm_max) * SECOND;
        let mut plan = Self {
            nodes,
            outputs: dice.pick(&[1, 2, 2]),
            partitions: dice.pick(&[1, 1, 1, 2, 3]),
            layout: Layout::Sets,
            begins: MIDNIGHT - dice.between(20, 100) * SECOND - dice.between(0, SECOND),
            skews: (0..nodes).map(|_| skew(dice)).collect(),
            max_age: Duration::from_nanos(max_age.unsigned_abs()),
            flush: FlushSettings {
                window_hold: Duration::ZERO,
                interval: dice.millis(2000, 5000),
                grace: dice.millis(1000, 6000),
                max_hold: dice.millis(6000, 40_000),
                lease: dice.millis(6000, 15_000),
                zeros: 0,
            },
            write_counts_max: dice.pick(&[1, 2, 5, 100]),
            linger: dice.millis(50, 1000),
            replay_window: Duration::from_secs(dice.pick(&[0, 5, 30])),
            queue_events: dice.pick(&[5, 30, 1000, 1000, 1000]),
            dedup_users: dice.pick(&[0, 10, 1000, 1000]),
            compact_series: dice.pick(&[1, 2, 200]),
            series_max: dice.pick(&[1, 2, 3, 1000]),
            users_max: dice.pick(&[0, 0, 0, 2]),
            deliveries: vec![Vec::new(); nodes],
            blows: Vec::new(),
            store_outages: Vec::new(),
            output_outages: Default::default(),
            store_faults: dice.pick(&[0, 20, 60, 150]),
            output_faults: dice.pick(&[0, 100, 300, 500]),
            poison: [dice.pick(&[0, 0, 5]), dice.pick(&[0, 0, 5])],
            forgets: Vec::new(),
            rollups: Vec::new(),
            calm,
        };
        plan.send(dice);
        plan.disturb(dice);
        if dice.one_in(4) {
            plan.forget(dice);
        }
        plan.layout = dice.pick(&[Layout::Sets, Layout::Log]);
        if dice.one_in(3) {
            plan.roll_up(dice);
        }
        plan
    }

    /// Returns a plan with two nodes that begins 20 s before midnight and has neither faults nor events.
    pub(crate) fn quiet(calm: i64) -> Self {
        Self {
            nodes: 2,
            outputs: 1,
            partitions: 1,
            layout: Layout::Sets,
            begins: MIDNIGHT - 20 * SECOND,
            skews: vec![0; 2],
            max_age: Duration::from_secs(60),
            flush: FlushSettings {
                window_hold: Duration::ZERO,
                interval: Duration::from_secs(1),
                grace: Duration::from_secs(1),
                max_hold: Duration::from_secs(10),
                lease: Duration::from_secs(6),
                zeros: 0,
            },
            write_counts_max: 10,
            linger: Duration::from_millis(100),
            replay_window: Duration::ZERO,
            queue_events: 100,
            dedup_users: 100,
            compact_series: 200,
            series_max: 10,
            users_max: 0,
            deliveries: vec![Vec::new(); 2],
            blows: Vec::new(),
            store_outages: Vec::new(),
            output_outages: Default::default(),
            store_faults: 0,
            output_faults: 0,
            poison: [0; OUTPUTS],
            forgets: Vec::new(),
            rollups: Vec::new(),
            calm,
        }
    }

    /// Adds a rollback of the store, and removes its other faults, because an unreachable store cannot be restored.
    fn forget(&mut self, dice: &mut Dice) {
        self.store_faults = 0;
        self.store_outages.clear();
        let at = dice.between(20 * SECOND, self.calm);
        let saved = match dice.below(3) {
            0 => 0,
            1 => at - dice.between(SECOND, 8 * SECOND),
            _ => dice.between(0, at),
        };
        // A node notices data loss between two check-ins only if it loses the connection.
        let interval = i64::try_from(self.flush.interval.as_nanos()).unwrap();
        let is_noticed = dice.one_in(2) || at - saved < 2 * interval;
        if !is_noticed {
            // Disable dedup, because the model does not know that a node leaves out users that the store has forgotten.
            self.dedup_users = 0;
        }
        self.forgets.push(Forget { saved, at, is_noticed, part: Part::All });
    }

    fn roll_up(&mut self, dice: &mut Dice) {
        let lengths = dice.pick(&[&[1][..], &[2], &[5], &[1, 5], &[2, 5]]);
        let rollup = |&minutes: &i64| RollupPlan {
            minutes,
            is_grouped: dice.one_in(2),
            dropped: dice.one_in(4).then_some(1),
        };
        self.rollups = lengths.iter().map(rollup).collect();
        self.flush.window_hold = self.max_age.max(self.flush.max_hold);
        for forget in &mut self.forgets {
            forget.part = dice.pick(&[Part::All, Part::All, Part::Series, Part::Windows]);
        }
    }

    /// Changes the plan so that a rarely used script is called more often and fails more often.
    pub(crate) fn expose(&mut self, script: &str, seed: u64) {
        match script {
            "windows/commit.lua" | "windows/settle.lua" | "life/attest.lua" => {
                if self.rollups.is_empty() {
                    self.roll_up(&mut Dice::new(seed));
                }
            }
            "log/seal.lua" => (self.layout, self.compact_series) = (Layout::Log, 1),
            "life/quarantine.lua" => self.poison = [2; OUTPUTS],
            _ => return,
        }
        if self.forgets.is_empty() {
            self.store_faults = 150;
        }
    }

    pub(crate) fn is_owed(&self) -> bool {
        self.max_age.as_secs() > 60 && self.users_max == 0
    }

    /// Delivers an event with timestamp `at` to a node at time `after`, both in seconds after the beginning.
    pub(crate) fn deliver(&mut self, node: usize, after: i64, user: u8, at: i64) {
        let event = Event { series: 0, user, at: self.begins + at * SECOND };
        self.deliveries[node].push(Delivery { after: after * SECOND, event, stamped: true });
    }

    fn send(&mut self, dice: &mut Dice) {
        let series_max = dice.pick(&[0, 1, 3]);
        let users_max = dice.pick(&[1, 4, 12]);
        // A coarse grain makes some timestamps coincide.
        let grain = dice.pick(&[SECOND, 5 * SECOND, 1]);
        let nodes = self.nodes as u64;
        for _ in 0..dice.between(5, 40) {
            let after = dice.between(0, self.calm);
            let mut event = Event {
                series: u8::try_from(dice.between(0, series_max)).unwrap(),
                user: u8::try_from(dice.between(0, users_max)).unwrap(),
                at: (self.begins + after).div_euclid(grain) * grain,
            };
            if self.max_age.as_secs() > 86_400 && dice.one_in(4) {
                event.at -= DAY;
            }
            let stamped = !dice.one_in(10);
            for _ in 0..dice.pick(&[1, 1, 1, 2, 2, 3]) {
                // A copy may arrive early, in time, late, or with a backlog.
                let delay = match dice.below(12) {
                    0 => dice.between(-70 * SECOND, 0),
                    1 => dice.between(0, 100 * SECOND),
                    2 => dice.between(0, 15 * SECOND),
                    _ => dice.between(0, SECOND),
                };
                let to_all = dice.one_in(3);
                let only = dice.below(nodes);
                for node in (0..nodes).filter(|&node| to_all || node == only) {
                    let after = (after + delay + dice.between(0, SECOND / 5)).clamp(0, self.calm);
                    self.deliveries[usize::try_from(node).unwrap()].push(Delivery {
                        after,
                        event,
                        stamped,
                    });
                }
            }
        }
        for deliveries in &mut self.deliveries {
            deliveries.sort_by_key(|delivery| delivery.after);
        }
    }

    fn disturb(&mut self, dice: &mut Dice) {
        let lease = i64::try_from(self.flush.lease.as_millis()).unwrap();
        for _ in 0..dice.pick(&[0, 1, 2, 4]) {
            let blow = match dice.below(3) {
                0 => Blow::Kill(dice.millis(0, 30_000)),
                1 => Blow::Stop(dice.millis(0, 10_000)),
                _ => Blow::Pause(dice.millis(0, 2 * lease)),
            };
            let at = dice.between(0, self.calm);
            let node = usize::try_from(dice.below(self.nodes as u64)).unwrap();
            self.blows.push((at, node, blow));
        }
        self.blows.sort_by_key(|&(at, ..)| at);
        for _ in 0..dice.pick(&[0, 0, 1, 2]) {
            let outage = self.outage(dice);
            self.store_outages.push(outage);
        }
        if self.calm > 200 * SECOND && dice.one_in(2) {
            // One node is cut off for longer than counts are kept.
            self.store_outages.push(Outage {
                node: Some(usize::try_from(dice.below(self.nodes as u64)).unwrap()),
                from: dice.between(10 * SECOND, 60 * SECOND),
                to: self.calm - dice.between(0, 20 * SECOND),
            });
        }
        for output in 0..self.outputs {
            for _ in 0..dice.pick(&[0, 0, 1, 2]) {
                let outage = self.outage(dice);
                self.output_outages[output].push(outage);
            }
        }
    }

    fn outage(&self, dice: &mut Dice) -> Outage {
        let from = dice.between(0, self.calm);
        let node = dice.one_in(2).then(|| dice.below(self.nodes as u64));
        Outage {
            node: node.map(|node| usize::try_from(node).unwrap()),
            from,
            to: dice.between(from, self.calm),
        }
    }

    pub(crate) const fn is_poison(&self, output: usize, minute: i64, series: u8) -> bool {
        let place = minute.unsigned_abs() * 32 + (series as u64) * 2 + output as u64;
        let poison = self.poison[output];
        poison > 0 && Dice::new(place).below(poison) == 0
    }
}
