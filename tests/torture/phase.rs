//! Phases: constant load, with the faults of the plan.
//!
//! Every datagram goes to all nodes. One node, the anchor of the phase, always receives it: it is never killed,
//! suspended or cut off alone, and the load waits for it. So every event has a copy on a live node, and nothing may be
//! lost. The next phase, with another anchor, begins when all nodes have recorded everything they received.

use testing::prelude::*;

use crate::fault::{
    Fault, HARMLESS_EVERY, NodeFault, Planned, RedisFault, by_chance, is_harmless, plan,
};
use crate::store::Kind;
use crate::verdict::{Rollback, Straggler, Verdict};
use crate::world::{GRACE, World};

/// A rate that a slow machine sustains: the subject is faults, not speed.
const DATAGRAMS_PER_SECOND: u32 = 120;
const LINES_PER_DATAGRAM: usize = 12;
/// The maximum number of bytes in the anchor's socket.
const AHEAD_MAX: u64 = 32;
/// How long events of a minute are sent. A few follow in the next minute.
const MINUTE_LASTS: Duration = Duration::from_secs(5);
/// A pause without events of the last minutes, so that they may close.
const REST_MAX: Duration = Duration::from_secs(2);
/// `flush.max_hold` in seconds: longer than the events of a minute are sent and than any fault keeps them from Redis.
const MAX_HOLD_SECS: std::ops::Range<u64> = 40..60;
const STRAGGLES: Duration = Duration::from_millis(500);
/// A straggler's minute is published within this time of `flush.max_hold`, whatever faults single nodes and the output
/// have.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);
/// In a shorter torture no phase is longer than `flush.max_hold`.
const LONG_FROM: Duration = Duration::from_secs(60);
/// The number of minutes of an archive, with one event each, and how long they lie before all others.
const ARCHIVE_MINUTES: i64 = 10_000;
const ARCHIVE_IS_OLDER_BY: i64 = 20_000;
/// The current minute is published within this time of the grace if nothing fails.
const LATE_MAX: Duration = Duration::from_secs(15);
/// The minimum time in which it has events.
const CURRENT_LASTS_NS: i64 = 20_000_000_000;
/// The delay of events of the current minute, in ns.
const CURRENT_IS_LATE_NS: std::ops::Range<i64> = 0..3_000_000_000;
/// For the last second of a phase, leases, pauses and graces.
const EXACT_WITHIN: Duration = Duration::from_secs(120);

struct Load {
    socket: UdpSocket,
    random: SmallRng,
    minute: i64,
    minute_began: Instant,
    last_sent: Instant,
    /// The events that the anchor had received, and those sent since.
    anchor: usize,
    received_before: u64,
    sent: u64,
    expected: Expected,
    /// The end of the current minute by Redis' clock, in ns since the epoch.
    current_until: i64,
    /// When each of these minutes ended, or its last event was sent.
    over: BTreeMap<i64, Instant>,
    archive: std::ops::Range<i64>,
    straggler: Option<Straggler>,
    stragglers: Vec<Straggler>,
}

/// Tortures the service for about this time. `again` is the command that repeats it.
pub(crate) fn torture(kind: Kind, lasts: Duration, seed: u64, again: &str) {
    eprintln!("seed {seed}; again by: {again}");
    let mut random = SmallRng::seed_from_u64(seed);
    let max_hold = Duration::from_secs(random.random_range(MAX_HOLD_SECS));
    eprintln!("{kind:?}, max_hold {max_hold:?}");
    let mut world = World::start(kind, max_hold);
    let mut load = Load::new(&world, random.random());
    let mut expected = Points::new();
    let mut rollbacks = Vec::new();
    let mut latest = None;
    let began = Instant::now();
    let mut faults = 0;
    let mut phases = 0;
    while began.elapsed() < lasts {
        let anchor = random.random_range(0..world.nodes.len());
        load.lean_on(&world, anchor);
        if lasts >= LONG_FROM && phases % HARMLESS_EVERY == 0 {
            // Minutes held by the previous phase do not count. A minute must not last into the next phase.
            world.wait_sealed(max_hold);
        }
        let (current_ends, left) = Load::current_ends(&world);
        let plan = if lasts >= LONG_FROM {
            let harmless = left + GRACE + LATE_MAX;
            plan(&mut random, kind, world.nodes.len(), anchor, phases, harmless)
        } else {
            by_chance(&mut random, kind, world.nodes.len(), anchor, false)
        };
        let is_harmless = is_harmless(&plan);
        if is_harmless {
            load.send_current(current_ends);
        }
        faults += plan.len();
        let counted_before = world.forgotten(anchor) + world.late();
        let rollbacks_before = world.rollbacks();
        let mut rollback = phase(&mut world, &mut load, &plan, max_hold, began);
        if is_harmless {
            latest = latest.max(load.wait_published(&world));
            // A clock that is set back must not reach these minutes again.
            load.current_until = 0;
        }
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
            // Late events are counted when the minute is sealed.
            world.wait_sealed(max_hold);
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
        latest,
        phases,
        faults,
        again: again.to_owned(),
    };
    verdict.give(EXACT_WITHIN);
}

/// Runs a plan; returns the published points when Redis rolled back, if it did.
fn phase(
    world: &mut World,
    load: &mut Load,
    plan: &[Planned],
    max_hold: Duration,
    since: Instant,
) -> Option<Rollback> {
    let mut rollback = None;
    let mut steps: Vec<(Duration, bool, Fault)> =
        plan.iter().flat_map(|it| [(it.from, true, it.fault), (it.to, false, it.fault)]).collect();
    steps.sort_by_key(|(at, _, _)| *at);
    let began = Instant::now();
    for (at, begins, fault) in steps {
        load.pump(world, at.saturating_sub(began.elapsed()));
        let what = if begins { "begins" } else { "ends" };
        eprintln!("{:7.1} s  {what:6} {fault:?}", since.elapsed().as_secs_f64());
        match (fault, begins) {
            (Fault::Straggler, true) => load.straggle(),
            (Fault::Archive, true) => load.archive = 0..ARCHIVE_MINUTES,
            (Fault::Straggler | Fault::Archive, false) => {}
            (Fault::Redis(RedisFault::WentBack), false) => {
                eprintln!(
                    "           {} writes were taken without an answer so far",
                    world.unanswered()
                );
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
            current_until: 0,
            over: BTreeMap::new(),
            archive: 0..0,
            straggler: None,
            stragglers: Vec::new(),
        };
        load.lean_on(world, 0);
        load
    }

    /// Makes this node the anchor. The minutes of the last phase get no more events.
    fn lean_on(&mut self, world: &World, anchor: usize) {
        self.anchor = anchor;
        self.received_before = world.nodes[anchor].metrics().count("eds_datagrams_received_total");
        self.sent = 0;
        self.next_minute(2);
    }

    fn next_minute(&mut self, by: i64) {
        self.minute += by;
        self.minute_began = Instant::now();
    }

    fn pump(&mut self, world: &World, lasts: Duration) {
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < lasts {
            if self.last_sent.elapsed() > REST_MAX {
                self.next_minute(2);
            } else if self.minute_began.elapsed() > MINUTE_LASTS {
                self.next_minute(1);
            }
            let now_ns = world.store.clock().now_ns();
            let lines: Vec<_> = (0..LINES_PER_DATAGRAM).map(|_| self.line(now_ns)).collect();
            self.send_lines(world, &lines);
            let archive: Vec<_> = self.archive.by_ref().take(LINES_PER_DATAGRAM).collect();
            if !archive.is_empty() {
                let lines: Vec<_> = archive.into_iter().map(archived).collect();
                self.send_lines(world, &lines);
            }
            self.last_sent = Instant::now();
            if let Some(straggler) = &mut self.straggler
                && straggler.sent.last().is_none_or(|at| at.elapsed() > STRAGGLES)
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

    fn send_lines(&mut self, world: &World, lines: &[String]) {
        let datagram = lines.join("\n").into_bytes();
        self.expected.receive(&datagram);
        self.send(world, &datagram);
    }

    /// Returns the end of the current minute, or of the next one if that is soon, by Redis' clock in ns since the
    /// epoch; and the time until then.
    fn current_ends(world: &World) -> (i64, Duration) {
        let now_ns = world.store.clock().now_ns();
        let ends_ns = ((now_ns + CURRENT_LASTS_NS) / MINUTE_NS + 1) * MINUTE_NS;
        (ends_ns, Duration::from_nanos((ends_ns - now_ns).unsigned_abs()))
    }

    /// Until then events are of the current minute.
    fn send_current(&mut self, until: i64) {
        self.current_until = until;
        self.over.clear();
    }

    /// Waits until the current minutes are published; returns the longest time after their end.
    fn wait_published(&self, world: &World) -> Option<Duration> {
        let within = GRACE + LATE_MAX;
        let mut late = BTreeMap::new();
        eventually("the minutes are published", within + SOON, || {
            late = world.lateness(&self.over);
            let (published, all) = (late.len(), self.over.len());
            when(published == all, format!("{published} of {all}"))
        });
        eprintln!("           published after {late:?}");
        assert!(late.values().all(|late| *late <= within), "too late");
        late.into_values().max()
    }

    fn send(&mut self, world: &World, datagram: &[u8]) {
        for node in &world.nodes {
            // The port may be closed.
            let _ = self.socket.send_to(datagram, node.udp());
        }
        self.sent += 1;
        if self.sent.is_multiple_of(AHEAD_MAX) {
            self.wait_for_anchor(world);
        }
    }

    /// Starts a straggler in a minute without other events.
    fn straggle(&mut self) {
        let minute_ns = SEED_MINUTE_NS + (self.minute + 1) * MINUTE_NS;
        self.straggler = Some(Straggler::new(minute_ns));
        self.next_minute(3);
    }

    /// Continues until the straggler's minute is published while its events keep arriving.
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
        // Events from here on are late.
        self.pump(world, Duration::from_secs(2));
        self.stragglers.extend(self.straggler.take());
    }

    fn wait_for_anchor(&self, world: &World) {
        eventually("the anchor receives what was sent", SOON, || {
            let metrics = world.nodes[self.anchor].metrics();
            assert_eq!(metrics.count("eds_events_dropped_total"), 0, "the anchor drops nothing");
            let received = metrics.count("eds_datagrams_received_total") - self.received_before;
            when(received == self.sent, format!("{received} of {}", self.sent))
        });
    }

    fn line(&mut self, now_ns: i64) -> String {
        let series: u32 = self.random.random_range(0..40);
        let user: u32 = self.random.random_range(0..400);
        let at = if now_ns < self.current_until {
            let at = now_ns - self.random.random_range(CURRENT_IS_LATE_NS);
            let minute = at - at % MINUTE_NS;
            let left_ns = (minute + MINUTE_NS - now_ns).max(0);
            let over = Instant::now() + Duration::from_nanos(left_ns.unsigned_abs());
            self.over.insert(minute, over);
            at
        } else {
            // Some are a minute late.
            let late = i64::from(self.random.random_bool(0.15));
            let minute = SEED_MINUTE_NS + (self.minute - late) * MINUTE_NS;
            minute + self.random.random_range(0..60_000) * 1_000_000
        };
        format!("event_type=type{series},product=product{} value=user{user} {at}", series % 7)
    }
}

fn archived(minute: i64) -> String {
    let at = SEED_MINUTE_NS - (ARCHIVE_IS_OLDER_BY - minute) * MINUTE_NS;
    let product = minute % 7;
    format!("event_type=archived,product=product{product} value=user{minute} {at}")
}
