//! One phase after another: a load that never rests, and the faults of the plan at their time.
//!
//! Every datagram goes to all nodes. One of them, the anchor of the phase, always gets it: it is not killed, put to
//! sleep or cut off alone, and the load waits for it. So there is a copy of every event with a node that is up, and
//! nothing may be lost. The next phase has another anchor, when all nodes have recorded all that they received.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::fault::{Fault, plan};
use crate::support::eventually::{SOON, eventually, when};
use crate::support::load::{MINUTE_NS, SEED_MINUTE_NS};
use crate::support::truth::{Points, Truth};
use crate::verdict::Verdict;
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
    truth: Truth,
}

/// Tortures the service for about this long. `again` is the command that does so again.
pub(crate) fn torture(lasts: Duration, seed: u64, again: &str) {
    eprintln!("seed {seed}; again by: {again}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut world = World::start();
    let mut load = Load::new(&world, random.random());
    let mut expected = Points::new();
    let began = Instant::now();
    let mut faults = 0;
    let mut phases = 0;
    while began.elapsed() < lasts {
        let anchor = random.random_range(0..world.nodes.len());
        load.lean_on(&world, anchor);
        faults += phase(&mut world, &mut load, &mut random, began);
        world.wait_calm();
        eprintln!("{:7.1} s  calm", began.elapsed().as_secs_f64());
        expected.extend(std::mem::take(&mut load.truth).points());
        phases += 1;
    }
    let verdict = Verdict {
        world,
        expected,
        phases,
        faults,
        again: again.to_owned(),
    };
    verdict.give(EXACT_WITHIN);
}

/// Plays a plan, and answers how many faults there were.
fn phase(world: &mut World, load: &mut Load, random: &mut SmallRng, since: Instant) -> usize {
    let plan = plan(random, world.nodes.len(), load.anchor);
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
        if begins {
            world.begin(fault);
        } else {
            world.end(fault);
        }
    }
    load.pump(world, Duration::from_secs(1));
    plan.len()
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
            truth: Truth::default(),
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
            self.truth.receive(&datagram);
            for node in &world.nodes {
                // Nobody may listen there.
                let _ = self.socket.send_to(&datagram, node.udp());
            }
            self.last_sent = Instant::now();
            self.sent += 1;
            if self.sent.is_multiple_of(AHEAD_MAX) {
                self.wait_for_anchor(world);
            }
            sent += 1;
            let due = Duration::from_secs(1) * sent / DATAGRAMS_PER_SECOND;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        self.wait_for_anchor(world);
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
        // Some are a minute behind.
        let behind = i64::from(self.random.random_bool(0.15));
        let minute = SEED_MINUTE_NS + (self.minute - behind) * MINUTE_NS;
        let at = minute + self.random.random_range(0..60_000) * 1_000_000;
        format!(
            "event_type=type{series},product=product{} value=user{user} {at}",
            series % 7
        )
    }
}
