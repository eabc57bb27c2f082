//! How a seed draws a sequence.

use super::dice::Dice;
use super::step::{
    At, BEGIN_MS, Event, Knowledge, MINUTE_MS, NODES, OUTPUTS, PARTITIONS, Pick, SERIES, Step,
    USERS,
};

/// How far the clock moves, in ms: around every limit that the store knows.
const MOVES: [i64; 20] = [
    0, 0, 1, 1, 999, 1000, 2000, 4999, 5000, 5001, 10_000, 30_000, 59_999, 60_000, 60_001, 120_000,
    240_000, 300_000, 300_001, 420_000,
];
/// How far back. Beyond 2 s every deadline goes with it.
const BACK: [i64; 7] = [-1, -1000, -2000, -2001, -5000, -61_000, -3_600_000];
const LEASES_MS: [u64; 4] = [1, 1000, 5000, 30_000];

/// Draws steps. It follows the clock, so that minutes are those around it.
struct Drawing {
    dice: Dice,
    now_ms: i64,
    /// Whether this is one of the few sequences with more than fits a page.
    crowded: bool,
}

/// The sequence of a seed.
pub(crate) fn draw(seed: u64) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let crowded = seed.is_multiple_of(16);
    let steps = if crowded { 80 } else { 50 + dice.below(300) };
    let mut drawing = Drawing {
        dice,
        now_ms: BEGIN_MS,
        crowded,
    };
    let mut sequence = Vec::new();
    if crowded {
        sequence.extend(drawing.crowd_to_send());
    }
    sequence.extend((0..steps).map(|_| drawing.step()));
    sequence
}

impl Drawing {
    fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.dice.below(below as u64)).unwrap()
    }

    fn at(&mut self) -> At {
        At {
            node: self.index(NODES),
            partition: self.partition(),
        }
    }

    /// The first more often than the others.
    fn partition(&mut self) -> usize {
        if self.dice.one_in(3) {
            self.index(usize::from(PARTITIONS))
        } else {
            0
        }
    }

    fn minute(&mut self) -> i64 {
        let before = self.dice.pick(&[-1, 0, 0, 0, 1, 1, 1, 2, 3, 7]);
        self.now_ms.div_euclid(MINUTE_MS) - before
    }

    fn pick(&mut self) -> Pick {
        Pick {
            held: !self.dice.one_in(6),
            nth: self.index(4),
            stale: self.dice.one_in(12),
        }
    }

    fn some(&mut self, of: usize) -> Vec<usize> {
        let some = (0..of).filter(|_| self.dice.one_in(2)).collect::<Vec<_>>();
        if some.is_empty() {
            vec![self.index(of)]
        } else {
            some
        }
    }

    fn events(&mut self) -> Vec<Event> {
        let minute = self.minute();
        (0..self.dice.between(1, 6))
            .map(|_| Event {
                minute: if self.dice.one_in(5) {
                    self.minute()
                } else {
                    minute
                },
                series: self.index(SERIES.len()),
                user: self.index(USERS.len()),
                nanos: self.dice.between(0, 2),
            })
            .collect()
    }

    fn knowledge(&mut self) -> Knowledge {
        match self.dice.below(10) {
            0..2 => Knowledge::Nothing,
            2 => Knowledge::Altered {
                epochs_back: self.index(3),
                stamps_ahead: self.dice.pick(&[-1, 0, 1]),
                closings_back: self.dice.below(4),
            },
            _ => Knowledge::Own,
        }
    }

    fn clock(&mut self) -> Step {
        let millis = match self.dice.below(40) {
            0..5 => self.dice.pick(&BACK),
            5 => self.dice.between(1, 3) * 3_600_000,
            _ => self.dice.pick(&MOVES),
        };
        self.now_ms += millis;
        let micros = if self.dice.one_in(3) {
            self.dice.between(-500, 500)
        } else {
            0
        };
        Step::Move {
            micros: millis * 1000 + micros,
        }
    }

    fn step(&mut self) -> Step {
        let lease_ms = self.dice.pick(&LEASES_MS);
        let node = self.index(NODES);
        if self.crowded && self.dice.one_in(6) {
            return self.quarantine();
        }
        match self.dice.below(151) {
            0..20 => self.clock(),
            20..40 => self.record(),
            40..60 => self.claim(lease_ms),
            60..74 => Step::Compact {
                node,
                claim: self.pick(),
                series_max: self.dice.pick(&[0, 1, 2, 3, 10_000, 10_000]),
                lease_ms,
                outputs: self.outputs(),
            },
            74..86 => Step::Acknowledge {
                node,
                claim: self.pick(),
                series: self.dice.one_in(3).then(|| self.some(SERIES.len())),
                lease_ms,
            },
            86..90 => Step::Unsent {
                node,
                claim: self.pick(),
            },
            90..97 => self.quarantine(),
            97..101 => Step::Extend {
                at: self.at(),
                claims: (0..self.dice.below(4)).map(|_| self.pick()).collect(),
                lease_ms: self.dice.pick(&[0, 1, 5000]),
            },
            101..107 => self.attest(),
            107..110 => Step::Users {
                at: self.at(),
                minute: self.minute(),
                series: self.index(SERIES.len()),
                users: self.some(USERS.len()),
            },
            110..113 => Step::Admit {
                at: self.at(),
                minute: self.minute(),
                series: (0..self.dice.below(5))
                    .map(|_| self.index(SERIES.len()))
                    .collect(),
                series_max: self.dice.pick(&[0, 2, 4, 100]),
            },
            113..125 => Step::CheckIn {
                at: self.at(),
                known: self.knowledge(),
                lags: self.dice.one_in(5),
                lease_ms,
            },
            125..129 => {
                let (partition, nth) = (self.partition(), self.index(8));
                Step::Requeue {
                    partition,
                    output: self.index(OUTPUTS.len()),
                    nth,
                    most: self.index(3) + 1,
                }
            }
            129..131 => {
                let (partition, nth) = (self.partition(), self.index(8));
                Step::Discard {
                    partition,
                    output: self.index(OUTPUTS.len()),
                    nth,
                    most: self.index(3) + 1,
                    altered: self.dice.one_in(3),
                }
            }
            137 => Step::DropOutput {
                partition: self.partition(),
                output: self.index(OUTPUTS.len()),
            },
            131 => Step::Save,
            132 => Step::GoBack,
            133..135 if self.crowded => Step::Crowd {
                at: self.at(),
                minute: self.minute(),
            },
            135..137 if self.crowded => {
                let partition = self.partition();
                self.fill(partition)
            }
            139..151 => Step::Announce {
                node,
                claim: self.pick(),
                known: self.knowledge(),
            },
            _ => Step::Read {
                partition: self.partition(),
                minute: self.minute(),
                most: self.index(4),
            },
        }
    }

    /// Both in most cases.
    fn outputs(&mut self) -> Vec<usize> {
        match self.dice.below(6) {
            0 => vec![0],
            1 => vec![1, 0],
            _ => vec![0, 1],
        }
    }

    /// A minute with a thousand counts to send, and little room for those that are refused.
    fn crowd_to_send(&mut self) -> [Step; 5] {
        let at = At {
            node: 0,
            partition: 0,
        };
        let claim = Pick {
            held: true,
            nth: 0,
            stale: false,
        };
        let lease_ms = 30_000;
        [
            self.fill(0),
            Step::Crowd {
                at,
                minute: BEGIN_MS / MINUTE_MS - 1,
            },
            Step::Claim {
                at,
                grace_ms: 0,
                max_hold_ms: 0,
                lease_ms,
                lapsed_max: 0,
                finished_max: 1,
                old_max: 1,
                sending: Vec::new(),
                known: Knowledge::Nothing,
                expected: None,
                stale: false,
            },
            Step::Compact {
                node: 0,
                claim,
                series_max: 10_000,
                lease_ms,
                outputs: vec![0],
            },
            Step::Quarantine {
                node: 0,
                claim,
                nth: 0,
                most: 3,
            },
        ]
    }

    fn fill(&mut self, partition: usize) -> Step {
        let room = self.index(3);
        Step::FillQuarantine {
            partition,
            output: 0,
            room,
        }
    }

    fn quarantine(&mut self) -> Step {
        Step::Quarantine {
            node: self.index(NODES),
            claim: self.pick(),
            nth: self.index(SERIES.len()),
            most: self.index(4),
        }
    }

    fn record(&mut self) -> Step {
        Step::Record {
            at: self.at(),
            events: self.events(),
            series_max: (!self.dice.one_in(5)).then(|| self.dice.pick(&[2, 4, 100])),
            known_user: self.dice.one_in(3).then(|| self.index(USERS.len())),
            stale: self.dice.one_in(20),
        }
    }

    fn claim(&mut self, lease_ms: u64) -> Step {
        Step::Claim {
            at: self.at(),
            grace_ms: self.dice.pick(&[0, 0, 0, 1000, 5000]),
            max_hold_ms: self.dice.pick(&[0, 5000, 60_000, 3_600_000]),
            lease_ms,
            lapsed_max: self.dice.pick(&[0, 1, 2, 100, 100]),
            finished_max: self.dice.pick(&[0, 1, 2, 100, 100]),
            old_max: self.dice.pick(&[0, 1, 100, 100]),
            sending: self
                .outputs()
                .into_iter()
                .map(|output| (output, self.dice.pick(&[0, 1, 2, 100, 100])))
                .collect(),
            known: self.knowledge(),
            expected: self
                .dice
                .one_in(3)
                .then(|| self.dice.pick(&[0, 2000, -2000, 2001, -2001])),
            stale: self.dice.one_in(20),
        }
    }

    fn attest(&mut self) -> Step {
        let mut closed: Vec<i64> = (0..self.dice.below(3)).map(|_| self.minute()).collect();
        if self.crowded {
            // More than are handed back and answered at once.
            let from = self.minute();
            closed.extend(from - 1500..from);
        }
        Step::Attest {
            at: self.at(),
            known: self.knowledge(),
            since: self.dice.one_in(4).then(|| self.minute() - 4),
            closed,
            announced: (0..self.dice.below(2)).map(|_| self.minute()).collect(),
        }
    }
}
