//! One phase after another: a load that never rests, and the faults of the plan at their time.
//!
//! Every datagram goes to all nodes. One of them, the anchor of the phase, always gets it: it is not killed, put to
//! sleep or cut off alone, and the load waits for it. So there is a copy of every event with a node that is up, and
//! nothing may be lost. The next phase has another anchor, when all nodes have recorded all that they received.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use testing::eventually::{SOON, eventually, when};
use testing::load::{MINUTE_NS, SEED_MINUTE_NS};
use testing::points::{Expected, Points};

use crate::fault::{Fault, NodeFault, Planned, RedisFault, plan};
use crate::store::Kind;
use crate::verdict::{Rollback, Straggler, Verdict};
use crate::world::World;

/// What a node under valgrind could take; so the figures are about faults, not about speed.
const DATAGRAMS_PER_SECOND: u32 = 120;
const LINES_PER_DATAGRAM: usize = 12;
/// What may lie in the anchor's socket.
const AHEAD_MAX: u64 = 32;
/// How long the events of a minute come. They go on coming, fewer, in the next.
const MINUTE_LASTS: Duration = Duration::from_secs(5);
/// A rest after which no event of the last minutes is sent any more: they may be closed.
const REST_MAX: Duration = Duration::from_secs(2);
/// `flush.max_hold`, in seconds: longer than the events of a minute come and any fault keeps them from Redis.
const MAX_HOLD_SECS: std::ops::Range<u64> = 40..60;
/// How often a straggler sends.
const STRAGGLES: Duration = Duration::from_millis(500);
/// Within this of the end of `flush.max_hold` its minute is published, whatever befalls single nodes and the output.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);
/// A shorter torture has no straggler, whose phase lasts longer than `flush.max_hold`.
const STRAGGLES_FROM: Duration = Duration::from_secs(60);
/// For the rest of a phase's last second, leases, pauses and graces.
const EXACT_WITHIN: Duration = Duration::from_secs(120);

/// The load, and what is to come of it.
struct Load {
    socket: UdpSocket,
    random: SmallRng,
    minute: i64,
    minute_began: Instant,
    last_sent: Instant,
    /// What the anchor had received, and what was sent since then.
    anchor: usize,
    received_before: u64,
    sent: u64,
    expected: Expected,
    straggler: Option<Straggler>,
    stragglers: Vec<Straggler>,
}

/// Tortures the service for about this long. `again` is the command that does so again.
pub(crate) fn torture(kind: Kind, lasts: Duration, seed: u64, again: &str) {
    eprintln!("seed {seed}; again by: {again}");
    let mut random = SmallRng::seed_from_u64(seed);
    let max_hold = Duration::from_secs(random.random_range(MAX_HOLD_SECS));
    eprintln!("{kind:?}, max_hold {max_hold:?}");
    let mut world = World::start(kind, max_hold);
    let mut load = Load::new(&world, random.random());
    let mut expected = Points::new();
    let mut rollbacks = Vec::new();
    let began = Instant::now();
    let mut faults = 0;
    let mut phases = 0;
    while began.elapsed() < lasts {
        let anchor = random.random_range(0..world.nodes.len());
        load.lean_on(&world, anchor);
        let plan = plan(
            &mut random,
            kind,
            world.nodes.len(),
            anchor,
            lasts >= STRAGGLES_FROM,
        );
        faults += plan.len();
        let counted_before = world.forgotten(anchor) + world.late();
        let rollbacks_before = world.rollbacks();
        let mut rollback = phase(&mut world, &mut load, &plan, max_hold, began);
        world.wait_calm();
        if let Some(rollback) = &mut rollback {
            let lived = |node: &usize| {
                let ends = [NodeFault::Killed, NodeFault::Ended];
                let is_end =
                    |it: &Planned| ends.iter().any(|end| it.fault == Fault::Node(*node, *end));
                !plan.iter().any(is_end)
            };
            let lived = (0..world.nodes.len()).filter(lived);
            world.wait_reported(&rollbacks_before, lived);
            // What comes late is counted when it is sealed.
            world.wait_sealed();
            rollback.counted = world.forgotten(anchor) + world.late() - counted_before;
        }
        rollbacks.extend(rollback);
        eprintln!("{:7.1} s  calm", began.elapsed().as_secs_f64());
        expected.extend(std::mem::take(&mut load.expected).points());
        phases += 1;
    }
    let verdict = Verdict {
        world,
        expected,
        rollbacks,
        stragglers: load.stragglers,
        max_hold,
        phases,
        faults,
        again: again.to_owned(),
    };
    verdict.give(EXACT_WITHIN);
}

/// Plays a plan. Answers what was published when Redis went back, if it did.
fn phase(
    world: &mut World,
    load: &mut Load,
    plan: &[Planned],
    max_hold: Duration,
    since: Instant,
) -> Option<Rollback> {
    let mut rollback = None;
    let mut steps: Vec<(Duration, bool, Fault)> = plan
        .iter()
        .flat_map(|it| [(it.from, true, it.fault), (it.to, false, it.fault)])
        .collect();
    steps.sort_by_key(|(at, _, _)| *at);
    let began = Instant::now();
    for (at, begins, fault) in steps {
        load.pump(world, at.saturating_sub(began.elapsed()));
        let what = if begins { "begins" } else { "ends" };
        eprintln!(
            "{:7.1} s  {what:6} {fault:?}",
            since.elapsed().as_secs_f64()
        );
        match (fault, begins) {
            (Fault::Straggler, true) => load.straggle(),
            (Fault::Straggler, false) => {}
            (Fault::Redis(RedisFault::WentBack), false) => {
                rollback = Some(Rollback {
                    published: world.points(),
                    last_minute_ns: SEED_MINUTE_NS + load.minute * MINUTE_NS,
                    counted: 0,
                });
                world.end(fault);
            }
            (_, true) => world.begin(fault),
            (_, false) => world.end(fault),
        }
    }
    load.pump(world, Duration::from_secs(1));
    load.straggle_until_published(world, max_hold);
    rollback
}

impl Load {
    fn new(world: &World, seed: u64) -> Self {
        let mut load = Self {
            socket: UdpSocket::bind("127.0.0.1:0").expect("a free port"),
            random: SmallRng::seed_from_u64(seed),
            minute: 0,
            minute_began: Instant::now(),
            last_sent: Instant::now(),
            anchor: 0,
            received_before: 0,
            sent: 0,
            expected: Expected::default(),
            straggler: None,
            stragglers: Vec::new(),
        };
        load.lean_on(world, 0);
        load
    }

    /// From now on this node is the one that gets everything. The last phase's minutes get no more events.
    fn lean_on(&mut self, world: &World, anchor: usize) {
        self.anchor = anchor;
        self.received_before = world.nodes[anchor]
            .metrics()
            .count("eds_datagrams_received_total");
        self.sent = 0;
        self.next_minute(2);
    }

    fn next_minute(&mut self, by: i64) {
        self.minute += by;
        self.minute_began = Instant::now();
    }

    /// Sends for this long.
    fn pump(&mut self, world: &World, lasts: Duration) {
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < lasts {
            if self.last_sent.elapsed() > REST_MAX {
                self.next_minute(2);
            } else if self.minute_began.elapsed() > MINUTE_LASTS {
                self.next_minute(1);
            }
            let lines: Vec<_> = (0..LINES_PER_DATAGRAM).map(|_| self.line()).collect();
            let datagram = lines.join("\n").into_bytes();
            self.expected.receive(&datagram);
            self.send(world, &datagram);
            self.last_sent = Instant::now();
            if let Some(straggler) = &mut self.straggler
                && straggler
                    .sent
                    .last()
                    .is_none_or(|at| at.elapsed() > STRAGGLES)
            {
                let line = straggler.line();
                self.send(world, line.as_bytes());
            }
            sent += 1;
            let due = Duration::from_secs(1) * sent / DATAGRAMS_PER_SECOND;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        self.wait_for_anchor(world);
    }

    fn send(&mut self, world: &World, datagram: &[u8]) {
        for node in &world.nodes {
            // Nobody may listen there.
            let _ = self.socket.send_to(datagram, node.udp());
        }
        self.sent += 1;
        if self.sent.is_multiple_of(AHEAD_MAX) {
            self.wait_for_anchor(world);
        }
    }

    /// From now on a straggler sends, too, in a minute that no other event has.
    fn straggle(&mut self) {
        let minute_ns = SEED_MINUTE_NS + (self.minute + 1) * MINUTE_NS;
        self.straggler = Some(Straggler::new(minute_ns));
        self.next_minute(3);
    }

    /// Goes on until the straggler's minute is published, though its events keep coming.
    fn straggle_until_published(&mut self, world: &World, max_hold: Duration) {
        let Some(began) = self.straggler.as_ref().map(|it| it.sent[0]) else {
            return;
        };
        let is_published = |load: &Self| {
            let straggler = load.straggler.as_ref().expect("it straggles");
            let point = &straggler.points()[0];
            world.points().iter().all(|found| found.contains_key(point))
        };
        while !is_published(self) {
            assert!(
                began.elapsed() < max_hold + PUBLISHED_WITHIN,
                "a minute that never rests is not published {:?} after its first event, with max_hold {max_hold:?}",
                began.elapsed()
            );
            self.pump(world, Duration::from_secs(1));
        }
        eprintln!(
            "           the straggler's minute is published {:.1} s after its first event",
            began.elapsed().as_secs_f64()
        );
        // What comes now is late.
        self.pump(world, Duration::from_secs(2));
        self.stragglers.extend(self.straggler.take());
    }

    fn wait_for_anchor(&self, world: &World) {
        eventually("the anchor receives what was sent", SOON, || {
            let metrics = world.nodes[self.anchor].metrics();
            assert_eq!(
                metrics.count("eds_events_dropped_total"),
                0,
                "the anchor drops nothing"
            );
            let received = metrics.count("eds_datagrams_received_total") - self.received_before;
            when(
                received == self.sent,
                format!("{received} of {}", self.sent),
            )
        });
    }

    fn line(&mut self) -> String {
        let series: u32 = self.random.random_range(0..40);
        let user: u32 = self.random.random_range(0..400);
        // Some are a minute late.
        let late = i64::from(self.random.random_bool(0.15));
        let minute = SEED_MINUTE_NS + (self.minute - late) * MINUTE_NS;
        let at = minute + self.random.random_range(0..60_000) * 1_000_000;
        format!(
            "event_type=type{series},product=product{} value=user{user} {at}",
            series % 7
        )
    }
}
